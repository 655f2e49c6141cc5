"""What one vector step yields: the one type that environments hand to agents and statistics."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished whole episode (all lives of a game)."""

    env: int
    """Index of the environment that played it."""
    index: int
    """How many episodes that environment had played before."""
    seed: int
    """What the environment was reset with."""
    episode_return: float
    """Undiscounted sum of the raw rewards."""
    length: int
    """Agent steps."""
    truncated: bool
    """Whether a time limit, not the task, ended it."""


@dataclass(slots=True)
class Step:
    """The outcome of one vector step. Arrays have `num_envs` rows and are not written to later."""

    observation: NDArray
    """What to act on next: the first observation of the new episode where one has ended. [num_envs, *obs]"""
    next_observation: NDArray
    """What the action led to: the true final observation where an episode has ended. The same
    array as `observation` when none has. [num_envs, *obs]"""
    reward: NDArray[np.float32]
    """Raw reward of the environment, until a transform makes the learner's view. [num_envs]"""
    terminated: NDArray[np.bool_]
    """No value beyond this step: the task ended, or (as a training signal) a life was lost. [num_envs]"""
    truncated: NDArray[np.bool_]
    """The episode was cut by a time limit: its last state keeps its value. [num_envs]"""
    episode_over: NDArray[np.bool_]
    """The environment was reset; False at a lost life. [num_envs]"""
    episodes: list[Episode] = field(default_factory=list)
    """The whole episodes that ended in this step."""
    mask: NDArray[np.bool_] | None = None
    """Which actions are valid in `observation`, None where all always are. [num_envs, actions]"""
    next_mask: NDArray[np.bool_] | None = None
    """The same for `next_observation`; where the task has ended it means nothing. [num_envs, actions]"""
    void: bool = False
    """Nothing was played: a resume cuts all episodes short at `next_observation`. A replay memory lets them
    end with what it holds; a rollout, soon forgotten, takes it for a step without reward."""

    def copied(self) -> Step:
        """Return a copy with arrays of its own; fields that shared an array share its copy."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        copies = {id(array): array.copy() for array in arrays.values() if isinstance(array, np.ndarray)}
        return Step(**{name: copies.get(id(array), array) for name, array in arrays.items()})
