"""Tests of the list of action spaces that agents support: it is correct, complete and part of errors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
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
from labrl.agents.make import check_actions, fitting_agents, named_agents
from labrl.agents.policy_agent import starts_outside
from labrl.agents.ppo import PPO
from labrl.agents.random import uniform_actions
from labrl.config import config_folder
from labrl.config.compose import compose, resolve
from labrl.errors import InputError
from labrl.networks.actions import BoxActions
from labrl.spaces import Spaces, has_bounds
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


class Bytes(gym.Env[Any, Any]):
    """An environment with actions of a one-byte type, as emulators have them, and episodes of five steps."""

    observation_space: gym.Space[Any] = OBSERVATION

    def __init__(self, several: bool) -> None:
        if several:
            self.action_space = gym.spaces.MultiDiscrete([2, 3], dtype=np.int8)
        else:
            self.action_space = gym.spaces.Discrete(3, dtype=np.uint8)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._steps += 1
        return np.zeros(3, np.float32), 1.0, self._steps % 5 == 0, False, {}


class Scalar(Bytes):
    """An environment whose action is a single real number, in a Box of shape ()."""

    def __init__(self) -> None:
        self.action_space = gym.spaces.Box(-2, 1, (), np.float32)  # type: ignore[assignment]
        self._steps = 0


@pytest.mark.extended
@pytest.mark.parametrize("agent", ["ppo", "sac", "random"])
def test_agents_learn_with_scalar_continuous_action(agent: str, tmp_path: Path) -> None:
    overrides = [
        f"agent={agent}",
        "env=gymnasium",
        "env.id=null",
        "env.name=scalar",
        "env.num_envs=2",
        *QUIET,
    ]
    overrides += ["+env.make._target_=test_action_spaces.Scalar", "env.max_frame=400", "seed=0"]
    overrides += ["agent.learning_starts=100", "agent.batch_size=32"] if agent == "sac" else []
    overrides += ["agent.horizon=100", "agent.batch_size=40"] if agent == "ppo" else []
    assert labrl.train([*overrides, f"hydra.run.dir={tmp_path}"]).exit_code == 0
    if agent != "random":
        policy = labrl.load(tmp_path)
        assert policy.action_space.contains(np.asarray(policy.act(np.zeros(3, np.float32))))
        assert policy.act(np.zeros((4, 3), np.float32)).shape == (4,)
        assert policy.evaluate(2).lengths.tolist() == [5, 5]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("agent", "several"),
    [
        *(
            (agent, False)
            for agent in ("dqn", "recurrent_dqn", "sarsa", "pqn", "sac", "ppo", "sil_a2c", "random")
        ),
        *((agent, True) for agent in ("ppo", "sil_ppo", "random")),
    ],
)
def test_agents_learn_with_actions_of_one_byte(agent: str, several: bool, tmp_path: Path) -> None:
    overrides = [
        f"agent={agent}",
        "env=gymnasium",
        "env.id=null",
        "env.name=bytes",
        f"hydra.run.dir={tmp_path}",
    ]
    overrides += ["+env.make._target_=test_action_spaces.Bytes", f"+env.make.several={several}", "seed=0"]
    overrides += [
        "env.num_envs=2",
        "env.max_frame=400",
        "meta=dev",
        "meta.max_session=1",
        "meta.report=false",
    ]
    if agent == "pqn":
        overrides += ["agent.batch_size=32"]
    if agent in ("dqn", "recurrent_dqn", "sac"):
        overrides += ["agent.learning_starts=100", "agent.batch_size=32"]
    run = labrl.train(overrides)
    assert run.exit_code == 0, (tmp_path / "session_0" / "session.log").read_text()


def test_subclass_of_a_space_is_treated_as_its_base_class() -> None:
    class Torques(gym.spaces.Box):
        pass

    check_actions("ppo", PPO, Torques(-1, 1, (2,), np.float32))


@pytest.mark.parametrize(
    ("space", "unfit"),
    [
        (
            gym.spaces.Box(0, np.inf, (2,), np.float32),
            {"sac", "crossq", "tqc", "td3", "ddpg", "td3_bc", "iql", "random"},
        ),
        (
            gym.spaces.Box(-LARGEST, LARGEST, (2,), np.float32),
            {"sac", "crossq", "tqc", "td3", "ddpg", "td3_bc", "iql", "random"},
        ),
        (gym.spaces.Box(-2, 2, (2,), np.int64), {"sac", "crossq", "tqc", "td3", "ddpg", "td3_bc", "iql"}),
    ],
    ids=["half bounded", "largest floats as bounds", "integers"],
)
def test_recommended_agents_are_exactly_those_that_accept_the_box(space: gym.Space, unfit: set[str]) -> None:
    boxes = {name for name, kind in named_agents().items() if gym.spaces.Box in kind.TRAITS.actions}
    assert set(fitting_agents(space)) == boxes - unfit
    for agent in boxes:
        config = resolve(compose([f"agent={agent}", "env=pendulum"]))
        refusal: AbstractContextManager[None] = nullcontext()
        if agent in unfit:
            refusal = refused("unsupported", "agent")
        with refusal:
            check_spaces(config, agent, Spaces(OBSERVATION, space, 1), masked=False)


def test_random_actions_are_uniform_over_integers_of_box_with_bounds() -> None:
    space = gym.spaces.Box(np.array([-2, 0]), np.array([2, 1]), dtype=np.int64)
    drawn = uniform_actions(space, 10_000, np.random.default_rng(0))
    assert drawn.dtype == space.dtype
    assert np.bincount(drawn[:, 0] + 2) / 10_000 == pytest.approx([0.2] * 5, abs=0.02)
    assert np.bincount(drawn[:, 1]) / 10_000 == pytest.approx([0.5] * 2, abs=0.02)


def test_agents_accept_boolean_box() -> None:
    """Check boxes of booleans, whose width NumPy cannot compute by subtraction."""
    space = gym.spaces.Box(0, 1, (2,), np.bool_)
    assert has_bounds(space)
    drawn = uniform_actions(space, 1000, np.random.default_rng(0))
    assert drawn.dtype == np.bool_
    assert drawn.mean() == pytest.approx(0.5, abs=0.1)
    for agent in set(fitting_agents(space)) - {"random"}:
        config = resolve(compose([f"agent={agent}", "env=pendulum"]))
        check_spaces(config, agent, Spaces(OBSERVATION, space, 1), masked=False)


def test_error_names_no_other_agent_when_none_fits() -> None:
    with pytest.raises(InputError) as caught:
        check_actions("ppo", PPO, gym.spaces.Text(3))
    assert (caught.value.code, caught.value.key) == ("unsupported", "agent")
    assert not any(f"agent={other}" in str(caught.value) for other in set(AGENTS) - {"ppo"})


@pytest.mark.parametrize(
    ("low", "high", "changes", "outside"),
    [
        (300, 500, {}, True),
        (-500, -300, {}, True),
        (300, np.inf, {}, True),
        (300, 500, {"action_bounds": "clip"}, True),
        (300, 500, {"action_bounds": "rescale"}, False),
        (300, 500, {"action_bounds": "squash"}, False),
        (300, 500, {"log_std_init": 6.0}, False),
        (0.5, 3, {}, False),
        (-1, 1, {}, False),
    ],
)
def test_policy_that_starts_outside_the_bounds_is_recognized(
    low: float, high: float, changes: dict[str, Any], outside: bool
) -> None:
    config = options("agent", "agent=a2c env=pendulum", **changes)
    space = gym.spaces.Box(np.array([-1, low], np.float32), np.array([1, high], np.float32))
    remedy = starts_outside(config, space)
    assert bool(remedy) == outside
    assert ("agent.action_bounds=rescale" in remedy) == (outside and high < np.inf)


def test_wide_bounds_in_float16_are_bounds() -> None:
    """Their difference, 120,000, is infinite in float16."""
    space = gym.spaces.Box(-6e4, 6e4, (1,), np.float16)
    assert has_bounds(space)
    actions = BoxActions(space).to_env(np.array([[-1], [0], [0.5], [1]], np.float32))
    assert actions.dtype == np.float16
    assert actions.tolist() == [[-6e4], [0], [3e4], [6e4]]
    largest = float(np.finfo(np.float16).max)
    assert not has_bounds(gym.spaces.Box(-largest, largest, (1,), np.float16))
    assert not has_bounds(gym.spaces.Box(0, largest, (1,), np.float16))
