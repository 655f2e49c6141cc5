"""The interface of vector environment backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from labrl.spaces import Goals

Repeats = Literal["always", "if new", "unseeded", "alone", "never"]
"""When the seed of a reset and the actions determine an episode. `always`: regardless of earlier episodes;
`if new`: only in a new environment, so that each episode needs a new one; `unseeded`: only in a new one, but
the seed has no effect; `alone`: only while no other environment is used; `never`: not even then."""

UNREPEATABLE: dict[Repeats, str] = {
    "unseeded": "the seed of a reset has no effect, but every episode of an environment differs",
    "alone": "environments that are used in turn change each other's random numbers",
    "never": "even a new environment does not repeat an episode from its seed and actions",
}
"""Why runs in environments cannot be repeated, as a part of `unrepeatable`."""


def unrepeatable(why: str) -> str:
    """Return a line that says why runs are not reproducible because of their environment."""
    return (
        f"env: {why}, so runs are not reproducible. Draw random numbers only from self.np_random, which "
        "reset(seed=...) seeds, and keep nothing from earlier episodes (env.check=false switches this check "
        "off)"
    )


class Transition(NamedTuple):
    """The result of one action in every environment. Arrays are not modified later."""

    observation: NDArray
    """Observation of the reached state; the true final observation if an episode ended. [num_envs, *obs]"""
    reward: NDArray
    """Raw, unclipped reward, of any numeric type. [num_envs]"""
    terminated: NDArray[np.bool_]
    """Whether the learner treats the state as terminal: the task ended or, if configured, a life was lost.
    [num_envs]"""
    truncated: NDArray[np.bool_]
    """Whether a time limit cut the episode short. [num_envs]"""
    ended: NDArray[np.bool_]
    """Whether the task itself ended: `terminated`, but not for lost lives. [num_envs]"""


class Backend(ABC):
    """A vector environment that never resets by itself; the caller chooses when to reset and with which seed.

    It is made as `Class(config, num_envs=..., num_threads=..., evaluation=...)`. A user's backend is derived
    from this class. It declares capabilities beyond `reset`, `step` and `close` by overriding the attributes
    and class methods that have a default here.

    A seeded reset determines an episode: the same seed and actions give the same transitions, bit for bit,
    regardless of earlier episodes.
    """

    Config: ClassVar[type]
    """Dataclass of the backend's configuration."""
    name: str
    """Name of the environment in messages and tables."""
    num_envs: int
    frame_skip: int
    """Emulator frames per agent step; 1 if there is no emulator."""
    observation_space: Space[Any]
    """Observation space of one environment."""
    action_space: Space[Any]
    """Action space of one environment."""
    masked: bool = False
    """Whether `action_mask` is set."""
    action_mask: NDArray[np.bool_] | None = None
    """Masks of the valid actions in the current states, a new array after each reset and step.
    [num_envs, flags]"""
    info: Mapping[str, Any] = {}
    """Numbers of the last step for `env.info_keys`: arrays [num_envs] by name, possibly in nested dicts; a
    new object after each step. Where an environment has no number, the array contains nan, or the array
    `_name` is False."""
    goals: Goals | None = None
    """Object that computes rewards for other goals; None for environments without goals."""
    prepares: bool = False
    """Whether the backend implements `prepare`."""

    @abstractmethod
    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> NDArray:
        """Start a new episode in each environment for which `mask` is set, without changing the others.

        mask, seeds: [num_envs]; seeds outside the mask have no effect. In the first call, the mask is set for
        all environments. Returns the current observation of every environment, [num_envs, *obs].
        """

    @abstractmethod
    def step(self, actions: NDArray) -> Transition:
        """Act in every environment. actions: [num_envs, *action], of the action space's type."""

    @abstractmethod
    def close(self) -> None:
        """Stop the worker threads and processes. Calling it again has no effect."""

    def prepare(self, env: int, seed: int) -> None:  # noqa: B027  # most have nothing to prepare
        """Prepare the next episode of one environment, which will start with `seed`.

        The method is called during the current episode, for at most one environment per step.
        """

    @classmethod
    def faster(cls, config: Any, num_envs: int) -> Backend | None:
        """Make a faster backend that computes the same numbers; None if there is none."""
        return None

    @classmethod
    def spaces(cls, config: Any) -> tuple[Space[Any], Space[Any]] | None:
        """Return one environment's observation and action spaces; None if one must be made to find out.

        Raises InputError if the environment cannot be made.
        """
        return None

    @classmethod
    def gives_masks(cls, config: Any) -> bool:
        """Return, before a run, whether the environment provides action masks that agents must use."""
        return False

    @classmethod
    def describe_masks(cls, config: Any) -> str:
        """Return a line for the start of a run. It says from where masks of valid actions are taken, or why
        something that looks like masks is not used; empty if there is neither."""
        return "action masks: those of the backend are used" if cls.gives_masks(config) else ""

    @classmethod
    def repeats(cls, config: Any) -> Repeats:
        """Return, before a run, when a seed and actions determine an episode of the environment."""
        return "always"

    @classmethod
    def is_checked(cls, config: Any) -> bool:
        """Return whether some training episodes are also played in a new environment, during the run, to see
        whether seed and actions repeat them."""
        return False

    @classmethod
    def make_goals(cls, config: Any, space: Space[Any]) -> Goals | None:
        """Make an object that computes rewards for other goals; None for environments without goals.

        space: observation space of one environment.
        """
        return None

    @classmethod
    def watched(cls, config: Any) -> Watched | None:
        """Make one environment that can be rendered and otherwise behaves like those of this backend.

        If the result is None, labrl can render the environment only if the backend is one of labrl's own or a
        subclass of one.
        """
        return None


class Watched(Backend):
    """A backend of one environment that can be rendered."""

    frames_per_second: float
    """Agent steps per second at normal speed."""

    @abstractmethod
    def picture(self) -> NDArray[np.uint8]:
        """Return an RGB image of the current state, [height, width, 3].

        Raises InputError if rendering fails.
        """


def action_dtype(space: Space[Any]) -> np.dtype:
    """Return the dtype of actions that are passed to environments, which is the dtype of the action space.

    Gymnasium's `Space.contains` refuses other types.
    """
    return np.dtype(space.dtype or np.float32)
