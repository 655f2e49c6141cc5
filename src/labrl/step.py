"""The result of a vector step, which environments pass to agents and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Masks = NDArray[np.bool_] | None
"""Masks of the valid actions for n observations, [n, flags]; None without masks."""
States = NDArray[np.float32] | None
"""Recurrent states before n observations, [n, state_size]; None without recurrent state."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A complete episode (all lives of a game)."""

    env: int
    """Index of the environment."""
    index: int
    """Number of earlier episodes in this environment."""
    seed: int
    """Seed with which the environment was reset."""
    episode_return: float
    """Undiscounted sum of the raw rewards."""
    length: int
    """Number of agent steps."""
    truncated: bool
    """Whether a time limit ended the episode."""
    info: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Values for the names in `env.info_keys`; nan if no step had a value."""


@dataclass
class Step:
    """The result of a vector step. Arrays have `num_envs` rows and are not modified later."""

    observation: NDArray
    """Observations to act on next; after the end of an episode, the first observation of the next episode.
    [num_envs, *obs]"""
    next_observation: NDArray
    """Observations after the action; at the end of an episode, its true final observation. If no episode has
    ended, this is the same array as `observation`. [num_envs, *obs]"""
    reward: NDArray[np.float32]
    """Raw reward of the environment; after the transforms, the learner's reward. [num_envs]"""
    terminated: NDArray[np.bool_]
    """Whether the value of the next state is 0, because the task ended or (in training) a life was lost.
    [num_envs]"""
    truncated: NDArray[np.bool_]
    """Whether a time limit cut the episode short, so that the value of its last state is bootstrapped.
    [num_envs]"""
    episode_over: NDArray[np.bool_]
    """Whether the environment was reset; False at a lost life. [num_envs]"""
    episodes: list[Episode] = field(default_factory=list)
    """Complete episodes that ended in this step."""
    mask: NDArray[np.bool_] | None = None
    """Masks of the valid actions in `observation`; None without masks. [num_envs, actions]"""
    next_mask: NDArray[np.bool_] | None = None
    """Masks of the valid actions in `next_observation`, meaningless where the task has ended.
    [num_envs, actions]"""
    void: bool = False
    """Whether no action was taken, because a resume ends all episodes at `next_observation`. A replay buffer
    ends the episodes with their last stored transitions; a rollout treats this as a step without reward."""

    def copied(self) -> Step:
        """Return a deep copy, in which fields that share an array share its copy."""
        copies = {id(array): array.copy() for array in vars(self).values() if isinstance(array, np.ndarray)}
        return Step(**{name: copies.get(id(array), array) for name, array in vars(self).items()})

    def read_only(self) -> Step:
        """Return the same step with arrays that cannot be written to."""
        return Step(**{name: _read_only(value) for name, value in vars(self).items()})


def _read_only(value: Any) -> Any:
    """Return a read-only view of an array, or read-only copies of episodes; return other values unchanged."""
    if isinstance(value, list):
        return [replace(episode, info=MappingProxyType(episode.info)) for episode in value]
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value
