"""The spaces that networks and agents are built for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym


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


def is_image(space: gym.Space[Any]) -> bool:
    """Whether observations are pixels: three axes of bytes."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 3 and space.dtype == "uint8"
