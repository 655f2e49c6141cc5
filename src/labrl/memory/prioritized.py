"""Prioritized replay (Schaul et al., 2016, arXiv:1511.05952): the proportional variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.memory.replay import Replay, ReplayConfig
from labrl.schedules import value_at
from labrl.types import NonNegativeSchedule, PositiveFloat, ProbabilitySchedule

WIDTH = 16
"""Children of a node of the tree. A level costs a few NumPy calls whatever its width, so few wide levels beat
many binary ones: of a million numbers, 32 are set in 30 us and found in 60 us, several times faster."""

_BELOW_ONE = 1 - 2.0**-52


@dataclass(kw_only=True)
class PrioritizedReplayConfig(ReplayConfig):
    """Options of prioritized replay."""

    alpha: NonNegativeSchedule
    """Exponent of the priorities, eq. 1, >= 0; 0 is uniform sampling. On a schedule, a priority is what the
    exponent made of the error when the transition was learned from."""
    beta: ProbabilitySchedule
    """Exponent of the importance weights, section 3.4, in [0, 1]; 1 corrects the bias in full."""
    eps: PositiveFloat
    """Added to every error, so that none is never sampled, > 0."""
    stratified: bool
    """Draw once from each of batch_size equal parts of the total priority (appendix B.2.1)."""


class PrioritizedReplay(Replay):
    """Transitions are drawn in proportion to a power of their last error, new ones to the largest so far.

    P(i) = p_i / sum_k p_k with p_i = (|error_i| + eps)^alpha (eq. 1). The weights are (N P(i))^-beta divided
    by the largest of the batch. The newest transitions of `newest_share` are weighted as if drawn.
    """

    Config = PrioritizedReplayConfig

    def __init__(self, config: PrioritizedReplayConfig, **runtime: Any) -> None:
        """Take the arguments of `Replay`."""
        super().__init__(config, **runtime)
        # `live` places for each environment, not `slots`: how many are spare must not change what is drawn.
        # What cannot be sampled has priority 0. [num_envs * live]
        self._tree = SumTree(self.num_envs * self.live)
        self._largest = 1.0
        self._frame = 0  # of the latest sample, for the errors that come back for it
        self._both = np.arange(2 * self.num_envs)  # twice each environment

    @property
    def num_bytes(self) -> int:
        """Bytes of memory or disk that all of it takes when full."""
        return super().num_bytes + self._tree.num_bytes

    def _write(self) -> None:
        if self._waiting:
            with self._new_priorities():
                super()._write()

    def _break_off(self, first: NDArray) -> None:
        with self._new_priorities():
            super()._break_off(first)

    @contextmanager
    def _new_priorities(self) -> Iterator[None]:
        """Give what can be sampled after the `with` block, and not before, the largest priority so far."""
        # Of every environment, the steps that left and then, for a new one may take their place, the new.
        first = np.concatenate([self.oldest, self.complete])
        yield
        count = np.concatenate([self.oldest, self.complete]) - first
        row = np.repeat(self._both, count)
        begins = count.cumsum() - count  # where the steps of each row of `first` begin in the result
        steps = np.arange(len(row)) + (first - begins)[row]
        is_new, env = np.divmod(row, self.num_envs)
        self._tree.set(self._places(env, steps), is_new * self._largest)

    def update_priorities(self, index: NDArray[np.int64], error: NDArray) -> None:
        """Give transitions of a sample their new errors; those that have left the buffer are passed over.

        index, error: [batch], the sign of an error does not matter. Raises ValueError when one is not finite.
        """
        self._write()  # what waits gets the largest priority before these
        alpha = value_at(self._config.alpha, self._frame)
        priority = (np.abs(np.asarray(error, np.float64)) + self._config.eps) ** alpha
        if not np.isfinite(priority).all():
            raise ValueError("errors must be finite numbers")
        step, env = np.divmod(index, self.num_envs)
        there = step >= self.oldest[env]
        self._largest = max(self._largest, float(priority.max(initial=0.0)))
        self._tree.set(self._places(env[there], step[there]), priority[there])

    def state_dict(self) -> dict[str, Any]:
        """Return all but the generator."""
        state = super().state_dict()
        priority = self._tree.values.reshape(-1, self.live)[:, : self.steps]
        return {**state, "priority": priority.copy(), "largest_priority": self._largest}

    def _restore(self, state: Mapping[str, Any]) -> None:
        super()._restore(state)
        priority = np.zeros((self.num_envs, self.live))
        priority[:, : state["priority"].shape[1]] = state["priority"]
        self._tree.fill(priority.reshape(-1))
        self._largest = float(state["largest_priority"])

    def draw(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        share = self.generator.random(count)
        if self._config.stratified:
            share = (np.arange(count) + share) / max(count, 1)
        env, place = np.divmod(self._tree.find(share * self._tree.total), self.live)
        # The latest step that was given this place.
        last = self.steps - 1
        return env, last - (last - place) % self.live

    def weights(self, env: NDArray[np.int64], step: NDArray[np.int64], frame: int) -> NDArray[np.float32]:
        self._frame = frame
        priority = self._tree.values[self._places(env, step)]
        # N and the sum of priorities cancel out in the ratio to the largest weight.
        return ((priority.min() / priority) ** value_at(self._config.beta, frame)).astype(np.float32)

    def _places(self, env: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of transitions in the tree. [batch] each"""
        return env * self.live + step % self.live


class SumTree:
    """Numbers >= 0, and sums of them level by level; a batch is set or found at once.

    Drawing in proportion to the numbers takes time that grows with the logarithm of their count. A sum is
    always taken anew from its children: no rounding error piles up, and the tree depends on the numbers
    alone, not on the order in which they were set.
    """

    def __init__(self, size: int) -> None:
        """size: how many numbers, all 0 at first."""
        self.size = size
        self._levels: list[NDArray[np.float64]] = []  # the numbers first, the root last [nodes, WIDTH] each
        nodes = size
        while nodes > 1 or not self._levels:
            nodes = -(-nodes // WIDTH)
            self._levels.append(np.zeros((nodes, WIDTH)))
        self._flat = [level.reshape(-1) for level in self._levels]

    @property
    def values(self) -> NDArray[np.float64]:
        """The numbers; not to be written to. [size]"""
        return self._flat[0][: self.size]

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        return float(self._levels[-1].sum())

    @property
    def num_bytes(self) -> int:
        """Bytes of all levels."""
        return sum(level.nbytes for level in self._levels)

    def set(self, place: NDArray[np.int64], value: NDArray[np.float64] | float) -> None:
        """Change the numbers at `place`; of a place that is named twice, the last counts. [batch] each"""
        self._flat[0][place] = value
        for level, above in zip(self._levels, self._flat[1:], strict=False):
            place = place // WIDTH
            above[place] = level.take(place, axis=0).sum(axis=1)

    def fill(self, values: NDArray[np.float64]) -> None:
        """Change all numbers. [size]"""
        self.values[:] = values
        for level, above in zip(self._levels, self._flat[1:], strict=False):
            above[: len(level)] = level.sum(axis=1)

    def find(self, prefix: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the first places up to which the numbers sum to more than `prefix`. [batch] each

        0 <= prefix < total. A number that is 0 is never found, whatever rounding does.
        """
        node = np.zeros(len(prefix), np.int64)
        sums = np.zeros((len(prefix), WIDTH + 1))  # of the children before each child, and of all
        begins = np.arange(0, sums.size, WIDTH + 1)
        for level in reversed(self._levels):
            np.add.accumulate(level.take(node, axis=0), axis=1, out=sums[:, 1:])
            # Less than the sum of the node, whatever rounding has done: the next child ends beyond it.
            prefix = np.minimum(prefix, sums[:, -1] * _BELOW_ONE)
            child = (sums[:, 1:] > prefix[:, None]).argmax(axis=1)
            prefix -= sums.reshape(-1).take(begins + child)
            node *= WIDTH
            node += child
        return node
