"""The result of one vector step, which environments pass to agents and statistics."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Masks = NDArray[np.bool_] | None
"""Valid actions in each of several observations, [n, flags]; None where all always are."""
States = NDArray[np.float32] | None
"""The recurrent state before each of several observations, [n, state_size]; None where there is none."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished whole episode (all lives of a game)."""

    env: int
    """Index of the environment that played it."""
    index: int
    """Number of episodes that this environment played before."""
    seed: int
    """Seed with which the environment was reset."""
    episode_return: float
    """Undiscounted sum of the raw rewards."""
    length: int
    """Agent steps."""
    truncated: bool
    """Whether a time limit, not the task, ended it."""


@dataclass
class Step:
    """The outcome of one vector step. Arrays have `num_envs` rows and are not written to later."""

    observation: NDArray
    """Observations to act on next: the first of the new episode where one has ended. [num_envs, *obs]"""
    next_observation: NDArray
    """Observations after the action: the true final one where an episode has ended. The same
    array as `observation` if none has. [num_envs, *obs]"""
    reward: NDArray[np.float32]
    """Raw reward of the environment, until a transform makes the learner's view. [num_envs]"""
    terminated: NDArray[np.bool_]
    """Whether there is no value beyond this step: the task ended, or (in training) a life was lost.
    [num_envs]"""
    truncated: NDArray[np.bool_]
    """Whether a time limit cut the episode: its last state keeps its value. [num_envs]"""
    episode_over: NDArray[np.bool_]
    """Whether the environment was reset; False at a lost life. [num_envs]"""
    episodes: list[Episode] = field(default_factory=list)
    """The whole episodes that ended in this step."""
    mask: NDArray[np.bool_] | None = None
    """Valid actions in `observation`; None where all always are. [num_envs, actions]"""
    next_mask: NDArray[np.bool_] | None = None
    """Valid actions in `next_observation`; meaningless where the task has ended. [num_envs, actions]"""
    void: bool = False
    """Whether nothing was played: a resume cuts all episodes short at `next_observation`. A replay buffer
    ends them with what it holds; a rollout treats it as a step without reward."""

    def copied(self) -> Step:
        """Return a copy with arrays of its own; fields that shared an array share its copy."""
        copies = {id(array): array.copy() for array in vars(self).values() if isinstance(array, np.ndarray)}
        return Step(**{name: copies.get(id(array), array) for name, array in vars(self).items()})
