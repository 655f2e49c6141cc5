"""Choice of actions from the outputs of a policy network: masks, noise, and conversion to a Box space."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.networks.layers import Array, cast
from labrl.spaces import has_bounds

INVALID = -1e9
"""Logit that gives an invalid action a probability of exactly 0, while all results remain finite."""


def mask_logits(logits: Array, mask: Array | None) -> Array:
    """Return logits with probability 0 where the mask is False (Huang & Ontanon, 2022, arXiv:2006.14171).

    logits, mask: [batch, num_parameters]; mask: None if all actions are valid. Invalid logits receive no
    gradient (section 3 of the paper).
    """
    if mask is None:
        return logits
    if isinstance(logits, Tensor):
        return torch.where(mask, logits, INVALID)
    return np.where(mask, logits, logits.dtype.type(INVALID))


def standard_normal(like: Array, generator: np.random.Generator | None) -> Array:
    """Draw standard normal numbers in the shape of `like`.

    generator: needed if `like` is an array; tensors use torch's global generator.
    """
    if isinstance(like, Tensor):
        return torch.randn_like(like)
    assert generator is not None
    return generator.standard_normal(like.shape, dtype=np.float32)


def clip_to_space(action: Array, low: Any, high: Any, dtype: np.dtype[Any]) -> Array:
    """Clip actions to the bounds of a space and convert them to its dtype, with rounding for integers."""
    if isinstance(action, Tensor):
        inside = action.clip(torch.asarray(low), torch.asarray(high))
    else:  # faster than np.clip
        inside = np.minimum(np.maximum(action, low), high)
    if dtype.kind != "f":
        inside = inside.round()  # truncation would favor 0
    return cast(inside, dtype)


class Actions(ABC):
    """Choice of actions from the outputs of a policy network: the best actions, or sampled ones.

    Arrays and tensors give equal results, so that an exported policy chooses the same actions.
    """

    num_parameters: int
    """Number of outputs of the policy network."""
    stored: gym.Space[Any]
    """Space of the chosen actions, for agents with a replay buffer."""

    @abstractmethod
    def to_env(self, action: Array) -> Array:
        """Convert chosen actions to actions for the environment. [n, ...]"""

    def random(self, count: int, generator: np.random.Generator) -> NDArray:
        """Draw uniform actions, as an agent with a replay buffer does before it learns. [count, ...]"""
        raise NotImplementedError

    @abstractmethod
    def noise(self, parameters: Array, generator: np.random.Generator | None = None) -> Array | None:
        """Draw the noise of a sample. generator: needed for arrays; tensors use torch's generator."""

    @abstractmethod
    def sample_or_mode(self, parameters: Array, noise: Array | None = None) -> Array:
        """Return an action for each row. noise: result of `noise` for a sample, None for the best action."""

    def sample(self, parameters: NDArray, generator: np.random.Generator) -> NDArray:
        """Draw an action for each row. [batch, *action_shape]"""
        return self.sample_or_mode(parameters, self.noise(parameters, generator))

    def mode(self, parameters: NDArray) -> NDArray:
        """Return the best action for each row. [batch, *action_shape]"""
        return self.sample_or_mode(parameters)

    def forward_torch(self, parameters: Tensor, sampled: bool) -> Tensor:
        """Return actions for the environment from an exported policy: sampled ones or the best ones."""
        return self.to_env(self.sample_or_mode(parameters, self.noise(parameters) if sampled else None))


class BoxActions:
    """Conversion of flat actions in [-1, 1] to actions of a bounded Box space."""

    def __init__(self, space: gym.spaces.Box, precision: type[np.floating] | None = None) -> None:
        """precision: dtype in which the bounds are computed; None for that of the space, at least float32."""
        self.size = math.prod(space.shape)
        """Number of components of an action."""
        self.stored: gym.Space[Any] = gym.spaces.Box(-1.0, 1.0, (self.size,), np.float32)
        """Space of the stored actions."""
        self._shape, self._dtype = space.shape, space.dtype
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        wide = precision or np.result_type(space.dtype, np.float32)  # differences overflow in float16
        self._low, self._high = low, high = low.astype(wide), high.astype(wide)
        self._middle, self.half = (low + high) / 2, (high - low) / 2

    @staticmethod
    def fits(space: gym.spaces.Box) -> bool:
        """Return whether a Box space is bounded and has a floating-point dtype."""
        return has_bounds(space) and np.issubdtype(space.dtype, np.floating)

    def to_env(self, action: Array) -> Array:
        """Scale actions to the bounds. [n, size] -> [n, *action]"""
        middle: Any = self._middle
        half: Any = self.half
        if isinstance(action, Tensor):
            middle, half = torch.asarray(middle), torch.asarray(half)
        scaled = middle + action * half
        # Some environments reject actions that exceed the bounds by a rounding error.
        return clip_to_space(scaled, self._low, self._high, self._dtype).reshape(-1, *self._shape)

    def random(self, count: int, generator: np.random.Generator) -> NDArray[np.float32]:
        """Draw uniform actions in [-1, 1]. [count, size]"""
        return generator.random((count, self.size), np.float32) * np.float32(2) - np.float32(1)
