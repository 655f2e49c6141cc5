"""Noise for the exploration of deterministic policies (`agent/noise`) and for state-dependent exploration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.networks.layers import StateDependentConfig
from labrl.schedules import value_at
from labrl.types import NonNegativeSchedule, Probability


class ActionNoise:
    """Noise that is added to actions in (-1, 1). Built as `Target(config, num_envs=int, size=int)`."""

    def sample(self, frame: int, generator: np.random.Generator) -> NDArray[np.float32]:
        """Draw the noise of one vector step. [num_envs, size]"""
        raise NotImplementedError

    def strength(self, frame: int) -> float:
        """Return the noise coefficient at `frame`, which is the column `exploration` of a metrics row."""
        raise NotImplementedError

    def begin(self, envs: NDArray[np.bool_]) -> None:
        """Reset the noise of the environments that begin a new episode. [num_envs]"""

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state except the generator."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""


class HeldNoise:
    """Standard normal noise for state-dependent exploration; each environment keeps it for several steps."""

    def __init__(self, config: StateDependentConfig, num_envs: int, head: Any) -> None:
        """head: ExploringHead that uses the noise."""
        self._steps, self._left = config.steps, 0
        self._noise: NDArray[np.float32] = np.zeros((num_envs, *head.log_std.shape), np.float32)

    def sample(self, generator: np.random.Generator) -> NDArray[np.float32]:
        """Return the noise of one vector step, drawn anew after `steps` steps. [num_envs, features, size]"""
        if not self._left:
            self._noise = generator.standard_normal(size=self._noise.shape, dtype=np.float32)
            self._left = self._steps
        self._left -= 1
        return self._noise

    def state_dict(self) -> dict[str, Any]:
        """Return the noise, and the number of steps for which it is still kept."""
        return {"left": self._left, "noise": self._noise.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._left, self._noise = int(state["left"]), state["noise"]


@dataclass(kw_only=True)
class GaussianNoiseConfig:
    """Independent Gaussian noise in each step (Fujimoto et al., 2018, arXiv:1802.09477)."""

    std: NonNegativeSchedule
    """Standard deviation of the noise that is added to actions scaled to (-1, 1), >= 0."""


class GaussianNoise(ActionNoise):
    """Gaussian noise, independent for each component of each action."""

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
    """Temporally correlated noise, for tasks with inertia (Lillicrap et al., 2016, arXiv:1509.02971)."""

    std: NonNegativeSchedule
    """Standard deviation sigma of the increment in each step, >= 0, for actions scaled to (-1, 1); the
    stationary standard deviation of the noise is about sigma / sqrt(2 theta)."""
    theta: Probability
    """Fraction of the noise that decays in each step, in [0, 1]; noise lasts for about 1 / theta steps."""


class OrnsteinUhlenbeckNoise(ActionNoise):
    """Ornstein-Uhlenbeck noise x <- x - theta x + sigma N(0, 1), starting from 0 in each episode."""

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
        """Reset the noise to 0 where `envs` is true. [num_envs]"""
        self._x = np.where(envs[:, None], np.float32(0), self._x)

    def state_dict(self) -> dict[str, Any]:
        """Return the noise of the last step."""
        return {"x": self._x.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._x = np.array(state["x"], np.float32)
