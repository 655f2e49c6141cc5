"""What labrl asks of a library's vector environment."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray


class Transition(NamedTuple):
    """What one action led to in every environment. Arrays are not written to later."""

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


class Backend(Protocol):
    """A vector environment that never resets by itself: its caller says which, and with what seed.

    One that has an attribute `masked` that is True keeps in `action_mask` which actions are valid in the
    present states, after each reset and step a new array, [num_envs, flags]. One with goals has an attribute
    `goals`, as `labrl.observations.Goals` says, and a class method `judge(config, space)` that makes it.

    One with a method `prepare(env, seed)` is told, while an episode is played, with what seed the next one of
    that environment will begin, and may get it ready; of one environment in a step.

    A seeded reset determines an episode: the same seed and actions give the same transitions, bit
    for bit, whatever the environment played before.
    """

    name: str
    """How messages and tables call the environment."""
    num_envs: int
    frame_skip: int
    """Emulator frames of one agent step; 1 where there is no emulator."""
    observation_space: Space[Any]
    """Of one environment."""
    action_space: Space[Any]
    """Of one environment."""

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> NDArray:
        """Start a new episode where `mask` is set and leave the others as they are.

        mask, seeds: [num_envs]; seeds outside the mask have no effect. The first call sets the whole
        mask. Returns the present observation of every environment, [num_envs, *obs].
        """

    def step(self, actions: NDArray) -> Transition:
        """Act in every environment. actions: [num_envs, *action], of the action space's type."""

    def close(self) -> None:
        """Free threads and processes; calling it again changes nothing."""
