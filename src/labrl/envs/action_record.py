"""The actions of unfinished episodes, which restore them together with their seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Space
from numpy.typing import NDArray

from labrl.envs.action_statistics import WINDOW
from labrl.envs.protocol import action_dtype


class ActionRecord:
    """Actions of the unfinished episodes, and the latest actions.

    Each vector step writes one row, and each environment has the index of the row at which its episode
    started. When room runs out, rows that belong neither to an unfinished episode nor to the latest actions
    are dropped, and the array doubles in size if necessary. Written rows are never changed.
    """

    def __init__(self, num_envs: int, space: Space[Any], capacity: int = 1024) -> None:
        shape = space.shape or ()
        self._dtype = stored = action_dtype(space)
        if isinstance(space, Discrete) and space.start >= 0 and int(space.start) + int(space.n) <= 256:
            stored = np.dtype(np.uint8)
        self._rows = np.zeros((capacity, num_envs, *shape), dtype=stored)
        self._window = -(-WINDOW // num_envs)  # number of rows in `latest`
        self._first = np.zeros(num_envs, dtype=np.int64)
        self._next = 0

    @property
    def latest(self) -> NDArray:
        """Actions of the last WINDOW frames. [steps, num_envs, *action]"""
        return self._rows[max(self._next - self._window, 0) : self._next].astype(self._dtype)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of actions since each environment's reset. [num_envs]"""
        return self._next - self._first

    def append(self, actions: NDArray) -> None:
        """Add one action per environment. actions: [num_envs, *action]."""
        if self._next == len(self._rows):
            self._make_room()
        self._rows[self._next] = actions
        self._next += 1

    def begin(self, envs: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Start a new episode of the environments in the mask `envs`, [num_envs].

        Returns the number of actions of each environment's previous episode, [num_envs].
        """
        lengths = self._next - self._first
        self._first[envs] = self._next
        return lengths

    def since_reset(self) -> list[NDArray]:
        """Return a copy of each environment's actions since its reset, num_envs arrays [length, *action]."""
        return [self._rows[first : self._next, env].copy() for env, first in enumerate(self._first)]

    def last(self, env: int, length: int) -> NDArray:
        """Return a view of the latest actions of one environment, which later steps do not change.

        Returns [length, *action].
        """
        return self._rows[self._next - length : self._next, env]

    def begin_after(self, latest: NDArray) -> None:
        """Load a value of `latest`, with all environments at the start of an episode."""
        self._rows = self._with_room(len(latest))
        self._rows[: len(latest)] = latest
        self._next = len(latest)
        self._first[:] = self._next

    def load(self, actions: list[NDArray]) -> NDArray:
        """Load a result of `since_reset`, aligned so that every environment's actions end in the last row.

        Returns the rows, [longest, num_envs, *action]. Before an environment's own actions, they are filled
        with those of the longest episode, as valid actions without meaning.
        """
        longest, latest = max(actions, key=len), self._rows[: self._next]
        count, lengths = len(longest), np.array([len(own) for own in actions], dtype=np.int64)
        self._next = max(count, len(latest))
        self._rows = rows = self._with_room(self._next)
        first = self._next - count
        for env, own in enumerate(actions):
            rows[first : self._next - len(own), env] = longest[: count - len(own)]
            rows[self._next - len(own) : self._next, env] = own
        to_play = rows[first : self._next].copy()
        rows[self._next - len(latest) : self._next] = latest
        self._first = self._next - lengths
        return to_play

    def _with_room(self, count: int) -> NDArray:
        """Return an empty array of at least `count` rows."""
        capacity = len(self._rows)
        while capacity < count:
            capacity *= 2
        return np.zeros((capacity, *self._rows.shape[1:]), dtype=self._rows.dtype)

    def _make_room(self) -> None:
        oldest = max(min(int(self._first.min()), self._next - self._window), 0)
        live = self._next - oldest
        # Always a new array, because views of a finished episode's actions may still be in use.
        longer = 2 if live > len(self._rows) // 2 else 1
        rows = np.zeros((longer * len(self._rows), *self._rows.shape[1:]), dtype=self._rows.dtype)
        rows[:live] = self._rows[oldest : self._next]
        self._rows = rows
        self._first -= oldest
        self._next = live
