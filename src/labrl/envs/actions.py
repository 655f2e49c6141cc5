"""The actions of unfinished episodes, from which the episodes are restored with their seeds, and statistics
of the latest actions."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete, Space
from numpy.typing import NDArray

from labrl.envs.protocol import action_dtype
from labrl.spaces import choices_of, widths

WINDOW = 1000
"""Number of latest frames that the statistics cover, rounded up to complete vector steps."""
MOST = 32
"""Maximum number of discrete actions, or of components of a real-valued action, that have columns of their
own."""
NEAR = 0.01
"""Distance from a bound, as a fraction of the range, within which an action counts as being at that bound."""


class ActionRecord:
    """The actions of the unfinished episodes, and the latest actions, in one array.

    Each vector step writes one row. For each environment, the index of the row at which its episode started
    is kept. When the array is full, rows that belong neither to an unfinished episode nor to the latest
    actions are dropped, and the array doubles in size if necessary. Written rows are never changed.
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
        """Add the actions of a vector step. actions: [num_envs, *action]."""
        if self._next == self._rows.shape[0]:
            self._make_room()
        self._rows[self._next] = actions
        self._next += 1

    def begin(self, envs: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Start a new episode in each environment for which the mask `envs`, [num_envs], is set.

        Returns the number of actions in each environment's episode before the call, [num_envs].
        """
        lengths = self._next - self._first
        self._first[envs] = self._next
        return lengths

    def since_reset(self) -> list[NDArray]:
        """Return a copy of each environment's actions since its reset: num_envs arrays, [length, *action]."""
        return [self._rows[first : self._next, env].copy() for env, first in enumerate(self._first)]

    def last(self, env: int, length: int) -> NDArray:
        """Return the latest actions of one environment as a view that later steps do not change.

        Returns [length, *action].
        """
        return self._rows[self._next - length : self._next, env]

    def begin_after(self, latest: NDArray) -> None:
        """Load a saved value of `latest`, and put all environments at the start of an episode."""
        self._rows = self._with_room(len(latest))
        self._rows[: len(latest)] = latest
        self._next = len(latest)
        self._first[:] = self._next

    def load(self, actions: list[NDArray]) -> NDArray:
        """Load a result of `since_reset`, aligned so that every environment's actions end in the last row.

        Returns the rows, [longest, num_envs, *action]. Rows before an environment's own actions are filled
        with actions of the longest episode, which are valid but have no meaning.
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
        """Return a new array with room for at least `count` rows."""
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


def action_statistics(latest: NDArray, space: gym.Space[Any]) -> dict[str, float]:
    """Return the shares of discrete actions, or the means and deviations of real-valued ones; nan if none.

    latest: the actions, as in `ActionRecord.latest`, [steps, num_envs, *action].

    Each component of a MultiDiscrete or MultiBinary action is counted separately. The columns
    `action_share/<action>`, or `action_share/<component>/<value>` if there are several components, exist only
    if the components have at most MOST values in total. `action_top_share` is the largest share of any value
    of any component; 1 means that the policy has collapsed to a single action.

    For real-valued actions, the columns are `action_mean/<component>` and `action_std/<component>`. If there
    is only one component, or more than MOST, they are `action_mean` and `action_std`, averaged over the
    components. `action_bound_share` is the share of components that are within NEAR of a bound, leaving out
    components with a single possible value; 1 means that all actions are extreme.
    """
    columns: dict[str, float] = {}
    if isinstance(space, gym.spaces.Box):
        # Double precision, and one order in memory, so that sums are the same after a resume.
        rows = np.array(latest, np.float64, order="C").reshape(-1, math.prod(space.shape))
        if not len(rows):
            rows = np.full((1, rows.shape[1]), math.nan)
        for name, values in (("action_mean", rows.mean(0)), ("action_std", rows.std(0))):
            if 1 < len(values) <= MOST:
                columns.update((f"{name}/{number}", float(value)) for number, value in enumerate(values))
            else:
                columns[name] = float(values.mean())
        width = widths(space).astype(np.float64).reshape(-1)
        near = np.where(np.isfinite(width), NEAR * width, 0)
        at_bound = (rows <= space.low.reshape(-1) + near) | (rows >= space.high.reshape(-1) - near)
        share = float(at_bound[:, width > 0].mean()) if width.any() else math.nan
        return {**columns, "action_bound_share": share if len(latest) else math.nan}
    of_choices = choices(space)
    rows = latest.reshape(-1, len(of_choices))
    counted = sum(count for _, count in of_choices) <= MOST
    top = 0.0
    for number, (first, count) in enumerate(of_choices):
        shares = np.bincount(rows[:, number] - first, minlength=count) / max(len(rows), 1)
        top = max(top, float(shares.max()))
        name = "action_share" if len(of_choices) == 1 else f"action_share/{number}"
        if counted:
            columns.update((f"{name}/{first + value}", float(shares[value])) for value in range(count))
    columns["action_top_share"] = top
    return columns if len(latest) else dict.fromkeys(columns, math.nan)


def choices(space: gym.Space[Any]) -> list[tuple[int, int]]:
    """Return the first value and the number of values of each discrete component of an action.

    Returns an empty list for real-valued actions.
    """
    is_binary = isinstance(space, gym.spaces.MultiBinary)
    return [(0, 2)] * math.prod(space.shape or ()) if is_binary else choices_of(space)
