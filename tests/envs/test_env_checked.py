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

CASES: dict[str, tuple[spaces.Space, Any, Any]] = {
    "scalar for a box": (BOX, ZEROS, np.float32(0.5)),
    "fraction in bytes": (BYTES, np.zeros(2), np.array([0, 0.5])),
    "too large": (BYTES, [0, 255], [0, 256]),
    "fraction for a discrete": (spaces.Discrete(5), 2.0, 2.7),
    "beyond a discrete": (spaces.Discrete(5), np.int64(4), 5),
    "strings": (BOX, ZEROS, ["a"] * 4),
    "none": (BOTH, GOOD, None),
    "missing key": (BOTH, GOOD, {"d": 1}),
    "beyond a part": (BOTH, GOOD, {**GOOD, "x": (ZEROS, np.array([1, 3]))}),
}
"""By name: the space, a valid and an invalid observation."""


def environment_error(*named: str) -> Any:
    """Expect an error about what an environment returned, with a message that contains `named`."""
    return refused("environment", "env", *named, kind=EnvironmentFailedError)


class InvalidObservation(gym.Env[Any, Any]):
    """Environment that returns the invalid observation of a case in the fourth step of each episode."""

    action_space: Any = spaces.Discrete(2)

    def __init__(self, case: str) -> None:
        self.observation_space, self._good, self._bad = CASES[case]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._steps = 0
        return self._good, {"path": [seed]}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return self._bad if self._steps == 4 else self._good, 0.0, False, False, {}


@pytest.mark.parametrize("case", CASES)
def test_invalid_observation_is_refused_before_the_run_and_in_its_step(case: str) -> None:
    with refused("environment", "env.make", "observation"):
        describe(own_env(InvalidObservation, {"case": case}))
    settings = {"vectorization": "async" if case == "missing key" else "sync", "fresh_env_per_episode": False}
    env = make_env(own_env(InvalidObservation, {"case": case}, **settings), seed=0, num_threads=1, num_envs=2)
    env.reset()
    for _ in range(3):
        env.step(np.zeros(2, np.int64))
    with environment_error("environment 0"):
        env.step(np.zeros(2, np.int64))
    env.close()


class GivenReward(InvalidObservation):
    """Environment that returns `reward` in the fourth step of each episode."""

    def __init__(self, reward: Any) -> None:
        self.observation_space, self._good = BOX, ZEROS
        self._bad, self._reward = self._good, reward

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, self._reward if self._steps == 4 else reward, *rest


@pytest.mark.parametrize(
    ("reward", "refused"),
    [([1.0, 2.0], True), ("1", True), ({}, True), ([1.0], True), (2, False), (True, False)],
)
def test_reward_must_be_a_single_number(reward: Any, refused: bool) -> None:
    settings = {"fresh_env_per_episode": False}
    env = make_env(own_env(GivenReward, {"reward": reward}, **settings), seed=0, num_threads=1, num_envs=2)
    env.reset()
    for _ in range(3):
        env.step(np.zeros(2, np.int64))
    if refused:
        with environment_error("environment 0", "reward"):
            env.step(np.zeros(2, np.int64))
    else:
        assert env.step(np.zeros(2, np.int64)).reward.tolist() == [float(reward)] * 2
    env.close()


SEEN = np.zeros(4, np.float32)
ANSWERS: dict[str, tuple[Any, Any, tuple[str, ...] | None]] = {
    "four values": (None, (SEEN, 0.0, False, {}), ("5", "truncated")),
    "six values": (None, (SEEN, 0.0, False, False, {}, {}), ("5",)),
    "nothing": (None, "None", ("NoneType",)),
    "array at the reset": (SEEN, None, ("2",)),
    "three values at the reset": ((SEEN, {}, {}), None, ("2",)),
    "info of the reset is None": ((SEEN, None), None, ("NoneType",)),
    "info of a step is a list": (None, (SEEN, 0.0, False, False, []), ("list",)),
    "reward is None": (None, (SEEN, None, False, False, {}), ("reward", "None")),
    "two rewards": (None, (SEEN, np.zeros(2), False, False, {}), ("reward", "[0., 0.]")),
    "flag is None": (None, (SEEN, 0.0, None, False, {}), ("terminated", "None")),
    "flag is a string": (None, (SEEN, 0.0, False, "no", {}), ("truncated", "'no'")),
    "valid": (None, [SEEN, np.array(0.5), np.bool_(False), np.array([0]), {}], None),
}
"""By name: what reset and what step return (None: as usual), and what the error contains (None: valid)."""


class Returns(InvalidObservation):
    """Environment whose reset, or whose steps, return what a case gives."""

    def __init__(self, case: str) -> None:
        self.observation_space, self._good = BOX, SEEN
        self._bad = SEEN
        self._reset, self._step, _ = ANSWERS[case]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        answer = super().reset(seed=seed, options=options)
        return answer if self._reset is None else self._reset

    def step(self, action: Any) -> Any:
        answer = super().step(action)
        return None if self._step == "None" else answer if self._step is None else self._step


class Wrapped(gym.ObservationWrapper[Any, Any, Any]):
    """Wrapper in which unpacking fails if the wrapped environment returns the wrong number of values."""

    def __init__(self, case: str) -> None:
        super().__init__(Returns(case))

    def observation(self, observation: Any) -> Any:
        return observation


class TakesNoSeed(InvalidObservation):
    """Environment whose reset has no arguments, as in the first versions of Gym."""

    def __init__(self) -> None:
        self.observation_space = BOX

    def reset(self) -> Any:  # type: ignore[override]
        return SEEN, {}


@pytest.mark.parametrize("fresh", [None, False])
@pytest.mark.parametrize("case", ANSWERS)
def test_reset_and_step_must_return_what_gymnasium_requires(case: str, fresh: bool | None) -> None:
    component = own_env(Returns, {"case": case}, fresh_env_per_episode=fresh)
    if (wrong := ANSWERS[case][2]) is not None:
        with refused("environment", "env.make", "Returns", *wrong):
            describe(component)
        return
    env = make_env(component, seed=0, num_threads=1, num_envs=2)
    env.reset()
    assert [env.step(np.zeros(2, np.int64)).reward[0] for _ in range(4)] == [0.5] * 4


def test_old_interface_is_recognized_below_wrappers() -> None:
    with refused("environment", "env.make", "truncated"):
        describe(own_env(Wrapped, {"case": "four values"}))
    with refused("environment", "env.make", "TakesNoSeed.reset()", "seed"):
        describe(own_env(TakesNoSeed))


ACCEPTED: dict[str, tuple[spaces.Space, Any]] = {
    "beyond a bound": (BOX, np.full(4, 1.5)),
    "whole numbers": (BOX, [0, 1, 0, 1]),
    "wider type": (BYTES, np.array([0, 255])),
    "flags": (spaces.MultiBinary(2), np.array([True, False])),
    "extra key": (BOTH, {**GOOD, "more": "of it"}),
    "list for a tuple": (BOTH, {**GOOD, "x": [ZEROS, [0, 1]]}),
}


class AcceptedObservation(InvalidObservation):
    """Environment that always returns the observation of a case."""

    def __init__(self, case: str) -> None:
        self.observation_space, self._good = ACCEPTED[case]
        self._bad = self._good


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted_observation_does_not_stop_the_run(case: str) -> None:
    env = make_env(own_env(AcceptedObservation, {"case": case}), seed=0, num_threads=1, num_envs=2)
    env.reset()
    for _ in range(5):
        env.step(np.zeros(2, np.int64))


class WrongLate(InvalidObservation):
    """Environment whose 200th step, counted over all episodes, returns what LATE gives for `wrong`."""

    def __init__(self, wrong: str) -> None:
        self.observation_space, self._wrong, self._all_steps = BOX, wrong, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return ZEROS, {}

    def step(self, action: Any) -> Any:
        self._all_steps += 1
        answer: dict[str, Any] = {
            "observation": ZEROS,
            "reward": 0.0,
            "over": False,
            "cut": False,
            "info": {},
        }
        if self._all_steps == 200:
            answer |= LATE[self._wrong]
        return tuple(answer.values())


LATE: dict[str, dict[str, Any]] = {
    "shape": {"observation": np.zeros(3, np.float32)},
    "type": {"observation": ["a"] * 4},
    "no reward": {"reward": None},
    "mask": {"info": {"action_mask": np.ones(2, np.int8)}},
    "not a number": {"reward": np.nan},
    "infinite": {"reward": -np.inf},
    "too large": {"reward": 1e39},
    "valid": {
        "reward": np.float32(3e38),
        "over": np.bool_(False),
        "observation": np.full(4, 3e38, np.float32),
    },
}


@pytest.mark.parametrize("wrong", LATE)
@pytest.mark.filterwarnings("error")
def test_late_error_is_found_in_its_step(wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    component = own_env(WrongLate, {"wrong": wrong}, fresh_env_per_episode=False)
    env = make_env(component, seed=0, num_threads=1, num_envs=3)
    env.reset()
    for _ in range(199):
        env.step(np.zeros(3, np.int64))
    if wrong == "valid":
        assert env.step(np.zeros(3, np.int64)).reward.tolist() == [float(np.float32(3e38))] * 3
        assert not caplog.records
        return
    with refused("environment", "env", "environment 0", kind=EnvironmentFailedError):
        env.step(np.zeros(3, np.int64))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.filterwarnings("error")
def test_non_finite_observation_is_logged_once_in_its_step(
    value: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen = np.array([0, 0, value, 0], np.float32)
    monkeypatch.setitem(LATE, "blind", {"observation": seen})
    component = own_env(WrongLate, {"wrong": "blind"}, fresh_env_per_episode=False)
    env = make_env(component, seed=0, num_threads=1, num_envs=3)
    env.reset()
    logged = []
    for _ in range(205):
        env.step(np.zeros(3, np.int64))
        logged.append(len(caplog.records))
    assert logged == [0] * 199 + [1] * 6
    assert "environment 0" in caplog.text
    assert "step 200" in caplog.text


class Bare:
    """Backend that does not derive from `Backend`, so it does not declare what it supports."""

    def __init__(self, num_envs: int, num_threads: int, evaluation: bool = False) -> None: ...


def test_backend_must_derive_from_the_backend_class() -> None:
    component = dataclass_of(Component, {"_target_": "test_env_checked.Bare"}, "env")
    for ask in (describe, gives_masks, lambda env: make_env(env, seed=0, num_threads=1, num_envs=1)):
        with refused("target", "env._target_", "test_env_checked.Bare", "Backend"):
            ask(component)
