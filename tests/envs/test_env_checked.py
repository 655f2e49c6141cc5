"""Tests of checking what environments return: invalid values are refused in their step, never altered."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from env_cases import own_env
from gymnasium import spaces
from refusals import refused

from labrl.component import Component
from labrl.config.validate import dataclass_of
from labrl.envs.make import describe, gives_masks, make_env
from labrl.errors import EnvironmentFailedError

BOX = spaces.Box(-1, 1, (4,))
BYTES = spaces.Box(0, 255, (2,), np.uint8)
BOTH = spaces.Dict({"d": spaces.Discrete(3, start=1), "x": spaces.Tuple((BOX, spaces.MultiDiscrete([2, 3])))})
ZEROS = np.zeros(4, np.float32)
GOOD = {"d": 1, "x": (ZEROS, np.array([1, 2]))}


def answer(observation: Any = ZEROS, reward: Any = 0.0, over: Any = False, info: Any = None) -> Any:
    """Return what a step returns."""
    return observation, reward, over, False, {} if info is None else info


OBSERVATIONS: dict[str, tuple[spaces.Space, Any, Any]] = {
    "scalar for a box": (BOX, np.full(4, 1.5), answer(np.float32(0.5))),
    "other shape": (BOX, [0, 1, 0, 1], answer(ZEROS[:3])),
    "strings": (BOX, ZEROS, answer(["a"] * 4)),
    "fraction in bytes": (BYTES, np.array([0, 255]), answer(np.array([0, 0.5]))),
    "too large": (BYTES, [0, 255], answer([0, 256])),
    "beyond a discrete": (spaces.Discrete(5), 2.0, answer(5)),
    "missing key": (BOTH, {**GOOD, "more": "of it"}, answer({"d": 1})),
    "beyond a part": (BOTH, {**GOOD, "x": [ZEROS, [0, 1]]}, answer({**GOOD, "x": (ZEROS, [1, 3])})),
}
"""By name: the space, a valid observation, and a step with an invalid one."""

STEPS: dict[str, tuple[spaces.Space, Any, Any]] = {
    "four values": (BOX, ZEROS, (ZEROS, 0.0, False, {})),
    "nothing": (BOX, ZEROS, None),
    "info is a list": (BOX, ZEROS, answer(info=[])),
    "no reward": (BOX, ZEROS, answer(reward=None)),
    "two rewards": (BOX, ZEROS, answer(reward=np.zeros(2))),
    "no flag": (BOX, ZEROS, answer(over=None)),
    "flag is a string": (BOX, ZEROS, answer(over="no")),
}
NUMBERS: dict[str, tuple[spaces.Space, Any, Any]] = {
    "not a number": (BOX, ZEROS, answer(reward=np.nan)),
    "beyond single precision": (BOX, ZEROS, answer(reward=1e39)),
    "unexpected mask": (BOX, ZEROS, answer(info={"action_mask": np.ones(2, np.int8)})),
}
LARGE = answer(np.full(4, 3e38, np.float32), np.float32(3e38), np.bool_(False))
CASES = {**OBSERVATIONS, **STEPS, **NUMBERS, "valid": (BOX, ZEROS, LARGE)}


class Given(gym.Env[Any, Any]):
    """Environment that returns the answer of a case in one step of its life, and valid ones in all others."""

    action_space: Any = spaces.Discrete(2)

    def __init__(self, case: str, at: int = 4) -> None:
        self.observation_space, self._good, self._wrong = CASES[case]
        self._at, self._steps = at, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._good, {"path": [seed]}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return self._wrong if self._steps == self._at else answer(self._good)


@pytest.mark.parametrize("case", [*OBSERVATIONS, *STEPS])
def test_invalid_answer_is_refused_before_the_run(case: str) -> None:
    with refused("environment", "env.make", "Given" if case in STEPS else "observation"):
        describe(own_env(Given, {"case": case}))


@pytest.mark.parametrize("case", [*OBSERVATIONS, "no reward", "two rewards", *NUMBERS, "valid"])
@pytest.mark.filterwarnings("error")
def test_invalid_answer_is_refused_in_its_step(case: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"vectorization": "async" if case == "missing key" else "sync", "fresh_env_per_episode": False}
    env = make_env(own_env(Given, {"case": case, "at": 200}, **settings), seed=0, num_threads=1, num_envs=2)
    env.reset()
    for _ in range(199):
        env.step(np.zeros(2, np.int64))
    if case == "valid":
        assert env.step(np.zeros(2, np.int64)).reward.tolist() == [float(np.float32(3e38))] * 2
        assert not caplog.records
    else:
        with refused("environment", "env", "environment 0", kind=EnvironmentFailedError):
            env.step(np.zeros(2, np.int64))
    env.close()


class Resets(Given):
    """Environment with a reset that returns something else."""

    def __init__(self, how: str) -> None:
        super().__init__("valid")
        self._how = how

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return {"array": ZEROS, "three values": (ZEROS, {}, {}), "no info": (ZEROS, None)}[self._how]


class TakesNoSeed(Given):
    """Environment whose reset has no arguments, as in the first versions of Gym."""

    def __init__(self) -> None:
        super().__init__("valid")

    def reset(self) -> Any:  # type: ignore[override]
        return ZEROS, {}


@pytest.mark.parametrize(("how", "named"), [("array", "2"), ("three values", "2"), ("no info", "NoneType")])
def test_reset_must_return_what_gymnasium_requires(how: str, named: str) -> None:
    with refused("environment", "env.make", "Resets", named):
        describe(own_env(Resets, {"how": how}))


def test_reset_must_take_a_seed() -> None:
    with refused("environment", "env.make", "TakesNoSeed.reset()", "seed"):
        describe(own_env(TakesNoSeed))


class Bare:
    """Backend that does not derive from `Backend`, so it does not declare what it supports."""

    def __init__(self, num_envs: int, num_threads: int, evaluation: bool = False) -> None: ...


def test_backend_must_derive_from_the_backend_class() -> None:
    component = dataclass_of(Component, {"_target_": "test_env_checked.Bare"}, "env")
    for ask in (describe, gives_masks, lambda env: make_env(env, seed=0, num_threads=1, num_envs=1)):
        with refused("target", "env._target_", "test_env_checked.Bare", "Backend"):
            ask(component)
