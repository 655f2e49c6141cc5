"""What was done since the reset of each environment: with the seed, all there is to an episode."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Space
from numpy.typing import NDArray


def action_dtype(space: Space[Any]) -> np.dtype:
    """The type that environments get: the space's, which refuses others (Gymnasium's `contains`)."""
    return np.dtype(space.dtype or np.float32)


def stored_dtype(space: Space[Any]) -> np.dtype:
    """The narrowest type that keeps the actions of `space` exactly."""
    if isinstance(space, Discrete) and space.start >= 0 and int(space.start) + int(space.n) <= 256:
        return np.dtype(np.uint8)
    return action_dtype(space)


class ActionRecord:
    """The actions of the running episode of every environment.

    One row is written for a vector step, whichever episodes run; each environment remembers at which
    row its episode began. Rows before the oldest running episode are left behind when new ones need
    room, and memory doubles when episodes are longer than it holds. What was written is never changed.
    """

    def __init__(self, num_envs: int, space: Space[Any], capacity: int = 1024) -> None:
        shape = space.shape or ()
        self._rows = np.zeros((capacity, num_envs, *shape), dtype=stored_dtype(space))
        self._first = np.zeros(num_envs, dtype=np.int64)
        self._next = 0

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Actions since each environment's reset. [num_envs]"""
        return self._next - self._first

    def append(self, actions: NDArray) -> None:
        """Add one action per environment. actions: [num_envs, *action]."""
        if self._next == len(self._rows):
            self._make_room()
        self._rows[self._next] = actions
        self._next += 1

    def begin(self, envs: NDArray[np.bool_]) -> None:
        """Forget what the masked environments did: they are at the start of an episode. [num_envs]"""
        self._first[envs] = self._next

    def since_reset(self) -> list[NDArray]:
        """A copy of each environment's actions, in order. num_envs arrays [length, *action]"""
        return [self._rows[first : self._next, env].copy() for env, first in enumerate(self._first)]

    def last(self, env: int, length: int) -> NDArray:
        """The latest actions of one environment, a view that stays as it is. [length, *action]"""
        return self._rows[self._next - length : self._next, env]

    def load(self, actions: list[NDArray]) -> NDArray:
        """Take over what `since_reset` gave, aligned so that every environment ends in the last row.

        Returns the rows, [longest, num_envs, *action]; where an environment's own episode has not
        begun yet they hold the longest one's actions, which are valid and mean nothing.
        """
        longest = max(actions, key=len)
        count = len(longest)
        capacity = len(self._rows)
        while capacity < count:
            capacity *= 2
        rows = np.zeros((capacity, *self._rows.shape[1:]), dtype=self._rows.dtype)
        for env, own in enumerate(actions):
            rows[: count - len(own), env] = longest[: count - len(own)]
            rows[count - len(own) : count, env] = own
        self._rows = rows
        self._first = count - np.array([len(own) for own in actions], dtype=np.int64)
        self._next = count
        return rows[:count]

    def _make_room(self) -> None:
        oldest = int(self._first.min())
        live = self._next - oldest
        # New ones in any case: somebody may still look at the actions of an episode that has ended.
        longer = 2 if live > len(self._rows) // 2 else 1
        rows = np.zeros((longer * len(self._rows), *self._rows.shape[1:]), dtype=self._rows.dtype)
        rows[:live] = self._rows[oldest : self._next]
        self._rows = rows
        self._first -= oldest
        self._next = live


def check_actions(actions: list[NDArray], num_envs: int, space: Space[Any]) -> None:
    """Raise ValueError unless `actions` are saved episodes of `num_envs` environments of `space`."""
    shape = space.shape or ()
    if len(actions) != num_envs or any(own.shape[1:] != shape for own in actions):
        raise ValueError(
            f"saved environments do not fit: {len(actions)} of them, now {num_envs},"
            f" with actions shaped {[own.shape[1:] for own in actions][:1]}, now {shape}"
        )
