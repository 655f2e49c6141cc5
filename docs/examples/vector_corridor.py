"""An example backend: several environments that are stepped at once, each with seeded resets of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import gymnasium as gym
import numpy as np
from pydantic import Field

from labrl.config.schema import EnvironmentConfig
from labrl.envs.protocol import Backend, Transition
from labrl.types import PositiveInt


@dataclass(kw_only=True)
class VectorCorridorConfig(EnvironmentConfig):
    """Several corridors of the same length."""

    length: Annotated[int, Field(ge=2)]
    """Number of cells, >= 2."""
    max_episode_steps: PositiveInt
    """Steps after which an episode is truncated, >= 1."""


class VectorCorridor(Backend):
    """Several corridors that are stepped at once. Equal to `corridor.Corridor` for the same seeds."""

    Config = VectorCorridorConfig
    frame_skip = 1

    def __init__(
        self, config: VectorCorridorConfig, *, num_envs: int, num_threads: int, evaluation: bool = False
    ) -> None:
        self.name, self.num_envs, self.config = config.name, num_envs, config
        self.observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)  # left, right
        self.cell = np.zeros(num_envs, np.int64)
        self.steps = np.zeros(num_envs, np.int64)

    def reset(self, mask: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        """Start new episodes in the environments of `mask`, each with a generator made from its seed."""
        for env in np.flatnonzero(mask):
            generator, _ = gym.utils.seeding.np_random(int(seeds[env]))  # keep it if steps also draw numbers
            self.cell[env] = generator.integers(self.config.length - 1)
        self.steps[mask] = 0
        return self._observation()

    def step(self, actions: np.ndarray) -> Transition:
        """Move in every corridor by one cell. Reaching the last cell gives a reward of 1."""
        self.cell = np.maximum(0, self.cell + np.where(actions == 1, 1, -1))
        self.steps += 1
        arrived = self.cell >= self.config.length - 1
        late = self.steps >= self.config.max_episode_steps
        self.info = {"arrived": arrived, "steps_back": actions != 1}
        return Transition(self._observation(), arrived - 1 / self.config.length, arrived, late, arrived)

    def close(self) -> None:
        """Do nothing, because there is nothing to free."""

    def _observation(self) -> np.ndarray:
        return (self.cell[:, None] / (self.config.length - 1)).astype(np.float32)
