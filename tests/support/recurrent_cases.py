"""An environment that requires a recurrent state, and helpers for the tests of recurrent agents."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.agents.agent import Observation
from labrl.step import Episode, Step


class Corridor:
    """A corridor that begins with a cue and pays 1 if the last action equals the cue.

    No other step pays. The length of each corridor is random. All observations between the two ends are
    equal, so an agent without a recurrent state is right half of the time at best.
    """

    SPACE = gym.spaces.Box(-1, 1, (3,), np.float32)
    ACTIONS = gym.spaces.Discrete(2)

    def __init__(self, num_envs: int, shortest: int = 4, longest: int = 7, seed: int = 0) -> None:
        self._rng, self._lengths = np.random.default_rng(seed), (shortest, longest)
        self._cue, self._length, self._at = (np.zeros(num_envs, np.int64) for _ in range(3))
        self._begin(np.ones(num_envs, np.bool_))
        self.paid: list[float] = []
        """The return of each episode that has ended."""

    def _begin(self, envs: NDArray[np.bool_]) -> None:
        self._cue[envs] = self._rng.integers(0, 2, envs.sum())
        self._length[envs] = self._rng.integers(*self._lengths, envs.sum(), endpoint=True)
        self._at[envs] = 0

    @property
    def observation(self) -> NDArray:
        """The cue (-1 or 1, then 0), whether this is the last step, and the constant 1. [num_envs, 3]"""
        cue = np.where(self._at == 0, 2 * self._cue - 1, 0)
        return np.stack([cue, self._at == self._length - 1, np.ones_like(cue)], axis=1).astype(np.float32)

    def step(self, action: NDArray) -> Step:
        over = self._at == self._length - 1
        reward = (over & (action == self._cue)).astype(np.float32)
        self.paid += reward[over].tolist()
        self._at += ~over
        following = self.observation
        self._begin(over)
        episodes = [Episode(int(i), 0, 0, float(reward[i]), 1, False) for i in np.flatnonzero(over)]
        no = np.zeros(len(action), np.bool_)
        observation = self.observation if episodes else following
        return Step(observation, following, reward, over, no, over, episodes)


def remembered(agent: Any, steps: int = 60, num_envs: int = 16) -> float:
    """Play new corridors with the agent's greedy actions. Return the fraction of episodes that pay."""
    world, start = Corridor(num_envs, seed=7), np.ones(num_envs, np.bool_)
    for _ in range(steps):
        start = world.step(agent.greedy_action(Observation(world.observation, start=start))).episode_over
    return float(np.mean(world.paid))
