"""What an evaluation plays: whole episodes in environments of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.agents.agent import Agent, Observation
from labrl.agents.random import uniform_actions
from labrl.config.component import Component
from labrl.envs.make import make_env
from labrl.envs.vector import VectorEnv
from labrl.seeding import derived_seed
from labrl.step import Episode

Played = list[tuple[Episode, NDArray, NDArray]]
"""Each episode, its actions and its final observation, by environment."""


@dataclass(frozen=True)
class Quota:
    """How much is played for a row, and by which actions."""

    num_envs: int
    """Environments; 0: nothing is played, rows tell of the training episodes."""
    episodes: int = 1
    """Of each of them."""
    greedy: bool = False
    """Whether the best actions are played, rather than the policy's own."""
    epsilon: float = 0.0
    """Probability of a random action instead, in [0, 1]."""


class Chooser:
    """Chooses the actions of an agent under evaluation."""

    def __init__(
        self,
        agent: Agent,
        space: gym.Space[Any],
        greedy: bool,
        epsilon: float,
        generator: np.random.Generator,
        chance: np.random.Generator,
    ) -> None:
        """space: of one action; greedy, epsilon: see `Quota`; generator: that the policy draws from; chance:
        that random actions, and whether there are any, are drawn from."""
        sampled = partial(agent.evaluation_action, generator=generator)
        self._choose = agent.greedy_action if greedy else sampled
        self._space, self._epsilon, self._chance = space, epsilon, chance

    def act(self, observation: Observation) -> NDArray:
        """Return actions for observations whose `start` is given. [num_envs, ...]"""
        action = self._choose(observation)
        if self._epsilon == 0:
            return action
        # Drawn for every environment in every step, so that one's chance does not depend on another's.
        at_random = self._chance.random(len(action)) < self._epsilon
        drawn = uniform_actions(self._space, len(action), self._chance, observation.mask)
        return np.where(at_random.reshape(-1, *[1] * (action.ndim - 1)), drawn, action)


class EvaluationEnvs:
    """Separate environments in evaluation mode, made when they are first played.

    Seeds of the episodes and of the actions follow from the session's seed and the frame alone: what is
    played does not depend on what was played before, nor on the process that plays it.
    """

    def __init__(self, env: Component, seed: int, num_threads: int, quota: Quota) -> None:
        """env: as training has it; seed: of the session; num_threads: that it may keep busy."""
        self._component, self._seed, self._num_threads, self._quota = env, seed, num_threads, quota
        self._env: VectorEnv | None = None

    @property
    def env(self) -> VectorEnv:
        """The environments. Starting an emulator costs more than an evaluation step: they are made once."""
        if self._env is None:
            self._env = make_env(
                self._component,
                derived_seed(self._seed, "evaluation"),
                self._num_threads,
                evaluation=True,
                num_envs=self._quota.num_envs,
            )
        return self._env

    def play(self, agent: Agent, transforms: Any, frame: int, stopped: Callable[[], bool]) -> Played | None:
        """The first whole episodes of each environment, by `agent` at `frame`; None if `stopped` says so."""
        env, quota = self.env, self._quota.episodes
        generator = np.random.default_rng(derived_seed(self._seed, "evaluation actions", frame))
        observation = env.reset(derived_seed(self._seed, "evaluation", frame))
        chance = np.random.default_rng(derived_seed(self._seed, "evaluation chance", frame))
        greedy, epsilon = self._quota.greedy, self._quota.epsilon
        chooser = Chooser(agent, env.action_space, greedy, epsilon, generator, chance)
        played: list[Played] = [[] for _ in range(env.num_envs)]
        start = np.ones(env.num_envs, np.bool_)
        while min(map(len, played)) < quota:
            if stopped():
                return None
            seen = Observation(transforms.frozen(observation), env.action_mask, start)
            step = env.step(chooser.act(seen))
            for episode in step.episodes:
                # An environment that is done plays on while others finish: a further, short episode
                # would count short episodes more often than long ones.
                if len(played[episode.env]) < quota:
                    played[episode.env].append((episode, *env.played(episode)))
            observation, start = step.observation, step.episode_over
        return list(chain.from_iterable(played))

    def close(self) -> None:
        """Close the environments; they are made again if need be."""
        if self._env is not None:
            self._env.close()
            self._env = None
