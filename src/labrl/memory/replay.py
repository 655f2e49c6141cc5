"""Replay buffer of the latest transitions (Lin, 1992, "Self-improving reactive agents"; Mnih et al., 2015).

`TransitionRing` stores the transitions, and `Replay` samples them uniformly. The classes for prioritized
replay, hindsight and sequences derive from `Replay`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from labrl.component import Component
from labrl.errors import InputError
from labrl.memory import Transitions
from labrl.memory.transition_ring import StorageConfig, TransitionRing
from labrl.spaces import Goals
from labrl.types import Probability


@dataclass(kw_only=True)
class ReplayConfig(StorageConfig):
    """Options of replay buffers of single transitions."""

    newest_share: Probability
    """Fraction of each minibatch that consists of the newest transitions, in [0, 1]; their number is rounded
    up. 1 / batch_size: combined experience replay (Zhang & Sutton, 2017, arXiv:1712.01275)."""


@dataclass(frozen=True)
class ReplayTraits:
    """Requirements of a class of replay buffers."""

    sequences: bool = False
    """Whether the buffer samples sequences with recurrent states instead of single transitions."""
    goals: bool = False
    """Whether the buffer computes rewards for other goals, so that the environment must have goals."""


class Replay(TransitionRing):
    """Replay buffer that samples transitions uniformly.

    Windows of n steps are assembled when sampled. A transition is identified by the index of its vector step
    and by its environment.

    To sample differently, derive a class and override `draw` and `weights`.
    """

    Config: ClassVar[Any] = ReplayConfig
    TRAITS: ClassVar[ReplayTraits] = ReplayTraits()

    @classmethod
    def check(cls, config: StorageConfig, *, batch_size: int, num_envs: int, n_step: int) -> None:
        """Raise InputError if settings of a derived class contradict each other."""

    @classmethod
    def check_goals(cls, goals: Goals | None, n_step: int) -> None:
        """Raise InputError if a derived class does not support the goals of the environment."""

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled now, because their windows are complete."""
        self._write()
        return int(self._available()[1].sum())

    def sample(self, batch_size: int, frame: int) -> Transitions:
        """Draw a minibatch with replacement at `frame` of the run. Later steps do not change the minibatch.

        Raises ValueError if there is nothing to sample.
        """
        self._write()
        if not (self.complete > self.oldest).nonzero()[0].size:
            raise ValueError("the replay buffer holds no transition that can be sampled yet")
        if self._config.newest_share:
            # Round first, because 0.1 * 30 is slightly more than 3.
            wanted = math.ceil(round(self._config.newest_share * batch_size, 6))
            # The newest transitions that can be sampled are among the newest of each environment.
            steps = self.steps - 1 - np.arange(min(wanted + self._n_step - 1, self.slots))
            there = (steps[:, None] >= self.oldest) & (steps[:, None] < self.complete)
            row, newest = (each[:wanted] for each in np.nonzero(there))
            env, step = self.draw(batch_size - len(row))
            env, step = np.concatenate([newest, env]), np.concatenate([steps[row], step])
        else:
            env, step = self.draw(batch_size)
        return self._gather(env, step, self.weights(env, step, frame))

    def update_priorities(self, index: NDArray[np.int64], error: NDArray) -> None:
        """Receive the errors of sampled transitions, [batch] each, if a derived class defines this method."""

    def _available(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the index of the first transition of each environment, and how many can be sampled."""
        return self.oldest, self.complete - self.oldest

    def draw(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw the environments and step indices of `count` equally probable transitions. [count] each"""
        first, counts = self._available()
        if self.num_envs == 1:
            return np.zeros(count, np.int64), self.generator.integers(0, int(counts[0]), count) + first
        ends = counts.cumsum()
        place = self.generator.integers(0, int(ends[-1]), count)
        env = ends.searchsorted(place, side="right")
        return env, place + (first + counts - ends)[env]

    def weights(self, env: NDArray[np.int64], step: NDArray[np.int64], frame: int) -> NDArray[np.float32]:
        """Return importance weights. [batch]"""
        return np.ones(len(env), np.float32)

    def _windows(self, env: NDArray[np.int64], step: NDArray[np.int64]) -> tuple[NDArray, ...]:
        """Return the windows of `env` that begin at `step`, each of at most n steps. [batch] each

        Returns the row of the first step, the row of the last step, the number of steps between these two,
        and the discounted reward and the discount as in `Transitions`.
        """
        if self._n_step == 1:
            row = self.rows.reshape(-1).take(step % self.slots + env * self.slots)
            discount = self._powers[1] * ~row["terminated"]
            return row, row, step * 0, row["reward"], discount.astype(np.float32)
        slots = (step[:, None] + self._ahead) % self.slots
        window = self.rows.reshape(-1).take(slots + (env * self.slots)[:, None])  # [batch, n_step]
        # The window ends at the first cut, or with the last row.
        window["cut"][:, -1] = True
        length = window["cut"].argmax(axis=1)
        last = window.reshape(-1).take(length + np.arange(0, window.size, self._n_step))
        counted = self._ahead <= length[:, None]
        reward = (window["reward"] * counted) @ self._powers[:-1]
        discount = self._powers[length + 1] * ~last["terminated"]
        return window[:, 0], last, length, reward.astype(np.float32), discount.astype(np.float32)

    def _gather(
        self, env: NDArray[np.int64], step: NDArray[np.int64], weight: NDArray[np.float32]
    ) -> Transitions:
        """Return the transitions of `env` that begin at `step`. [batch] each"""
        first, last, _, reward, discount = self._windows(env, step)
        observation, next_observation = self._ring.pairs(env, first["frame"], last["next_frame"])
        return Transitions(
            observation,
            first["action"],
            reward,
            next_observation,
            discount,
            weight,
            step * self.num_envs + env,
            first["mask"] if self._masked else None,
            last["next_mask"] if self._masked else None,
        )


def replay_class(memory: Component) -> type[Replay]:
    """Load the class that `memory` names. Raises InputError unless the class derives from `Replay`."""
    found = memory.load()
    if isinstance(found, type) and issubclass(found, Replay) and isinstance(memory.config, StorageConfig):
        return found
    raise InputError.value(
        memory.key or "agent.memory",
        memory.target,
        "be a class that derives from labrl.memory.replay.Replay, with a Config that derives from that of "
        "the class it extends",
        fix="Set agent/memory=uniform, or change the class",
        code="target",
    )
