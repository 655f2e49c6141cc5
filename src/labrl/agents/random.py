"""Uniformly random actions, and the agent that takes them, the baseline of all statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.agents.agent import Agent, Observation, Traits
from labrl.agents.parts.exploration import uniform_valid
from labrl.clock import Clock
from labrl.errors import InputError, LabrlError
from labrl.learning.compute import Compute
from labrl.seeding import Streams
from labrl.spaces import Spaces, has_bounds
from labrl.step import Masks, Step


@dataclass(kw_only=True)
class RandomConfig:
    """Uniformly random actions, the baseline of all statistics."""


class RandomAgent(Agent):
    """Draws every action uniformly from the action space and never learns."""

    Config = RandomConfig
    TRAITS = Traits(
        actions=(gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary, gym.spaces.Box),
        masks=True,
    )

    def __init__(
        self, config: RandomConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        self._space = spaces.action
        self._generator = streams.numpy("policy")

    @classmethod
    def fits(cls, space: gym.Space[Any]) -> bool:
        """Return whether the agent supports an action space; a Box must have bounds."""
        return super().fits(space) and (not isinstance(space, gym.spaces.Box) or has_bounds(space))

    def act(self, observation: Observation) -> NDArray:
        """Draw valid actions. [num_envs, ...]"""
        return uniform_actions(self._space, len(observation.array), self._generator, observation.mask)

    def evaluation_action(self, observation: Observation, generator: np.random.Generator) -> NDArray:
        """Draw valid actions with `generator`. [num_envs, ...]"""
        return uniform_actions(self._space, len(observation.array), generator, observation.mask)

    def observe(self, step: Step) -> None:
        """Ignore the outcome."""

    def learn(self) -> int:
        """Make no update. Returns 0."""
        return 0


def uniform_actions(
    space: gym.Space[Any], n: int, generator: np.random.Generator, mask: Masks = None
) -> NDArray:
    """Draw `n` independent uniform actions, [n, ...]. Raises InputError for unsupported spaces.

    mask: valid actions, with the flags of several choices side by side, [n, flags].
    """
    if mask is not None and isinstance(space, gym.spaces.Discrete):
        return uniform_valid(mask, generator.random(n)) + space.start
    if mask is not None:
        assert isinstance(space, gym.spaces.MultiDiscrete), "no other space has masks"
        parts = np.split(mask, np.cumsum(space.nvec.flat)[:-1], axis=1)
        choices = np.stack([uniform_valid(part, generator.random(n)) for part in parts], axis=1)
        return choices.reshape(-1, *space.shape) + space.start
    if isinstance(space, gym.spaces.Discrete):
        return generator.integers(space.start, space.start + space.n, size=n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return generator.integers(space.start, space.start + space.nvec, size=(n, *space.shape))
    if isinstance(space, gym.spaces.MultiBinary):
        return generator.integers(0, 2, size=(n, *space.shape), dtype=np.int8)
    if isinstance(space, gym.spaces.Box) and has_bounds(space):
        if not np.issubdtype(space.dtype, np.floating):
            return generator.integers(space.low, space.high, (n, *space.shape), space.dtype, endpoint=True)
        return generator.uniform(space.low, space.high, size=(n, *space.shape)).astype(space.dtype)
    raise InputError.about(
        "random actions",
        "they are drawn from Discrete, MultiDiscrete, MultiBinary and bounded Box spaces, but this "
        f"environment's actions are {space}",
        code="unsupported",
        key="env.name",
    )


def check_uniform(space: gym.Space[Any], override: str) -> None:
    """Raise InputError if `space` has no uniform distribution. override: `key=value` that requires one."""
    try:
        uniform_actions(space, 1, np.random.default_rng(0))
    except LabrlError as error:
        key = override.partition("=")[0]
        raise InputError(f"{override}: {error}", code=error.code, key=key) from None
