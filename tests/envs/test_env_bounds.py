"""Tests of the warnings about observations outside the bounds of their space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from env_cases import own_env
from gymnasium import spaces

from labrl.envs.description import description_of

BYTES = spaces.Box(0, 255, (2,), np.uint8)
BOX = spaces.Box(-1, 1, (2,), np.float32)


CASES: list[tuple[spaces.Space[Any], Any, bool]] = [
    (BOX, np.array([0, 1.5], np.float32), True),
    (BOX, np.array([0, -2], np.float32), True),
    (BOX, np.array([1.0001, -1], np.float32), False),
    (BOX, np.array([np.nan, 0], np.float32), False),
    (spaces.Box(-np.inf, np.inf, (2,), np.float32), np.full(2, 1e9, np.float32), False),
    (spaces.Box(0, 3, (2,), np.int64), np.array([0, 4]), True),
    (spaces.Dict({"a": BOX, "b": BOX}), {"a": np.zeros(2), "b": np.array([0, 2.0])}, True),
    (BYTES, np.array([0, 1], np.uint8), True),
    (BYTES, np.array([0, 2], np.uint8), False),
    (spaces.Box(0, 1, (2,), np.uint8), np.array([0, 1], np.uint8), False),
]
"""A space, a value that is shown in each step, and whether there is a warning."""


class Shows(gym.Env[Any, Any]):
    """An environment that shows the same values in each step."""

    action_space: Any = spaces.Discrete(2)

    def __init__(self, case: int) -> None:
        self.observation_space, self._seen, _ = CASES[case]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._seen, {}

    def step(self, action: Any) -> Any:
        return self._seen, 0.0, False, False, {}


@pytest.mark.parametrize("case", range(len(CASES)))
def test_value_that_does_not_suit_its_bounds_is_reported_once(
    case: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = own_env(Shows, {"case": case}).config
    description_of(config)
    description_of(config)
    assert len(caplog.records) == CASES[case][-1]
