"""Observations that do not fit their space are told with their step, and never altered in silence."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from env_cases import own_env
from gymnasium import spaces

from labrl.envs.make import gives_masks, make_env
from labrl.errors import InputError

BOX = spaces.Box(-1, 1, (4,))
BYTES = spaces.Box(0, 255, (2,), np.uint8)
BOTH = spaces.Dict({"d": spaces.Discrete(3, start=1), "x": spaces.Tuple((BOX, spaces.MultiDiscrete([2, 3])))})
ZEROS = np.zeros(4, np.float32)
GOOD = {"d": 1, "x": (ZEROS, np.array([1, 2]))}

CASES: dict[str, tuple[spaces.Space, Any, Any, str]] = {
    "stretched": (BOX, ZEROS, np.float32(0.5), r"its observation has the shape \(\); its space is Box"),
    "cut off": (
        BYTES,
        np.zeros(2),
        np.array([0, 0.5]),
        r"holds 0\.5, which uint8 does not; its space is Box",
    ),
    "too large": (BYTES, [0, 255], [0, 256], r"holds 256, which uint8 does not"),
    "rounded": (
        spaces.Discrete(5),
        2.0,
        2.7,
        r"holds 2\.7, which int64 does not; its space is Discrete\(5\)",
    ),
    "no choice": (spaces.Discrete(5), np.int64(4), 5, r"its observation is 5; its space is Discrete\(5\)"),
    "no flags": (
        spaces.MultiBinary(2),
        np.array([1, 0], np.int8),
        np.array([1, 2], np.int8),
        r"is \[1 2\]; its space",
    ),
    "ragged": (BOX, ZEROS, [[1], [1, 2]], r"its observation is no array"),
    "words": (BOX, ZEROS, ["a"] * 4, r"its observation is of type list"),
    "none": (BOTH, GOOD, None, r"its observation is a NoneType; its space is a dict"),
    "missing": (BOTH, GOOD, {"d": 1}, r"its observation lacks 'x', which its space has"),
    "short": (BOTH, GOOD, {**GOOD, "x": (ZEROS,)}, r"its observation\['x'\] lacks 1, which its space has"),
    "below": (
        BOTH,
        GOOD,
        {**GOOD, "d": 0},
        r"its observation\['d'\] is 0; its space is Discrete\(3, start=1\)",
    ),
    "beyond": (
        BOTH,
        GOOD,
        {**GOOD, "x": (ZEROS, np.array([1, 3]))},
        r"its observation\['x'\]\[1\] is \[1 3\]",
    ),
}


class Strays(gym.Env[Any, Any]):
    """The fourth step of each episode gives what the case has last; others what it has before."""

    action_space: Any = spaces.Discrete(2)

    def __init__(self, case: str) -> None:
        self.observation_space, self._good, self._bad, _ = CASES[case]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._steps = 0
        return self._good, {"path": [seed]}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return self._bad if self._steps == 4 else self._good, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("case", "vectorization"),
    [*((case, "sync") for case in CASES), ("stretched", "async"), ("missing", "async")],
)
def test_what_does_not_fit_is_refused_where_it_comes(case: str, vectorization: str) -> None:
    settings = {"vectorization": vectorization, "fresh_env_per_episode": False}
    env = make_env(own_env(Strays, {"case": case}, **settings), seed=0, num_threads=1, num_envs=2)
    env.reset()
    for _ in range(3):
        env.step(np.zeros(2, np.int64))
    said = r"toy: environment \d after step 4 of its episode: .*" + CASES[case][-1]
    with pytest.raises(ValueError, match=said):
        env.step(np.zeros(2, np.int64))
    env.close()


class Pays(Strays):
    """The fourth step of each episode has another reward."""

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
def test_a_reward_is_one_number(reward: Any, refused: bool) -> None:
    settings = {"fresh_env_per_episode": False}
    env = make_env(own_env(Pays, {"reward": reward}, **settings), seed=0, num_threads=1, num_envs=2)
    env.reset()
    for _ in range(3):
        env.step(np.zeros(2, np.int64))
    if refused:
        with pytest.raises(
            ValueError, match=r"environment 0 after step 4 of its episode: its reward is .*one"
        ):
            env.step(np.zeros(2, np.int64))
    else:
        assert env.step(np.zeros(2, np.int64)).reward.tolist() == [float(reward)] * 2
    env.close()


SEEN, SCALAR = np.zeros(4, np.float32), np.array(0.5)
ANSWERS: dict[str, tuple[Any, Any, str | None]] = {
    "four values": (
        None,
        (SEEN, 0.0, False, {}),
        r"Returns\.step\(\) .*5 values.*ndarray, float, bool, dict",
    ),
    "six values": (None, (SEEN, 0.0, False, False, {}, {}), r"Returns\.step\(\) .*5 values"),
    "nothing": (None, "None", r"Returns\.step\(\) .*5 values.*None"),
    "no info at the reset": (SEEN, None, r"Returns\.reset\(\) .*2 values.*ndarray"),
    "of two numbers": (np.zeros(2), None, r"Returns\.reset\(\) .*2 values.*ndarray"),
    "three at the reset": ((SEEN, {}, {}), None, r"Returns\.reset\(\) .*2 values"),
    "info of the reset": ((SEEN, None), None, r"after its reset: its info is None"),
    "info of a step": (None, (SEEN, 0.0, False, False, []), r"after step 3 of its episode: its info is \[\]"),
    "no reward": (None, (SEEN, None, False, False, {}), r"step 3 of its episode: its reward is None"),
    "rewards": (None, (SEEN, np.zeros(2), False, False, {}), r"its reward is array\(\[0\., 0\.\]\)"),
    "no flag": (None, (SEEN, 0.0, None, False, {}), r"its terminated is None"),
    "words": (None, (SEEN, 0.0, False, "no", {}), r"its truncated is 'no'"),
    "flags": (None, (SEEN, 0.0, [False], False, {}), r"its terminated is \[False\]"),
    "fine": (None, [SEEN, SCALAR, np.bool_(False), np.array([0]), {}], None),
}


class Returns(Strays):
    """Its reset or third step returns what the case has."""

    def __init__(self, case: str, at: int = 3) -> None:
        self.observation_space, self._good = BOX, SEEN
        self._bad, self._at = SEEN, at
        self._reset, self._step, _ = ANSWERS[case]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        answer = super().reset(seed=seed, options=options)
        return answer if self._reset is None else self._reset

    def step(self, action: Any) -> Any:
        answer = super().step(action)
        if self._step is None or self._steps < self._at:
            return answer
        return None if self._step == "None" else self._step


@pytest.mark.parametrize(
    ("case", "more"),
    [
        *((case, {}) for case in ANSWERS),
        ("four values", {"vectorization": "async"}),
        ("info of a step", {"vectorization": "async"}),
        ("nothing", {"max_episode_steps": 50}),
    ],
)
def test_an_answer_has_the_values_that_gymnasium_asks_for(case: str, more: dict[str, Any]) -> None:
    wrong = ANSWERS[case][2]
    settings = {"fresh_env_per_episode": False, **more}
    if wrong is not None:
        with pytest.raises(InputError, match=rf"env\.name=toy: .*{wrong.replace('step 3', 'step 1')}"):
            gives_masks(own_env(Returns, {"case": case, "at": 1}, **settings))
    settings["action_mask"] = False  # nothing is tried before the run
    env = make_env(own_env(Returns, {"case": case}, **settings), seed=0, num_threads=1, num_envs=2)
    zeros = np.zeros(2, np.int64)
    try:
        if wrong is None:
            env.reset()
            assert [env.step(zeros).reward[0] for _ in range(4)] == [0, 0, 0.5, 0.5]
        else:
            with pytest.raises(ValueError, match=wrong):
                [env.reset(), *(env.step(zeros) for _ in range(3))]
    finally:
        env.close()


class Wrapped(gym.ObservationWrapper[Any, Any, Any]):
    """Fails with a remark on unpacking where what it wraps has another number of values."""

    def __init__(self, case: str) -> None:
        super().__init__(Returns(case, at=1))

    def observation(self, observation: Any) -> Any:
        return observation


@pytest.mark.parametrize("case", ["four values", "nothing", "no info at the reset"])
def test_the_environment_inside_wrappers_of_somebody_is_named(case: str) -> None:
    with pytest.raises(InputError, match=ANSWERS[case][2]):
        gives_masks(own_env(Wrapped, {"case": case}))


class TakesNoSeed(Strays):
    """As Gym's first environments were written."""

    def __init__(self) -> None:
        self.observation_space = BOX

    def reset(self) -> Any:  # type: ignore[override]
        return SEEN, {}


def test_a_reset_that_takes_no_seed_is_refused_with_what_it_must_take() -> None:
    with pytest.raises(InputError, match=r"TakesNoSeed\.reset\(\) .*seed=None, options=None"):
        gives_masks(own_env(TakesNoSeed))


FINE: dict[str, tuple[spaces.Space, Any]] = {
    "beyond a bound": (BOX, np.full(4, 1.5)),
    "whole numbers": (BOX, [0, 1, 0, 1]),
    "of a wider type": (BYTES, np.array([0, 255])),
    "flags": (spaces.MultiBinary(2), np.array([True, False])),
    "one more input": (BOTH, {**GOOD, "more": "of it"}),
    "a list for a tuple": (BOTH, {**GOOD, "x": [ZEROS, [0, 1]]}),
}


class Fits(Strays):
    """Gives what the case has."""

    def __init__(self, case: str) -> None:
        self.observation_space, self._good = FINE[case]
        self._bad = self._good


@pytest.mark.parametrize("case", FINE)
def test_what_is_kept_as_it_is_goes_on(case: str) -> None:
    env = make_env(own_env(Fits, {"case": case}), seed=0, num_threads=1, num_envs=2)
    env.reset()
    for _ in range(5):
        env.step(np.zeros(2, np.int64))
