"""Tests of greedy actions: they are deterministic, and an agent without them declares it in its traits."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from exact_cases import ALIKE, small, unequal

from labrl.agents.agent import Observation
from labrl.clock import Clock
from labrl.config import config_folder
from labrl.config.compose import compose, resolve
from labrl.errors import InputError
from labrl.learning.compute import Compute
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.trial.create import check

AGENTS = sorted(path.stem for path in (config_folder() / "agent").glob("*.yaml"))
TASKS = {"cartpole": (4, gym.spaces.Discrete(2)), "pendulum": (3, gym.spaces.Box(-2, 2, (1,), np.float32))}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "agent",
    [
        pytest.param(name, marks=pytest.mark.matrix if name in ALIKE else ())
        for name in AGENTS
        if name != "random"
    ],
)
def test_greedy_action_is_deterministic_and_draws_no_random_numbers(agent: str, task: str) -> None:
    try:
        config = resolve(compose(small(agent, task)))
        check(config)
    except InputError:
        pytest.skip("the agent does not support the task")
    size, action = TASKS[task]
    spaces = Spaces(gym.spaces.Box(-5, 5, (size,), np.float32), action, 4)
    streams = Streams(3)
    built = config.agent.build(
        spaces=spaces, clock=Clock(1000), streams=streams, compute=Compute.choose("cpu", "fp32", 1)
    )
    assert built.TRAITS.greedy
    look = np.random.default_rng(0).normal(size=(9, size)).astype(np.float32)
    before = streams.state_dict()
    seen = Observation(look, start=np.ones(9, np.bool_))
    first, second = built.greedy_action(seen), built.greedy_action(seen)
    assert np.array_equal(first, second)
    assert all(action.contains(one) for one in first)
    assert not unequal(before, streams.state_dict())
    built.close()


def test_greedy_action_is_the_mean_or_has_the_largest_value() -> None:
    ppo = _built("ppo", gym.spaces.Box(-2, 2, (1,), np.float32))
    look = np.random.default_rng(0).normal(size=(1, 3)).astype(np.float32)
    seen = Observation(look)
    draws = [ppo.evaluation_action(seen, np.random.default_rng(seed)) for seed in range(300)]
    assert abs(np.mean(draws) - ppo.greedy_action(seen)) < 0.2
    dqn = _built("dqn", gym.spaces.Discrete(5, start=3))
    with torch.no_grad():
        best = dqn.modules()["q_network"](torch.from_numpy(look)).outputs.squeeze(2).argmax(1).numpy() + 3
    assert np.array_equal(dqn.greedy_action(seen), best)


def test_random_agent_has_no_greedy_action() -> None:
    assert not _built("random", gym.spaces.Discrete(2)).TRAITS.greedy


def _built(agent: str, action: gym.Space):
    config = resolve(compose(small(agent, "cartpole")))
    spaces = Spaces(gym.spaces.Box(-5, 5, (3,), np.float32), action, 4)
    return config.agent.build(
        spaces=spaces, clock=Clock(1000), streams=Streams(3), compute=Compute.choose("cpu", "fp32", 1)
    )
