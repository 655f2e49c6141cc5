"""Tests that a user's subclass has its own options, and that a method that it overrides is called wherever
labrl would call its own."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import Noise, play
from exact_cases import SMALL
from learner_cases import Rows
from on_policy_cases import BOX, DISCRETE, VECTOR, build, config_of
from torch import Tensor, nn

from labrl.agents.agent import Observation
from labrl.agents.dqn import DQN
from labrl.agents.make import named_agents
from labrl.agents.ppo import PPO
from labrl.clock import Clock
from labrl.config.compose import compose, resolve
from labrl.errors import InputError
from labrl.learning.compute import Compute
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.step import Step

ACTIONS = {name: kind.TRAITS.actions for name, kind in named_agents().items()}
IMAGES = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
OBSERVATIONS = {"vector": VECTOR, "images": IMAGES}
STEPS = {"vector": 60, "images": 24}
HOOKS = {"objective", "critic_loss", "policy_loss", "value_loss"}
"""Methods that docs/how-to/extend.md names for agents that change a loss."""
EARLY = {"agent.learning_starts=60": "agent.learning_starts=24"}


class World(Noise):
    """Random observations, with the first component of the action as reward."""

    def step(self, action: Any) -> Step:
        return super().step(action.reshape(len(action), -1)[:, 0])


@cache
def component_of(agent: str) -> Any:
    """Return the agent of a small run, as exactness is tested with."""
    target = str(compose([f"agent={agent}"]).agent["_target_"])
    small = [EARLY.get(each, each) for each in SMALL.get(agent, SMALL.get(target, []))]
    if compose([f"agent={agent}"]).agent.get("self_imitation") is not None:
        small += ["agent.self_imitation.batch_size=16", "agent.self_imitation.memory.capacity=96"]
    env = "env=cartpole" if gym.spaces.Discrete in ACTIONS[agent] else "env=pendulum"
    return resolve(compose([f"agent={agent}", env, "env.max_frame=1000", *small])).agent


def methods_of(kind: type) -> dict[str, Callable[..., Any]]:
    """Return the public methods that instances of a class of agents have, without class methods."""
    return {
        name: method
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and not isinstance(inspect.getattr_static(kind, name), staticmethod)
    }


def recording(name: str, method: Callable[..., Any], calls: set[str]) -> Callable[..., Any]:
    @wraps(method)
    def record(*given: Any, **named: Any) -> Any:
        calls.add(name)
        return method(*given, **named)

    return record


def with_option(config: Any) -> Any:
    """Return options of a derived class, which has an option more."""
    kind = dataclasses.make_dataclass("Own", [("own", float)], bases=(type(config),), kw_only=True)
    return kind(**vars(config), own=0.5)


def use(kind: type, agent: str, observation: str) -> None:
    """Let an agent of this class, with an option more, play, learn, be evaluated, saved and restored."""
    space = OBSERVATIONS[observation]
    action = DISCRETE if gym.spaces.Discrete in ACTIONS[agent] else BOX
    component = component_of(agent)

    def make() -> tuple[Any, Clock]:
        clock = Clock(10**6)
        runtime = {"clock": clock, "streams": Streams(3), "compute": Compute.choose("cpu", "fp32", 1)}
        options = {} if component.config is None else {"config": with_option(component.config)}
        made: Any = kind(**options, spaces=Spaces(space, action, 4), **runtime)
        assert agent == "random" or made.config.own == 0.5
        return made, clock

    player, clock = make()
    updates = play(player, clock, World(space, 4), STEPS[observation])
    assert updates > 0 or agent == "random"
    seen = Observation(Noise(space, 4).observation)
    player.evaluation_action(seen, np.random.default_rng(0))
    player.metrics()
    state = player.state_dict()
    other, _ = make()
    other.load_state_dict(state)
    for each in (player, other):
        each.close()


@pytest.mark.extended
@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("agent", ACTIONS)
def test_every_override_of_a_public_method_is_called(
    agent: str, observation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if observation == "images" and agent == "td3_bc":
        pytest.skip("td3_bc normalizes observations that are vectors")
    kind: Any = component_of(agent).load()
    own: set[str] = set()
    with monkeypatch.context() as patch:
        for name, method in methods_of(kind).items():
            patch.setattr(kind, name, recording(name, method, own))
        use(kind, agent, observation)
    called: set[str] = set()
    overrides = {name: recording(name, method, called) for name, method in methods_of(kind).items()}
    use(type("Own", (kind,), overrides), agent, observation)
    assert own <= called
    assert {"act", "observe", "learn"} <= own
    assert HOOKS & set(methods_of(kind)) <= own, "a loss that a derived agent may override is not used"


def make(kind: Any, agent: str) -> Any:
    """Return an agent of this class, with the options of `agent`."""
    spaces = Spaces(VECTOR, DISCRETE if gym.spaces.Discrete in ACTIONS[agent] else BOX, 4)
    options = component_of(agent).config
    compute = Compute.choose("cpu", "fp32", 1)
    return kind(options, spaces=spaces, clock=Clock(10**6), streams=Streams(3), compute=compute)


def after_updates(kind: type, agent: str) -> Any:
    """Return an agent of this class, with the options of `agent`, after its first updates."""
    made = make(kind, agent)
    world, updates = World(VECTOR, 4), 0
    while updates < 4:  # some policies learn only in each second or third update
        updates += play(made, made.clock, world, 1)
    return made


def with_term(kind: Any, method: str, names: str) -> Any:
    """Return a derived class with a loss that has no gradient, and a statistic more."""

    def own(self: Any, *given: Any) -> tuple[Tensor, Tensor]:
        loss, statistics = getattr(kind, method)(self, *given)
        return loss * 0, torch.cat([statistics, torch.ones_like(statistics[:1])])

    return type("WithTerm", (kind,), {method: own, names: (*getattr(kind, names), "term")})


@pytest.mark.extended
@pytest.mark.parametrize(
    ("agents", "method", "names", "norm"),
    [
        ("ppo a2c reinforce sarsa pqn", "objective", "STATISTICS", "grad_norm"),
        ("dqn c51 qr_dqn", "objective", "ROWS", "grad_norm"),
        ("sac tqc crossq td3 iql", "critic_loss", "CRITIC_STATISTICS", "grad_norm_critic"),
        ("sac tqc crossq td3 iql td3_bc", "policy_loss", "POLICY_STATISTICS", "grad_norm_policy"),
        ("iql", "value_loss", "VALUE_STATISTICS", "grad_norm_value"),
    ],
)
def test_loss_of_ones_own_is_learned_and_its_statistic_is_a_metric(
    agents: str, method: str, names: str, norm: str
) -> None:
    for agent in agents.split():
        kind = component_of(agent).load()
        assert after_updates(kind, agent).metrics()[norm] > 0
        metrics = after_updates(with_term(kind, method, names), agent).metrics()
        assert (metrics[norm], metrics["term"]) == (0, pytest.approx(1)), agent
        known = getattr(kind, names)
        with pytest.raises(InputError) as error:
            after_updates(type("Unnamed", (with_term(kind, method, names),), {names: known}), agent)
        assert error.value.key == "agent._target_"
        assert names in str(error.value)


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda loss, rows: loss,
        lambda loss, rows: (loss, rows, rows),
        lambda loss, rows: (loss.expand(4), rows),
        lambda loss, rows: (loss.detach(), rows),
        lambda loss, rows: (loss, rows.tolist()),
        lambda loss, rows: (loss, rows.sum()),
    ],
)
def test_loss_with_a_result_of_another_form_is_named(wrong: Any, images: bool) -> None:
    agent, world = learner_with(images)

    class Own(type(agent)):  # type: ignore[misc]  # a base that is known only here
        def objective(self, *given: Any) -> Any:
            return wrong(*super().objective(*given))

    agent.__class__ = Own
    with pytest.raises(InputError) as error:
        play(agent, agent.clock, world, 8)
    assert error.value.key == "agent._target_"
    assert Own.objective.__qualname__ in str(error.value)
    assert f"{__file__}:{Own.objective.__code__.co_firstlineno}" in str(error.value)
    agent.close()


def learner_with(images: bool, num_threads: int = 2) -> Any:
    """Return an agent whose learner uses a kernel, or copies of its network on two threads."""
    observation = IMAGES if images else VECTOR
    compute = Compute.choose("cpu", "fp32", num_threads)
    agent, _, _ = build(
        "ppo", "agent.horizon=4", "agent.batch_size=16", observation=observation, compute=compute
    )
    return agent, World(observation, 4)


def gradient_of(agent: Any, loss: Callable[..., Tensor], images: bool) -> Tensor:
    space = IMAGES if images else VECTOR
    inputs = torch.from_numpy(agent.network.layout(World(space, 4).observation))
    rows = Rows(inputs)
    agent.learner.gradient(lambda network, part: (loss(network, part.inputs), torch.zeros(1)), rows)
    return agent.learner.flat.gradient.clone()


def value_of(network: Any, inputs: Tensor) -> Tensor:
    return network(inputs).value.square().mean()


@pytest.mark.parametrize("images", [False, True])
def test_term_of_the_weights_of_the_agents_network_is_learned(images: bool) -> None:
    agent, _ = learner_with(images)

    def decay(network: Any, inputs: Tensor) -> Tensor:
        return value_of(network, inputs) + sum(w.square().sum() for w in agent.network.parameters())

    plain = gradient_of(agent, value_of, images)
    with_decay = gradient_of(agent, decay, images)
    torch.testing.assert_close(with_decay - plain, 2 * agent.learner.weights, rtol=1e-3, atol=1e-4)
    agent.close()


@pytest.mark.parametrize("images", [False, True])
def test_weights_that_the_agent_freezes_have_no_gradient(images: bool) -> None:
    agent, _ = learner_with(images)
    agent.network.policy_torso.requires_grad_(False)
    gradient_of(agent, lambda network, x: network(x).parameters.square().mean(), images)
    assert not any(w.grad.any() for w in agent.network.policy_torso.parameters() if w.grad is not None)
    assert agent.network.policy_head[-1].weight.grad.any()
    agent.close()


@pytest.mark.parametrize("images", [False, True])
def test_forward_of_a_part_that_the_agent_replaces_is_used(images: bool) -> None:
    agent, world = learner_with(images)
    layer = agent.network.value_head[-1]
    layer.forward = lambda x: torch.zeros(len(x), 1) * layer.weight.sum()
    inputs = agent.network.layout(world.observation)
    assert not agent.learner.forward(inputs).value.any()
    assert not gradient_of(agent, value_of, images).any()
    agent.close()


@pytest.mark.parametrize("images", [False, True])
def test_activation_that_the_agent_replaces_is_used(images: bool) -> None:
    agent, world = learner_with(images)
    agent.network.value_head = nn.Sequential(agent.network.value_head[-1], nn.Hardtanh(5.0, 6.0))
    values = agent.learner.forward(agent.network.layout(world.observation)).value
    assert values.min() >= 5
    assert gradient_of(agent, value_of, images).isfinite().all()
    agent.close()


@pytest.mark.parametrize("images", [False, True])
def test_layer_that_would_never_be_learned_is_refused(images: bool) -> None:
    agent, _ = learner_with(images)
    agent.network.value_head.append(nn.Linear(1, 1))
    with pytest.raises(InputError) as error:
        gradient_of(agent, value_of, images)
    assert "value_head" in str(error.value)
    agent.close()


@pytest.mark.parametrize(
    ("agent", "names", "column"),
    [
        ("ppo", "STATISTICS", "entropy"),
        ("ppo", "STATISTICS", "clip_range"),
        ("pqn", "STATISTICS", "grad_norm"),
        ("dqn", "ROWS", "q_max"),
        ("sac", "POLICY_STATISTICS", "td_error"),
        ("sac", "POLICY_STATISTICS", "temperature"),
        ("td3", "CRITIC_STATISTICS", "exploration"),
        ("iql", "VALUE_STATISTICS", "lr"),
    ],
)
def test_statistic_with_the_name_of_another_column_is_refused(agent: str, names: str, column: str) -> None:
    kind = component_of(agent).load()
    own = type("Own", (kind,), {names: (*getattr(kind, names), column)})
    with pytest.raises(InputError) as error:
        make(own, agent).metrics()
    assert error.value.key == "agent._target_"
    assert repr(column) in str(error.value)
    assert own.__qualname__ in str(error.value)


class WithRow(DQN):
    """Has a statistic more for each transition."""

    ROWS = (*DQN.ROWS, "own")

    def loss(self, network: Any, batch: Any) -> tuple[Tensor, Tensor]:
        loss, rows = super().loss(network, batch)
        return loss, torch.cat([rows, torch.full_like(rows[:1], 1000.0)])


def test_own_statistic_of_transitions_changes_no_other_column() -> None:
    component = component_of("dqn")
    clock = Clock(10**6)
    compute = Compute.choose("cpu", "fp32", 1)
    agent: Any = WithRow(
        component.config, spaces=Spaces(VECTOR, DISCRETE, 4), clock=clock, streams=Streams(3), compute=compute
    )
    play(agent, clock, World(VECTOR, 4), 60)
    metrics = agent.metrics()
    assert metrics["own"] == pytest.approx(1000)
    assert metrics["q_max"] < 100


class Whole(PPO):
    """Has a loss that needs the whole minibatch."""

    TRAITS = dataclasses.replace(PPO.TRAITS, loss_is_mean=False)


@pytest.mark.parametrize(("kind", "sizes"), [(PPO, [8, 8]), (Whole, [16])])
def test_minibatch_is_sliced_unless_the_loss_needs_all_of_it(kind: type, sizes: list[int]) -> None:
    component: Any = config_of("ppo", "agent.horizon=4", "agent.batch_size=16").agent
    runtime = {"clock": Clock(10**6), "streams": Streams(3), "compute": Compute.choose("cpu", "fp32", 2)}
    agent = kind(component.config, spaces=Spaces(IMAGES, DISCRETE, 4), **runtime)
    seen: list[int] = []

    def loss(network: Any, part: Rows) -> tuple[Tensor, Tensor]:
        seen.append(len(part))
        return value_of(network, part.inputs), torch.zeros(1)

    inputs = torch.from_numpy(agent.network.layout(World(IMAGES, 16).observation))
    agent.learner.gradient(loss, Rows(inputs))
    assert seen == sizes
    agent.close()
