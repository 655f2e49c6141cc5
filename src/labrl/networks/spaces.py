"""The spaces that networks and agents are built for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

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


def several_images(space: gym.Space[Any]) -> bool:
    """Whether pixels are among several inputs."""
    return isinstance(space, gym.spaces.Dict) and sees_images(space)


def is_image(space: gym.Space[Any]) -> bool:
    """Whether observations are pixels: three axes of bytes."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 3 and space.dtype == "uint8"


def has_bounds(space: gym.spaces.Box) -> bool:
    """Whether a box is bounded on every side; the largest numbers of a type are no bounds."""
    number = np.result_type(space.dtype, np.float16)  # flags cannot be subtracted
    with np.errstate(over="ignore"):
        width = np.subtract(space.high, space.low, dtype=number)
    return bool(space.is_bounded() and np.isfinite(width).all())
