"""The protocol of a vector environment backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from labrl.observations import Goals

if TYPE_CHECKING:
    from labrl.envs.watch import Watched


class Transition(NamedTuple):
    """The outcome of one action in every environment. Arrays are not written to later."""

    observation: NDArray
    """The state reached: the true final one where an episode has ended. [num_envs, *obs]"""
    reward: NDArray
    """Raw, unclipped. Any number type. [num_envs]"""
    terminated: NDArray[np.bool_]
    """The learner's signal: the task ended or, where that is asked for, a life was lost. [num_envs]"""
    truncated: NDArray[np.bool_]
    """A time limit cut the episode. [num_envs]"""
    ended: NDArray[np.bool_]
    """The task itself is over: `terminated` without the lost lives. [num_envs]"""


class Backend(ABC):
    """A vector environment that never resets by itself: its caller says which, and with what seed.

    It is made as `Class(config, num_envs=..., num_threads=..., evaluation=...)`. A user's class derives
    from this one, and declares what it can do beside `reset`, `step` and `close` by the attributes and class
    methods that have a value here.

    A seeded reset determines an episode: the same seed and actions give the same transitions, bit
    for bit, whatever the environment played before.
    """

    Config: ClassVar[type]
    """The dataclass of its configuration."""
    name: str
    """Name of the environment in messages and tables."""
    num_envs: int
    frame_skip: int
    """Emulator frames of one agent step; 1 where there is no emulator."""
    observation_space: Space[Any]
    """Observation space of one environment."""
    action_space: Space[Any]
    """Action space of one environment."""
    masked: bool = False
    """Whether `action_mask` says which actions are valid."""
    action_mask: NDArray[np.bool_] | None = None
    """The valid actions of the present states, after each reset and step a new array. [num_envs, flags]"""
    goals: Goals | None = None
    """Computes the rewards of other goals, for environments that have goals."""
    prepares: bool = False
    """Whether `prepare` does anything."""

    @abstractmethod
    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> NDArray:
        """Start a new episode where `mask` is set and leave the others as they are.

        mask, seeds: [num_envs]; seeds outside the mask have no effect. The first call sets the whole
        mask. Returns the present observation of every environment, [num_envs, *obs].
        """

    @abstractmethod
    def step(self, actions: NDArray) -> Transition:
        """Act in every environment. actions: [num_envs, *action], of the action space's type."""

    @abstractmethod
    def close(self) -> None:
        """Free threads and processes; calling it again changes nothing."""

    def prepare(self, env: int, seed: int) -> None:  # noqa: B027  # most have nothing to prepare
        """Get the next episode of one environment ready, which will begin with `seed`.

        It is called while an episode is played, of one environment in a step.
        """

    @classmethod
    def faster(cls, config: Any, num_envs: int) -> Backend | None:
        """Make a faster backend that gives the same numbers; None where there is none."""
        return None

    @classmethod
    def spaces(cls, config: Any) -> tuple[Space[Any], Space[Any]] | None:
        """Return the observation and action space of one environment; None: one is made to know them.

        Raises InputError if it cannot be made.
        """
        return None

    @classmethod
    def gives_masks(cls, config: Any) -> bool:
        """Return whether there are masks of valid actions that are to be used, before a run."""
        return False

    @classmethod
    def judge(cls, config: Any, space: Space[Any]) -> Goals | None:
        """Make what knows the rewards of other goals; None where there are no goals.

        space: the observation space of one environment.
        """
        return None

    @classmethod
    def watched(cls, config: Any) -> Watched | None:
        """Make one environment with pictures, which plays as these do; None: there are none."""
        return None


def action_dtype(space: Space[Any]) -> np.dtype:
    """The type that environments get: the space's, which refuses others (Gymnasium's `contains`)."""
    return np.dtype(space.dtype or np.float32)
