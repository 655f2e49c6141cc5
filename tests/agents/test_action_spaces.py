"""Tests of the list of action spaces that agents support: it is correct, complete and part of errors."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from exact_cases import QUIET
from options import options
from refusals import refused

import labrl
from labrl.agents.make import fitting_agents, named_agents
from labrl.agents.policy_agent import starts_outside
from labrl.agents.random import uniform_actions
from labrl.config import config_folder
from labrl.config.compose import compose, resolve
from labrl.spaces import Spaces
from labrl.trial.contradictions import check_spaces

AGENTS = sorted(path.stem for path in (config_folder() / "agent").glob("*.yaml"))
SPACES = {
    "Discrete": gym.spaces.Discrete(3),
    "MultiDiscrete": gym.spaces.MultiDiscrete([2, 3]),
    "MultiBinary": gym.spaces.MultiBinary(3),
    "Box": gym.spaces.Box(-1, 1, (2,), np.float32),
}
LARGEST = float(np.finfo(np.float32).max)
OBSERVATION = gym.spaces.Box(-1, 1, (3,), np.float32)


def test_every_agent_has_a_class_and_declares_its_action_spaces() -> None:
    assert sorted(named_agents()) == AGENTS
    assert all(kind.TRAITS.actions for kind in named_agents().values())


@cache
def config_of(agent: str) -> Any:
    overrides = ["agent.value.v_min=-1", "agent.value.v_max=1"] if agent in ("c51", "rainbow") else []
    return resolve(compose([f"agent={agent}", "env=acrobot", "preset=none", *overrides]))


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("agent", AGENTS)
def test_agent_accepts_exactly_the_listed_spaces(agent: str, kind: str) -> None:
    config = config_of(agent)
    spaces = Spaces(OBSERVATION, SPACES[kind], 1)
    if isinstance(SPACES[kind], named_agents()[agent].TRAITS.actions):
        check_spaces(config, agent, spaces, masked=False)
    else:
        fitting = [f"agent={other}" for other in fitting_agents(SPACES[kind])]
        with refused("unsupported", "agent", *fitting):
            check_spaces(config, agent, spaces, masked=False)


@pytest.mark.parametrize(
    ("space", "random_too"),
    [
        (gym.spaces.Box(0, np.inf, (2,), np.float32), False),
        (gym.spaces.Box(-LARGEST, LARGEST, (2,), np.float32), False),
        (gym.spaces.Box(-2, 2, (2,), np.int64), True),
    ],
)
def test_box_without_bounds_or_of_integers_is_for_agents_with_rollouts(
    space: gym.Space, random_too: bool
) -> None:
    replay = {"sac", "crossq", "tqc", "td3", "ddpg", "td3_bc", "iql"}
    boxes = {name for name, kind in named_agents().items() if gym.spaces.Box in kind.TRAITS.actions}
    fitting = boxes - replay - (set() if random_too else {"random"})
    assert set(fitting_agents(space)) == fitting
    for agent in boxes:
        config = resolve(compose([f"agent={agent}", "env=pendulum"]))
        with nullcontext() if agent in fitting else refused("unsupported", "agent"):
            check_spaces(config, agent, Spaces(OBSERVATION, space, 1), masked=False)


BYTES = gym.spaces.Discrete(3, dtype=np.uint8)
PAIR = gym.spaces.MultiDiscrete([2, 3], dtype=np.int8)
NUMBER = gym.spaces.Box(-2, 1, (), np.float32)


class Unusual(gym.Env[Any, Any]):
    """An environment with actions of a one-byte type or a single real number, and episodes of five steps."""

    observation_space: gym.Space[Any] = OBSERVATION

    def __init__(self, actions: str) -> None:
        self.action_space = globals()[actions]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._steps += 1
        return np.zeros(3, np.float32), 1.0, self._steps == 5, False, {}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("agent", "actions"),
    [
        *((agent, "BYTES") for agent in ("dqn", "recurrent_dqn", "sarsa", "sac", "ppo", "sil_a2c", "random")),
        *((agent, "PAIR") for agent in ("ppo", "sil_ppo", "random")),
        *((agent, "NUMBER") for agent in ("ppo", "sac", "random")),
    ],
)
def test_agents_learn_with_actions_of_unusual_types_and_shapes(
    agent: str, actions: str, tmp_path: Path
) -> None:
    overrides = [f"agent={agent}", "env=gymnasium", "env.id=null", "env.name=unusual", "env.num_envs=2"]
    overrides += ["+env.make._target_=test_action_spaces.Unusual", f"+env.make.actions={actions}"]
    overrides += [*QUIET, "env.max_frame=400", f"hydra.run.dir={tmp_path}"]
    if agent in ("dqn", "recurrent_dqn", "sac"):
        overrides += ["agent.learning_starts=100", "agent.batch_size=32"]
    overrides += ["agent.horizon=100", "agent.batch_size=40"] if agent.endswith("ppo") else []
    assert labrl.train(overrides).exit_code == 0
    if agent != "random":
        policy, space = labrl.load(tmp_path), globals()[actions]
        assert space.contains(np.asarray(policy.act(np.zeros(3, np.float32)), space.dtype))
        policy.reset()
        assert policy.act(np.zeros((4, 3), np.float32)).shape == (4, *space.shape)
        assert policy.evaluate(2).lengths.tolist() == [5, 5]


def test_random_actions_are_uniform_over_integers_of_box_with_bounds() -> None:
    space = gym.spaces.Box(np.array([-2, 0]), np.array([2, 1]), dtype=np.int64)
    drawn = uniform_actions(space, 10_000, np.random.default_rng(0))
    assert drawn.dtype == space.dtype
    assert np.bincount(drawn[:, 0] + 2) / 10_000 == pytest.approx([0.2] * 5, abs=0.02)
    assert np.bincount(drawn[:, 1]) / 10_000 == pytest.approx([0.5] * 2, abs=0.02)


@pytest.mark.parametrize(
    ("low", "high", "changes", "outside"),
    [
        (300, 500, {}, True),
        (-500, -300, {"action_bounds": "clip"}, True),
        (300, np.inf, {}, True),
        (300, 500, {"action_bounds": "squash"}, False),
        (300, 500, {"log_std_init": 6.0}, False),
        (0.5, 3, {}, False),
    ],
)
def test_policy_that_starts_outside_the_bounds_is_recognized(
    low: float, high: float, changes: dict[str, Any], outside: bool
) -> None:
    config = options("agent", "agent=a2c env=pendulum", **changes)
    remedy = starts_outside(config, gym.spaces.Box(np.float32([-1, low]), np.float32([1, high])))
    assert bool(remedy) == outside
    assert ("agent.action_bounds=rescale" in remedy) == (outside and high < np.inf)
