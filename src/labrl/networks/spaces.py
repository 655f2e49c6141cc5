"""The spaces that networks and agents are built for, and observations as networks read them: choices one-hot,
bytes as shares of a range, inputs side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

if TYPE_CHECKING:
    from labrl.observations import Goals


@dataclass(frozen=True)
class Spaces:
    """Observation and action spaces of an agent, and the number of environments."""

    observation: gym.Space[Any]
    """Observation space of a single environment."""
    action: gym.Space[Any]
    """Action space of a single environment."""
    num_envs: int
    """Number of environments stepped together."""
    masked: bool = False
    """Whether the environment says which actions are valid."""
    goals: Goals | None = None
    """Computes the rewards of other goals; None where there are no goals."""


def stored_choices(space: gym.Space[Any]) -> gym.Space[Any]:
    """`space` with choices as numbers that torch takes for indices, whatever type the environment takes."""
    if isinstance(space, gym.spaces.Discrete):
        return gym.spaces.Discrete(int(space.n), start=int(space.start))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return gym.spaces.MultiDiscrete(space.nvec)
    return space


def sees_images(space: gym.Space[Any]) -> bool:
    """Return whether observations are pixels, or pixels are among several inputs."""
    return (
        any(map(is_image, space.spaces.values())) if isinstance(space, gym.spaces.Dict) else is_image(space)
    )


def several_images(space: gym.Space[Any]) -> bool:
    """Return whether pixels are among several inputs."""
    return isinstance(space, gym.spaces.Dict) and sees_images(space)


def is_image(space: gym.Space[Any]) -> bool:
    """Return whether observations are pixels: three axes of bytes."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 3 and space.dtype == "uint8"


def is_vector(space: gym.Space[Any]) -> bool:
    """Return whether observations are real numbers that an action can stand beside."""
    return (
        isinstance(space, gym.spaces.Box) and not is_image(space) and np.issubdtype(space.dtype, np.floating)
    )


def has_bounds(space: gym.spaces.Box) -> bool:
    """Return whether a box is bounded on every side; the largest numbers of a type are no bounds."""
    number = np.result_type(space.dtype, np.float16)  # flags cannot be subtracted
    with np.errstate(over="ignore"):
        width = np.subtract(space.high, space.low, dtype=number)
    return bool(space.is_bounded() and np.isfinite(width).all())


def choices_of(space: gym.Space[Any]) -> list[tuple[int, int]]:
    """(first value, number of values) of each choice that makes an observation; none for numbers."""
    if isinstance(space, gym.spaces.Discrete):
        return [(int(space.start), int(space.n))]
    if isinstance(space, gym.spaces.MultiDiscrete):
        return [(int(first), int(n)) for first, n in zip(space.start.flat, space.nvec.flat, strict=True)]
    return []


def range_of(space: gym.Space[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]] | float:
    """The range of bytes, which networks read as shares of it: from 0 to 1.

    The largest value where all begin at 0 and have the same, 255 for most pixels and RAM; otherwise the
    smallest values and the widths, each of the shape of `space`. 1 for all but bytes, which stay as they are.
    """
    if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8:
        return 1.0
    low = space.low.astype(np.float32)
    width = np.maximum(space.high - low, np.float32(1))  # 1 where a byte never changes
    same = not low.any() and (width == width.flat[0]).all()
    return float(width.flat[0]) if same else (low, width)


class Shares(nn.Module):
    """Bytes as shares of their ranges, where these differ or do not begin at 0."""

    low: Tensor
    width: Tensor

    def __init__(self, low: NDArray[np.float32], width: NDArray[np.float32]) -> None:
        """low, width: smallest values and widths of the ranges, in the shape of an observation."""
        super().__init__()
        self.register_buffer("low", torch.tensor(low), persistent=False)
        self.register_buffer("width", torch.tensor(width), persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """[batch, *shape] -> [batch, *shape], in [0, 1]"""
        return (numbers - self.low) / self.width


class Numbers(nn.Module):
    """Observations as rows of numbers, choices one-hot, bytes as shares of the range of their space."""

    def __init__(self, space: gym.Space[Any], shares: bool = True) -> None:
        """shares: otherwise bytes stay as they are."""
        super().__init__()
        self._size, self._choices = math.prod(space.shape or ()), choices_of(space)
        bounds = range_of(space) if shares else 1.0
        self._unit = 1.0 if isinstance(bounds, tuple) else 1 / bounds
        self.shares = Shares(*(part.ravel() for part in bounds)) if isinstance(bounds, tuple) else None

    def forward(self, observation: Tensor) -> Tensor:
        """[batch, *obs] -> [batch, size], float32"""
        rows = observation.reshape(-1, self._size)
        if self._choices:
            columns = [rows[:, i].long() - first for i, (first, _) in enumerate(self._choices)]
            pairs = zip(columns, self._choices, strict=True)
            rows = torch.cat([nn.functional.one_hot(column, n) for column, (_, n) in pairs], dim=1)
        numbers = rows.float()
        if self.shares is not None:
            return self.shares(numbers)
        return numbers if self._unit == 1 else numbers * self._unit


def numbers(space: gym.Space[Any], shares: bool = True) -> list[nn.Module]:
    """The module that makes rows of numbers of observations; none where they are such rows.

    Agents give real numbers as float32.
    """
    if (
        not isinstance(space, gym.spaces.Box)
        or not space.shape
        or space.dtype not in (np.float32, np.float64)
    ):
        return [Numbers(space, shares)]
    return [] if len(space.shape) == 1 else [nn.Flatten()]


def vector_space(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return the space that networks see: for several inputs without images, one vector."""
    if isinstance(space, gym.spaces.Dict) and not sees_images(space):
        return SideBySide(space).space
    return space


class SideBySide:
    """Inputs that are no images as one vector of real numbers, choices one-hot."""

    def __init__(self, space: gym.spaces.Dict) -> None:
        self._parts = [(name, choices_of(inner), range_of(inner)) for name, inner in space.spaces.items()]
        size = sum(gym.spaces.flatdim(inner) for inner in space.spaces.values())
        self.space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        """Space of the vector."""

    def __call__(self, observation: Any) -> Any:
        """A batch with a field for each input -> [batch, size], float32; of tensors by name, a tensor."""
        if isinstance(observation, dict):
            parts = [_tensor(observation[name], choices, bounds) for name, choices, bounds in self._parts]
            return torch.cat(parts, dim=1)
        columns = [_numbers(observation[name], choices, bounds) for name, choices, bounds in self._parts]
        return np.concatenate(columns, axis=1, dtype=np.float32)


def _tensor(values: Tensor, choices: list[tuple[int, int]], bounds: Any) -> Tensor:
    """Return a tensor of values as numbers in float32, as `_numbers` does for an array."""
    if not choices and isinstance(bounds, tuple):
        low, width = map(torch.from_numpy, bounds)
        return ((values - low) / width).flatten(1)
    rows = values.reshape(values.shape[0], -1)
    if not choices:
        return rows.float() if bounds == 1 else rows.float() * (1 / bounds)
    columns = [nn.functional.one_hot(rows[:, i].long() - first, n) for i, (first, n) in enumerate(choices)]
    return torch.cat(columns, dim=1).float()


def _numbers(values: NDArray, choices: list[tuple[int, int]], bounds: Any) -> NDArray:
    """[batch, *input] -> [batch, numbers]; bounds: what `range_of` says of the input's space."""
    if not choices and isinstance(bounds, tuple):
        low, width = bounds
        return ((values - low) / width).reshape(len(values), -1)
    rows = values.reshape(len(values), -1)
    if not choices:
        return rows if bounds == 1 else rows * np.float32(1 / bounds)
    return np.concatenate(
        [rows[:, i, None] == np.arange(first, first + n) for i, (first, n) in enumerate(choices)], axis=1
    )
