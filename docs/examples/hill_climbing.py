"""An example agent: hill climbing over linear policies (after Mania et al., 2018, arXiv:1803.07055)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.agents.agent import Agent, Observation
from labrl.clock import Clock
from labrl.errors import InputError
from labrl.learning.compute import Compute
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.step import Step
from labrl.types import PositiveFloat


@dataclass(kw_only=True)
class HillClimbingConfig:
    """Options of the agent. labrl checks every key of the YAML file against them."""

    noise: PositiveFloat = 0.5
    """Standard deviation of the changes to the best policy, > 0."""


class HillClimbing(Agent):
    """Play whole episodes in each environment with a variation of the best linear policy so far."""

    Config = HillClimbingConfig

    def __init__(
        self, config: HillClimbingConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        self._config, self._random = config, streams.numpy("hill_climbing")
        shape = (spaces.num_envs, gym.spaces.flatdim(spaces.observation), int(spaces.action.n))
        self._tried = self._random.normal(0, config.noise, shape)  # [num_envs, observation, action]
        self._best = self._tried[0].copy()
        self._best_return, self._improved = -np.inf, 0

    @classmethod
    def check(cls, config: HillClimbingConfig, spaces: Spaces) -> None:
        """Check an environment before a run. Raises InputError if the agent does not support it."""
        if not isinstance(spaces.action, gym.spaces.Discrete):
            raise InputError(
                f"agent=hill_climbing needs discrete actions, but this environment has {spaces.action}."
            )

    def act(self, observation: Observation) -> NDArray:
        """Return the actions of the policies that are being tried. [num_envs]"""
        return np.einsum("no,noa->na", _flat(observation), self._tried).argmax(1)

    def evaluation_action(self, observation: Observation, generator: np.random.Generator) -> NDArray:
        """Return the actions of the best policy. [num_envs]"""
        return (_flat(observation) @ self._best).argmax(1)

    def observe(self, step: Step) -> None:
        """Keep better policies, and try a new one in each environment whose episode has ended."""
        for episode in step.episodes:
            if episode.episode_return > self._best_return:
                self._best, self._best_return = self._tried[episode.env].copy(), episode.episode_return
                self._improved += 1
            change = self._random.normal(0, self._config.noise, self._best.shape)
            self._tried[episode.env] = self._best + change

    def learn(self) -> int:
        """Return the number of improvements in `observe` as the number of updates."""
        updates, self._improved = self._improved, 0
        return updates

    def metrics(self) -> dict[str, float]:
        """Return a column for train.csv."""
        return {"best_episode": self._best_return if np.isfinite(self._best_return) else np.nan}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that affects the future."""
        return {"tried": self._tried.copy(), "best": self._best.copy(), "best_return": self._best_return}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self._tried, self._best = np.array(state["tried"]), np.array(state["best"])
        self._best_return = float(state["best_return"])


def _flat(observation: Observation) -> NDArray:
    return observation.array.reshape(len(observation.array), -1)
