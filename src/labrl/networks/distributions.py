"""Distributions over actions: plain functions of a network's outputs, without objects per call.

A distribution is built once for an action space. Its parameters are one tensor `[batch, num_parameters]`.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.config.errors import ConfigError


class ActionDistribution(Protocol):
    """What a policy-gradient agent needs of its policy."""

    num_parameters: int
    """Columns of the parameters."""
    action_shape: tuple[int, ...]
    """Shape of one sampled action as the agent stores it."""
    action_dtype: torch.dtype

    def sample(self, parameters: NDArray, generator: np.random.Generator) -> NDArray:
        """One action for each row, [batch, *action_shape]."""
        ...

    def mode(self, parameters: NDArray) -> NDArray:
        """The most likely action for each row, [batch, *action_shape]."""
        ...

    def log_prob_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of each action and entropy of each row, [batch] both."""
        ...

    def to_env(self, action: NDArray) -> NDArray:
        """Sampled actions as the environment takes them, [batch, ...]."""
        ...

    def statistics(self, parameters: Tensor, action: Tensor) -> dict[str, float]:
        """What a metrics row says of the actions taken."""
        ...


class Categorical:
    """Over a discrete space; the parameters are unnormalized log-probabilities."""

    def __init__(self, space: gym.spaces.Discrete) -> None:
        self.num_parameters = int(space.n)
        self.action_shape: tuple[int, ...] = ()
        self.action_dtype = torch.int64
        self._first = int(space.start)

    def sample(self, parameters: NDArray, generator: np.random.Generator) -> NDArray:
        """Gumbel-max: the argmax of logits plus Gumbel noise is a sample. [batch]"""
        return np.argmax(parameters + generator.gumbel(size=parameters.shape), axis=1)

    def mode(self, parameters: NDArray) -> NDArray:
        """The action with the largest logit. [batch]"""
        return np.argmax(parameters, axis=1)

    def log_prob_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Exact for both. [batch] both."""
        log_p = torch.log_softmax(parameters, dim=1)
        entropy = -(log_p.exp() * log_p).sum(1)
        return log_p.gather(1, action.unsqueeze(1)).squeeze(1), entropy

    def to_env(self, action: NDArray) -> NDArray:
        """Counted from the space's first action. [batch]"""
        return action + self._first if self._first else action

    def statistics(self, parameters: Tensor, action: Tensor) -> dict[str, float]:
        """Share of the most frequent action: 1 is a policy that has collapsed to one action."""
        counts = torch.bincount(action.flatten(), minlength=self.num_parameters)
        return {"action_top_share": float(counts.max()) / max(action.numel(), 1)}


class DiagonalGaussian:
    """Over a box; the parameters are means and log standard deviations, side by side.

    Samples are unbounded; the environment gets them clipped to the bounds of the space.
    """

    def __init__(self, space: gym.spaces.Box) -> None:
        self.action_shape = tuple(space.shape)
        self.num_parameters = 2 * int(np.prod(self.action_shape))
        self.action_dtype = torch.float32
        self._low, self._high, self._dtype = space.low, space.high, space.dtype

    def sample(self, parameters: NDArray, generator: np.random.Generator) -> NDArray:
        """Mean plus scaled noise. [batch, *action_shape]"""
        mean, log_std = np.split(parameters, 2, axis=1)
        noise = generator.standard_normal(mean.shape, dtype=np.float32)
        return (mean + np.exp(log_std) * noise).reshape(-1, *self.action_shape)

    def mode(self, parameters: NDArray) -> NDArray:
        """The mean. [batch, *action_shape]"""
        return np.split(parameters, 2, axis=1)[0].reshape(-1, *self.action_shape)

    def log_prob_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the dimensions of the action. [batch] both."""
        mean, log_std = parameters.chunk(2, dim=1)
        normed = (action.flatten(1) - mean) * torch.exp(-log_std)
        constant = 0.5 * math.log(2 * math.pi)
        log_prob = (-0.5 * normed.square() - log_std - constant).sum(1)
        return log_prob, (log_std + constant + 0.5).sum(1)

    def to_env(self, action: NDArray) -> NDArray:
        """Clipped to the bounds of the space. [batch, *action_shape]"""
        return np.clip(action, self._low, self._high).astype(self._dtype, copy=False)

    def statistics(self, parameters: Tensor, action: Tensor) -> dict[str, float]:
        """Mean standard deviation, and the share of sampled components outside the bounds."""
        low = torch.as_tensor(self._low, device=action.device)
        high = torch.as_tensor(self._high, device=action.device)
        clipped = (action < low) | (action > high)
        return {
            "action_std": float(parameters.chunk(2, dim=-1)[1].exp().mean()),
            "action_clipped_share": float(clipped.float().mean()),
        }


def distribution_for(space: gym.Space[Any], agent: str) -> ActionDistribution:
    """The distribution over an action space. Raises ConfigError for a space that `agent` cannot act in."""
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(space)
    if isinstance(space, gym.spaces.Box):
        return DiagonalGaussian(space)
    raise ConfigError(f"{agent} acts in Discrete and Box spaces; this environment's actions are {space}.")
