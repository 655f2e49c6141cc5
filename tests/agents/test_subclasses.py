"""Tests that a user's subclass has its own options, and that a method that it overrides is called wherever
labrl would call its own."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_cases import BOX, DISCRETE, VECTOR, Noise, build, cpu, play
from exact_cases import SMALL
from learner_cases import Rows
from refusals import refused
from torch import Tensor, nn

from labrl.agents.agent import Observation
from labrl.agents.make import named_agents
from labrl.clock import Clock
from labrl.config.compose import compose, resolve
from labrl.errors import InputError
from labrl.seeding import Streams
from labrl.spaces import Spaces

ACTIONS = {name: kind.TRAITS.actions for name, kind in named_agents().items()}
IMAGES = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
OBSERVATIONS = {"vector": VECTOR, "images": IMAGES}
STEPS = {"vector": 60, "images": 24}
HOOKS = {"objective", "critic_loss", "policy_loss", "value_loss"}
"""Methods that docs/how-to/extend.md names for agents that change a loss."""
EARLY = {"agent.learning_starts=60": "agent.learning_starts=24"}


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


def make(kind: Any, agent: str, observation: str = "vector", config: Any = None) -> Any:
    """Return an agent of this class, with the options of `agent` or the given ones."""
    component = component_of(agent)
    action = DISCRETE if gym.spaces.Discrete in ACTIONS[agent] else BOX
    runtime: Any = {"spaces": Spaces(OBSERVATIONS[observation], action, 4), "clock": Clock(10**6)}
    options = {} if component.config is None else {"config": component.config if config is None else config}
    return kind(**options, **runtime, streams=Streams(3), compute=cpu())


def use(kind: type, agent: str, observation: str) -> None:
    """Let an agent of this class, with an option more, play, learn, be evaluated, saved and restored."""
    config = component_of(agent).config
    options = None if config is None else with_option(config)
    player, other = (make(kind, agent, observation, options) for _ in range(2))
    assert agent == "random" or player.config.own == 0.5
    world, clock = Noise(OBSERVATIONS[observation]), getattr(player, "clock", Clock(10**6))
    assert play(player, clock, world, STEPS[observation]) > 0 or agent == "random"
    player.evaluation_action(Observation(world.observation), np.random.default_rng(0))
    player.metrics()
    other.load_state_dict(player.state_dict())
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


def after_updates(kind: type, agent: str) -> Any:
    """Return an agent of this class, with the options of `agent`, after its first updates."""
    made, world, updates = make(kind, agent), Noise(), 0
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


@pytest.fixture(params=["vector", "images"])
def agent(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An agent whose learner uses a kernel, or copies of its network on two threads."""
    space = OBSERVATIONS[request.param]
    small = ("agent.horizon=4", "agent.batch_size=16")
    made, _, _ = build("ppo", *small, observation=space, compute=cpu(2))
    made.world = Noise(space)
    yield made
    made.close()


def gradient_of(agent: Any, loss: Callable[..., Tensor]) -> Tensor:
    rows = Rows(torch.from_numpy(agent.network.layout(agent.world.observation)))
    agent.learner.gradient(lambda network, part: (loss(network, part.inputs), torch.zeros(1)), rows)
    return agent.learner.flat.gradient.clone()


def value_of(network: Any, inputs: Tensor) -> Tensor:
    return network(inputs).value.square().mean()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda loss, rows: loss,
        lambda loss, rows: (loss.expand(4), rows),
        lambda loss, rows: (loss.detach(), rows),
        lambda loss, rows: (loss, rows.sum()),
    ],
)
def test_loss_with_a_result_of_another_form_is_named(wrong: Any, agent: Any) -> None:
    class Own(type(agent)):  # type: ignore[misc]  # a base that is known only here
        def objective(self, *given: Any) -> Any:
            return wrong(*super().objective(*given))

    agent.__class__ = Own
    with refused("target", "agent._target_", Own.objective.__qualname__, f"{__file__}:"):
        play(agent, agent.clock, agent.world, 8)


def test_term_of_the_weights_of_the_agents_network_is_learned(agent: Any) -> None:
    def decay(network: Any, inputs: Tensor) -> Tensor:
        return value_of(network, inputs) + sum(w.square().sum() for w in agent.network.parameters())

    difference = gradient_of(agent, decay) - gradient_of(agent, value_of)
    torch.testing.assert_close(difference, 2 * agent.learner.weights, rtol=1e-3, atol=1e-4)


def test_weights_that_the_agent_freezes_have_no_gradient(agent: Any) -> None:
    agent.network.policy_torso.requires_grad_(False)
    gradient_of(agent, lambda network, x: network(x).parameters.square().mean())
    assert not any(w.grad.any() for w in agent.network.policy_torso.parameters() if w.grad is not None)
    assert agent.network.policy_head[-1].weight.grad.any()


def test_forward_and_activation_that_the_agent_replaces_are_used(agent: Any) -> None:
    inputs, head = agent.network.layout(agent.world.observation), agent.network.value_head
    agent.network.value_head = nn.Sequential(head[-1], nn.Hardtanh(5.0, 6.0))
    assert agent.learner.forward(inputs).value.min() >= 5
    assert gradient_of(agent, value_of).isfinite().all()
    agent.network.value_head = head
    head[-1].forward = lambda x: torch.zeros(len(x), 1) * head[-1].weight.sum()
    assert not agent.learner.forward(inputs).value.any()
    assert not gradient_of(agent, value_of).any()


def test_layer_that_would_never_be_learned_is_refused(agent: Any) -> None:
    agent.network.value_head.append(nn.Linear(1, 1))
    with pytest.raises(InputError, match="value_head"):
        gradient_of(agent, value_of)


@pytest.mark.parametrize(
    ("name", "names", "column"),
    [
        ("ppo", "STATISTICS", "clip_range"),
        ("pqn", "STATISTICS", "grad_norm"),
        ("dqn", "ROWS", "q_max"),
        ("sac", "POLICY_STATISTICS", "td_error"),
        ("iql", "VALUE_STATISTICS", "lr"),
    ],
)
def test_statistic_with_the_name_of_another_column_is_refused(name: str, names: str, column: str) -> None:
    kind = component_of(name).load()
    own = type("Own", (kind,), {names: (*getattr(kind, names), column)})
    with pytest.raises(InputError, match=repr(column)) as error:
        make(own, name).metrics()
    assert error.value.key == "agent._target_"
