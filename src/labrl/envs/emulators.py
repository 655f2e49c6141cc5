"""The ALE emulators of a vector environment, stepped together or separately."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import ale_py
import numpy as np
from gymnasium.spaces import Box, Space
from numpy.typing import NDArray

FEW_THREADS = 2
"""Maximum number of threads with which stepping games together is faster, if the machine has more cores."""


def have_all_cores(num_threads: int) -> bool:
    """Return whether `num_threads` equals the number of cores and this process may use all of them."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else 0
    return num_threads == allowed == os.cpu_count()


def separate_is_faster(num_threads: int) -> bool:
    """Return whether it is faster to step games separately and prepare their next episodes in the background.

    On two cores, this gives 22 % more frames per second for PPO on Breakout (whose first games are short), 29
    % for A2C on Breakout, and 5 % for A2C on Pong. With a single thread, no core is free to prepare an
    episode.
    """
    return num_threads > (1 if have_all_cores(num_threads) else FEW_THREADS)


_FULL_STRENGTH = np.ones(1, np.float32)
"""Deflection of a paddle. It is always full, because only continuous actions vary it."""


class EmulatorStep(NamedTuple):
    """The result of one action in every game, as reported by the ALE."""

    observation: NDArray
    """Observation of each game. [num_envs, *obs]"""
    reward: NDArray
    """Raw reward. [num_envs]"""
    terminated: NDArray[np.bool_]
    """Whether the game ended. [num_envs]"""
    truncated: NDArray[np.bool_]
    """Whether a time limit cut the game short. [num_envs]"""
    lives: NDArray[np.int32]
    """Number of remaining lives. [num_envs]"""


Game = tuple[ale_py.AtariVectorEnv, NDArray, dict[str, Any]]
"""An emulator after a reset, with its first observation and info, each of shape [1, ...]."""


class BatchedEmulators:
    """All games in one vector environment of the ALE, which distributes them over its threads."""

    def __init__(self, vector: ale_py.AtariVectorEnv) -> None:
        self._vector = vector
        self.info: dict[str, NDArray] = {}
        """Info of the last step, arrays [num_envs] by name."""
        self.observation_space: Space[Any] = vector.single_observation_space
        self.action_space: Space[Any] = vector.single_action_space

    def meanings(self) -> list[ale_py.Action]:
        """Return the button of each action."""
        return list(self._vector.ale.get_action_set())

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> tuple[NDArray, NDArray[np.int32]]:
        """Start new games where `mask` is set. mask, seeds: [num_envs].

        Returns the current observations, [num_envs, *obs], and lives, [num_envs], of all games.
        """
        # The ALE takes one seed per masked environment; Gymnasium takes one for every environment.
        observation, info = self._vector.reset(seed=seeds[mask], options={"reset_mask": mask})
        return observation, info["lives"]

    def step(self, actions: NDArray) -> EmulatorStep:
        """Act in every game. actions: [num_envs]."""
        observation, reward, terminated, truncated, info = self._vector.step(actions)
        self.info = info
        return EmulatorStep(observation, reward, terminated, truncated, info["lives"])

    def close(self) -> None:
        """Do nothing, because the ALE ends its threads when the object is deleted."""


class SeparateEmulators:
    """Each game in an emulator with one thread, and a second emulator that prepares its next episode.

    A seeded reset reloads the cartridge, which takes 0.1 s, as long as hundreds of steps. Resets are
    therefore done in the background. Results depend neither on this nor on the number of threads.
    """

    def __init__(self, new: Callable[[], ale_py.AtariVectorEnv], num_envs: int, num_threads: int) -> None:
        """new: function that makes a vector environment of one game; num_threads: maximum number of games
        that are stepped at the same time."""
        self._new = new
        # If all cores of the machine may be used, the system schedules the games better than a limit would.
        self._at_once = num_envs if have_all_cores(num_threads) else min(num_threads, num_envs)
        self._playing = [new() for _ in range(num_envs)]
        self._spare: list[ale_py.AtariVectorEnv | None] = [None] * num_envs
        self._prepared: dict[int, tuple[int, Future[Game]]] = {}
        """Seed and prepared game of the next episode, by environment."""
        self._resets = ThreadPoolExecutor(num_threads, "reset")
        pictures = self._playing[0].single_observation_space
        assert isinstance(pictures, Box), "observations of the ALE are images"
        self.observation_space = pictures
        self.action_space: Space[Any] = self._playing[0].single_action_space
        self._lives = np.zeros(num_envs, np.int32)
        self._infos: list[dict[str, NDArray]] = [{}] * num_envs  # of the last step
        self._observation = np.zeros((num_envs, *pictures.shape), np.uint8)

    def meanings(self) -> list[ale_py.Action]:
        """Return the button of each action."""
        return list(self._playing[0].ale.get_action_set())

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> tuple[NDArray, NDArray[np.int32]]:
        """Start new games where `mask` is set. mask, seeds: [num_envs].

        Returns the current observations, [num_envs, *obs], and lives, [num_envs], of all games.
        """
        begun = {}
        for env in map(int, np.flatnonzero(mask)):
            seed = int(seeds[env])
            ready_for, game = self._prepared.get(env, (None, None))
            if game is not None and ready_for == seed:
                del self._prepared[env]
            else:
                game = self._resets.submit(self._play, self._playing[env], seed)
            begun[env] = game
        observation, lives = self._observation.copy(), self._lives.copy()
        for env, game in begun.items():
            emulator, seen, info = game.result()
            observation[env], lives[env] = seen[0], info["lives"][0]
            if emulator is not self._playing[env]:
                self._spare[env], self._playing[env] = self._playing[env], emulator
        self._observation, self._lives = observation, lives
        return observation, lives

    def prepare(self, env: int, seed: int) -> None:
        """Prepare the next game of an environment while the current one continues."""
        if env in self._prepared:
            ready_for, game = self._prepared[env]
            if ready_for == seed:
                return
            self._spare[env], _, _ = game.result()
        self._prepared[env] = seed, self._resets.submit(self._play, self._spare[env], seed)

    def step(self, actions: NDArray) -> EmulatorStep:
        """Act in every game. actions: [num_envs]."""
        num_envs, waiting = len(self._playing), self._at_once
        for env in range(waiting):
            self._send(env, actions)
        result = EmulatorStep(
            np.empty_like(self._observation),
            np.empty(num_envs, np.float64),
            np.empty(num_envs, np.bool_),
            np.empty(num_envs, np.bool_),
            np.empty(num_envs, np.int32),
        )
        for env, emulator in enumerate(self._playing):
            observation, reward, terminated, truncated, info = emulator.recv()
            self._infos[env] = info
            if env + waiting < num_envs:
                self._send(env + waiting, actions)
            for all_of_it, own in zip(
                result, (observation, reward, terminated, truncated, info["lives"]), strict=True
            ):
                all_of_it[env] = own[0]
        self._observation, self._lives = result.observation, result.lives
        return result

    def _send(self, env: int, actions: NDArray) -> None:
        """Send a game its action. The ALE's own method checks the action, which takes three times as long."""
        self._playing[env].ale.send(actions[env : env + 1], _FULL_STRENGTH)

    @property
    def info(self) -> dict[str, NDArray]:
        """Info of the last step, arrays [num_envs] by name."""
        return {name: np.concatenate([one[name] for one in self._infos]) for name in self._infos[0]}

    def close(self) -> None:
        """Release the emulators."""
        self._resets.shutdown(cancel_futures=True)
        # The ALE has no close(): its threads end when the objects are deleted.
        self._playing.clear()
        self._spare.clear()
        self._prepared.clear()

    def _play(self, emulator: ale_py.AtariVectorEnv | None, seed: int) -> Game:
        emulator = self._new() if emulator is None else emulator
        observation, info = emulator.reset(seed=np.array([seed]))
        return emulator, observation, info
