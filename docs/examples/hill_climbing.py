"""An agent of one's own: hill climbing over linear policies (after Mania et al., 2018, arXiv:1803.07055)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.agents.agent import Agent, Observation
from labrl.clock import Clock
from labrl.config.types import PositiveFloat
from labrl.errors import InputError
from labrl.learning.compute import Compute
from labrl.networks.spaces import Spaces
from labrl.seeding import Streams
from labrl.step import Step


@dataclass(kw_only=True)
class HillClimbingConfig:
    """Options; labrl checks every key of the YAML against them."""

    noise: PositiveFloat = 0.5
    """Standard deviation of the change from the best policy to the next one tried, > 0."""


class HillClimbing(Agent):
    """Every environment plays whole episodes with its own variation of the best linear policy so far."""

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
        """Called before a run. Raises InputError for environments that the agent cannot play."""
        if not isinstance(spaces.action, gym.spaces.Discrete):
            raise InputError(
                f"agent=hill_climbing needs discrete actions, this environment has {spaces.action}."
            )

    def act(self, observation: Observation) -> NDArray:
        """[num_envs]"""
        return np.einsum("no,noa->na", _flat(observation), self._tried).argmax(1)

    def evaluation_action(self, observation: Observation, generator: np.random.Generator) -> NDArray:
        """[num_envs]"""
        return (_flat(observation) @ self._best).argmax(1)

    def observe(self, step: Step) -> None:
        """Keep what did better, and try something new in each environment whose episode ended."""
        for episode in step.episodes:
            if episode.episode_return > self._best_return:
                self._best, self._best_return = self._tried[episode.env].copy(), episode.episode_return
                self._improved += 1
            change = self._random.normal(0, self._config.noise, self._best.shape)
            self._tried[episode.env] = self._best + change

    def learn(self) -> int:
        """All is done in `observe`; the improvements count as updates."""
        updates, self._improved = self._improved, 0
        return updates

    def metrics(self) -> dict[str, float]:
        """A column of train.csv."""
        return {"best_episode": self._best_return if np.isfinite(self._best_return) else np.nan}

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what comes next."""
        return {"tried": self._tried.copy(), "best": self._best.copy(), "best_return": self._best_return}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state."""
        self._tried, self._best = np.array(state["tried"]), np.array(state["best"])
        self._best_return = float(state["best_return"])


def _flat(observation: Observation) -> NDArray:
    return observation.array.reshape(len(observation.array), -1)
