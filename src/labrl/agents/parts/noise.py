"""Noise that a deterministic policy explores with: a part of TD3 and DDPG, chosen by `agent/noise`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.schedules import value_at
from labrl.types import NonNegativeSchedule, Probability


class ActionNoise:
    """Noise that is added to actions in (-1, 1). Built as `Target(config, num_envs=int, size=int)`."""

    def sample(self, frame: int, generator: np.random.Generator) -> NDArray[np.float32]:
        """Draw the noise of one vector step. [num_envs, size]"""
        raise NotImplementedError

    def strength(self, frame: int) -> float:
        """Return what a metrics row calls `exploration`: the coefficient at `frame`."""
        raise NotImplementedError

    def begin(self, envs: NDArray[np.bool_]) -> None:
        """Take in which environments begin a new episode. [num_envs]"""

    def state_dict(self) -> dict[str, Any]:
        """Return what it remembers, apart from the generator."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""


@dataclass(kw_only=True)
class GaussianNoiseConfig:
    """Independent of all before (Fujimoto et al., 2018, arXiv:1802.09477)."""

    std: NonNegativeSchedule
    """Standard deviation of the noise on actions scaled to (-1, 1), >= 0."""


class GaussianNoise(ActionNoise):
    """A normal number for each part of each action."""

    Config = GaussianNoiseConfig

    def __init__(self, config: GaussianNoiseConfig, num_envs: int, size: int) -> None:
        self._config, self._shape = config, (num_envs, size)

    def sample(self, frame: int, generator: np.random.Generator) -> NDArray[np.float32]:
        """Draw the noise of one vector step. [num_envs, size]"""
        return generator.standard_normal(self._shape, np.float32) * np.float32(self.strength(frame))

    def strength(self, frame: int) -> float:
        """Return the standard deviation."""
        return value_at(self._config.std, frame)


@dataclass(kw_only=True)
class OrnsteinUhlenbeckNoiseConfig:
    """Pushes that last, for tasks with inertia (Lillicrap et al., 2016, arXiv:1509.02971)."""

    std: NonNegativeSchedule
    """Standard deviation sigma of what is added at each step, on actions scaled to (-1, 1), >= 0; in the
    long run the noise has a deviation of about sigma / sqrt(2 theta)."""
    theta: Probability
    """Fraction of the noise that decays at each step, in [0, 1]; noise lasts for about 1 / theta steps."""


class OrnsteinUhlenbeckNoise(ActionNoise):
    """x <- x - theta x + sigma N(0, 1), from 0 in each episode."""

    Config = OrnsteinUhlenbeckNoiseConfig

    def __init__(self, config: OrnsteinUhlenbeckNoiseConfig, num_envs: int, size: int) -> None:
        self._config, self._x = config, np.zeros((num_envs, size), np.float32)

    def sample(self, frame: int, generator: np.random.Generator) -> NDArray[np.float32]:
        """Draw the noise of one vector step. [num_envs, size]"""
        push = generator.standard_normal(self._x.shape, np.float32) * np.float32(self.strength(frame))
        self._x = self._x * np.float32(1 - self._config.theta) + push
        return self._x

    def strength(self, frame: int) -> float:
        """Return sigma."""
        return value_at(self._config.std, frame)

    def begin(self, envs: NDArray[np.bool_]) -> None:
        """Start from 0 again. [num_envs]"""
        self._x = np.where(envs[:, None], np.float32(0), self._x)

    def state_dict(self) -> dict[str, Any]:
        """Return the noise of the last step."""
        return {"x": self._x.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from it."""
        self._x = np.array(state["x"], np.float32)
