"""An example environment, a gymnasium.Env."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Corridor(gym.Env):
    """Walk from a random cell to the right end of a corridor. Every step costs 1 / length."""

    def __init__(self, length: int = 8) -> None:
        self.length = length
        self.observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)  # left, right
        self.cell = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start in a random cell, except the last one."""
        super().reset(seed=seed)
        self.cell = int(self.np_random.integers(self.length - 1))
        return self._observation(), {}

    def step(self, action: int) -> Any:
        """Move one cell to the left (0) or right (1). Reaching the last cell gives a reward of 1."""
        self.cell = max(0, self.cell + (1 if action == 1 else -1))
        arrived = self.cell >= self.length - 1
        info = {"arrived": arrived, "steps_back": action != 1}
        return self._observation(), float(arrived) - 1 / self.length, arrived, False, info

    def _observation(self) -> np.ndarray:
        return np.array([self.cell / (self.length - 1)], np.float32)
