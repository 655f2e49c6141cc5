"""An example vector environment, a `gymnasium.vector.VectorEnv` with a seeded reset of each member."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class VectorCorridor(VectorEnv):
    """Several corridors that are stepped at once. Equal to `corridor.Corridor` for the same seeds."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.DISABLED}

    def __init__(self, num_envs: int, length: int = 8) -> None:
        self.num_envs, self.length = num_envs, length
        self.single_observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)  # left, right
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.cell = np.zeros(num_envs, np.int64)

    def reset(self, *, seed: list[int], options: dict[str, Any]) -> Any:
        """Reset the members in `reset_mask`, each with a generator made from its seed."""
        for env in np.flatnonzero(options["reset_mask"]):
            generator, _ = gym.utils.seeding.np_random(seed[env])  # keep it if steps also draw random numbers
            self.cell[env] = generator.integers(self.length - 1)
        return self._observation(), {}

    def step(self, actions: np.ndarray) -> Any:
        """Move in every corridor by one cell. Reaching the last cell gives a reward of 1."""
        self.cell = np.maximum(0, self.cell + np.where(actions == 1, 1, -1))
        arrived = self.cell >= self.length - 1
        info = {"arrived": arrived, "steps_back": actions != 1}
        return self._observation(), arrived - 1 / self.length, arrived, np.zeros_like(arrived), info

    def _observation(self) -> np.ndarray:
        return (self.cell[:, None] / (self.length - 1)).astype(np.float32)
