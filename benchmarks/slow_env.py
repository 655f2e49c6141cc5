"""A slow environment, as a stand-in for a simulator or a robot."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray


class SlowEnv(gym.Env[NDArray[np.float32], np.int64]):
    """A point on a line that two actions push; all steps take equally long, as do all episodes."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, seconds: float, length: int) -> None:
        """seconds: time that a step sleeps. length: number of steps of an episode."""
        self._seconds, self._length = seconds, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Place the point near the middle."""
        super().reset(seed=seed)
        self._state = self.np_random.normal(size=2).astype(np.float32)
        self._left = self._length
        return self._state.copy(), {}

    def step(self, action: np.int64) -> Any:
        """Sleep and move the point; the reward is highest in the middle."""
        time.sleep(self._seconds)
        position, speed = self._state
        self._state = np.array([position + 0.1 * speed, speed + 0.2 * (2 * int(action) - 1)], np.float32)
        self._left -= 1
        return self._state.copy(), float(np.exp(-(position**2))), False, self._left == 0, {}
