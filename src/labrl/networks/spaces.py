"""The spaces that networks and agents are built for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.observations import Goals


@dataclass(frozen=True)
class Spaces:
    """What one agent sees and does, in how many environments at once."""

    observation: gym.Space[Any]
    """Observation space of a single environment."""
    action: gym.Space[Any]
    """Action space of a single environment."""
    num_envs: int
    """Number of environments stepped together."""
    masked: bool = False
    """Whether the environment says which actions are valid."""
    goals: Goals | None = None
    """Who knows what other goals would have given, None where there are no goals."""


def stored_choices(space: gym.Space[Any]) -> gym.Space[Any]:
    """`space` with choices as numbers that torch takes for indices, whatever type the environment takes."""
    if isinstance(space, gym.spaces.Discrete):
        return gym.spaces.Discrete(int(space.n), start=int(space.start))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return gym.spaces.MultiDiscrete(space.nvec)
    return space


def sees_images(space: gym.Space[Any]) -> bool:
    """Whether observations are pixels, or pixels are among several inputs."""
    return (
        any(map(is_image, space.spaces.values())) if isinstance(space, gym.spaces.Dict) else is_image(space)
    )


def is_image(space: gym.Space[Any]) -> bool:
    """Whether observations are pixels: three axes of bytes."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 3 and space.dtype == "uint8"


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


def has_bounds(space: gym.spaces.Box) -> bool:
    """Whether a box is bounded on every side; the largest numbers of a type are no bounds."""
    number = np.result_type(space.dtype, np.float16)  # flags cannot be subtracted
    with np.errstate(over="ignore"):
        width = np.subtract(space.high, space.low, dtype=number)
    return bool(space.is_bounded() and np.isfinite(width).all())
