"""Tests that a method that a user's subclass overrides is called wherever labrl would call its own."""

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
from on_policy_cases import BOX, DISCRETE, VECTOR
from torch import Tensor

from labrl.agents.action_spaces import ACTS_IN
from labrl.agents.agent import Observation
from labrl.agents.ppo import PPO
from labrl.clock import Clock
from labrl.config.compose import compose, resolve
from labrl.errors import InputError
from labrl.learning.compute import Compute
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.step import Step

IMAGES = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
OBSERVATIONS = {"vector": VECTOR, "images": IMAGES}
STEPS = {"vector": 60, "images": 24}
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
    env = "env=cartpole" if "Discrete" in ACTS_IN[agent] else "env=pendulum"
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


def use(kind: type, agent: str, observation: str) -> None:
    """Let an agent of this class play, learn, be evaluated, saved and restored."""
    space = OBSERVATIONS[observation]
    action = DISCRETE if "Discrete" in ACTS_IN[agent] else BOX
    component = component_of(agent)

    def make() -> tuple[Any, Clock]:
        clock = Clock(10**6)
        runtime = {"clock": clock, "streams": Streams(3), "compute": Compute.choose("cpu", "fp32", 1)}
        options = {} if component.config is None else {"config": component.config}
        return kind(**options, spaces=Spaces(space, action, 4), **runtime), clock

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


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("agent", ACTS_IN)
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


def one_minibatch(kind: type, **changes: Any) -> Any:
    """Return an agent of this class after its first update."""
    component = component_of("ppo")
    clock = Clock(10**6)
    compute: Any = Compute.choose("cpu", "fp32", 1)
    agent = kind(
        dataclasses.replace(component.config, epochs=1, **changes),
        spaces=Spaces(VECTOR, DISCRETE, 4), clock=clock, streams=Streams(3), compute=compute,
    )  # fmt: skip
    while not play(agent, clock, World(VECTOR, 4), 1):
        pass
    return agent


class Nothing(PPO):
    """Learns nothing, because its loss has no gradient."""

    def loss(self, network: Any, minibatch: Any) -> tuple[Tensor, Tensor]:
        loss, statistics = super().loss(network, minibatch)
        return loss * 0, statistics


class WithTerm(PPO):
    """Has a statistic more."""

    STATISTICS = (*PPO.STATISTICS, "term")

    def loss(self, network: Any, minibatch: Any) -> tuple[Tensor, Tensor]:
        loss, statistics = super().loss(network, minibatch)
        return loss, torch.cat([statistics, torch.ones(1)])


class Unnamed(WithTerm):
    """Returns a statistic without a name."""

    STATISTICS = PPO.STATISTICS


def test_loss_without_a_gradient_changes_no_weight() -> None:
    own, still = one_minibatch(PPO), one_minibatch(Nothing)
    assert own.metrics()["grad_norm"] > 0
    assert still.metrics()["grad_norm"] == 0
    assert not torch.equal(own.weights.vector, still.weights.vector)


def test_statistic_of_ones_own_is_a_metric() -> None:
    assert one_minibatch(WithTerm).metrics()["term"] == 1


def test_statistic_without_a_name_is_refused() -> None:
    with pytest.raises(InputError) as error:
        one_minibatch(Unnamed)
    assert error.value.key == "agent._target_"
    assert "clip_fraction" in str(error.value)
