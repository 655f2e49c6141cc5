"""Actions in a box as learners see them, in (-1, 1), and the Gaussian that tanh squashes into it."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.errors import InputError
from labrl.networks.spaces import has_bounds

LOG_STD_RANGE = (-20.0, 2.0)
"""Log standard deviations are kept between these, as in the code of Haarnoja et al. (2018)."""


class BoxActions:
    """Between actions in [-1, 1], one flat row each, and those of a bounded box."""

    def __init__(self, space: gym.spaces.Box) -> None:
        self.size = math.prod(space.shape)
        """Numbers in one action."""
        self.stored = gym.spaces.Box(-1.0, 1.0, (self.size,), np.float32)
        """The space of what a memory keeps."""
        self._shape, self._dtype = space.shape, space.dtype
        self._low, self._high = space.low.reshape(-1), space.high.reshape(-1)
        self._middle, self._half = (self._low + self._high) / 2, (self._high - self._low) / 2

    @classmethod
    def check(cls, space: gym.spaces.Box, agent: str) -> None:
        """Raises InputError for a box without bounds, or of whole numbers."""
        if not has_bounds(space) or not np.issubdtype(space.dtype, np.floating):
            raise InputError(
                f"agent: {agent} rescales its actions from (-1, 1) to the bounds of a box of real numbers; "
                f"this environment's actions are {space}. agent=ppo clips its actions and needs no bounds.",
                code="unsupported",
                key="agent",
            )

    def to_env(self, action: NDArray) -> NDArray:
        """Rescaled to the bounds. [n, size] -> [n, *action]"""
        # A rounding error beyond the bounds would be refused by some environments.
        scaled = np.clip(self._middle + action * self._half, self._low, self._high)
        return scaled.astype(self._dtype, copy=False).reshape(-1, *self._shape)

    def random(self, count: int, generator: np.random.Generator) -> NDArray[np.float32]:
        """Uniform actions in [-1, 1]. [count, size]"""
        return generator.random((count, self.size), np.float32) * np.float32(2) - np.float32(1)


def gaussian_parameters(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log standard deviation before squashing: [batch, 2 size] -> [batch, size] each."""
    mean, log_std = outputs.chunk(2, dim=1)
    return mean, log_std.clamp(*LOG_STD_RANGE)


def log_tanh_slope(u: Tensor) -> Tensor:
    """log d tanh(u)/du = log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)). The same shape.

    It stays finite, and keeps its digits, where tanh(u) rounds to 1.
    """
    return 2 * (math.log(2) - u - torch.nn.functional.softplus(-2 * u))


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh of a Gaussian sample, and its log-density (Haarnoja et al., 2018, arXiv:1812.05905, eq. 26).

    log pi(a) = log N(u) - sum log(1 - tanh(u)^2).

    mean, log_std, noise: [batch, size], the noise standard normal. Returns [batch, size] and [batch].
    """
    u = torch.addcmul(mean, log_std.exp(), noise)
    normal = -0.5 * noise.square() - log_std
    constant = 0.5 * math.log(2 * math.pi) * mean.shape[1]
    return u.tanh(), (normal - log_tanh_slope(u)).sum(1) - constant
