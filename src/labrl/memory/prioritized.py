"""Prioritized replay, proportional variant (Schaul et al., 2016, arXiv:1511.05952)."""

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
"""Number of children of each node of the tree. Each level costs a few NumPy calls, regardless of its width,
so a few wide levels are several times faster than many binary levels. In a tree of a million numbers, setting
32 numbers takes 30 us and finding 32 takes 60 us."""

_BELOW_ONE = 1 - 2.0**-52


@dataclass(kw_only=True)
class PrioritizedReplayConfig(ReplayConfig):
    """Options of prioritized replay."""

    alpha: NonNegativeSchedule
    """Exponent of the priorities, eq. 1, >= 0; 0: uniform sampling. With a schedule, a priority keeps the
    exponent that was in effect when its transition was last learned from."""
    beta: ProbabilitySchedule
    """Exponent of the importance weights, section 3.4, in [0, 1]; 1: full correction of the bias."""
    eps: PositiveFloat
    """Number added to every absolute error, so that each transition can be sampled, > 0."""
    stratified: bool
    """Whether to draw once from each of batch_size equal parts of the total priority (appendix B.2.1)."""


class PrioritizedReplay(Replay):
    """Samples transitions with probabilities proportional to a power of their last absolute error.

    P(i) = p_i / sum_k p_k with p_i = (|error_i| + eps)^alpha (eq. 1). New transitions get the largest
    priority so far. The weights are (N P(i))^-beta divided by the largest weight of the batch. The newest
    transitions, which `newest_share` adds to each batch, are weighted as if they had been sampled.
    """

    Config = PrioritizedReplayConfig

    def __init__(self, config: PrioritizedReplayConfig, **runtime: Any) -> None:
        """Take the same arguments as `Replay`."""
        super().__init__(config, **runtime)
        # Use `live` slots for each environment, not `slots`: spare slots must not influence what is sampled.
        # Transitions that cannot be sampled have priority 0. [num_envs * live]
        self._tree = SumTree(self.num_envs * self.live)
        self._largest = 1.0
        self._frame = 0  # frame of the latest minibatch, whose errors arrive later
        self._both = np.arange(2 * self.num_envs)  # two rows for each environment

    def _write(self) -> None:
        if self._waiting:
            with self._new_priorities():
                super()._write()

    def _break_off(self, first: NDArray) -> None:
        with self._new_priorities():
            super()._break_off(first)

    @contextmanager
    def _new_priorities(self) -> Iterator[None]:
        """Context manager: transitions that become available for sampling get the maximum priority so far."""
        # For each environment: first the steps that have left, then the new steps, which may reuse slots.
        first = np.concatenate([self.oldest, self.complete])
        yield
        count = np.concatenate([self.oldest, self.complete]) - first
        row = np.repeat(self._both, count)
        begins = count.cumsum() - count  # position of the first step of each row of `first`
        steps = np.arange(len(row)) + (first - begins)[row]
        is_new, env = np.divmod(row, self.num_envs)
        self._tree.set(self._places(env, steps), is_new * self._largest)

    def update_priorities(self, index: NDArray[np.int64], error: NDArray) -> None:
        """Set the errors of sampled transitions. Transitions that have left the buffer are ignored.

        index, error: [batch] each; errors may have either sign. Raises ValueError if an error is not finite.
        """
        self._write()  # transitions not yet written get the largest priority so far
        alpha = value_at(self._config.alpha, self._frame)
        priority = (np.abs(np.asarray(error, np.float64)) + self._config.eps) ** alpha
        if not np.isfinite(priority).all():
            raise ValueError("errors must be finite numbers")
        step, env = np.divmod(index, self.num_envs)
        there = step >= self.oldest[env]
        self._largest = max(self._largest, float(priority.max(initial=0.0)))
        self._tree.set(self._places(env[there], step[there]), priority[there])

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state except the generator."""
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
        # The latest step in this slot.
        last = self.steps - 1
        return env, last - (last - place) % self.live

    def weights(self, env: NDArray[np.int64], step: NDArray[np.int64], frame: int) -> NDArray[np.float32]:
        self._frame = frame
        priority = self._tree.values[self._places(env, step)]
        # N and the sum of the priorities cancel in the ratio to the largest weight.
        return ((priority.min() / priority) ** value_at(self._config.beta, frame)).astype(np.float32)

    def _places(self, env: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of transitions in the tree. [batch] each"""
        return env * self.live + step % self.live


class SumTree:
    """Tree of sums over nonnegative numbers with batched updates and searches.

    The time of sampling in proportion to the numbers grows with the logarithm of their count. Every sum is
    recomputed from its children, so rounding errors do not accumulate, and the tree depends only on the
    numbers, not on the order in which they were set.
    """

    def __init__(self, size: int) -> None:
        """size: number of leaves, which are initially 0."""
        self.size = size
        self._levels: list[NDArray[np.float64]] = []  # first the leaves, last the root [nodes, WIDTH] each
        nodes = size
        while nodes > 1 or not self._levels:
            nodes = -(-nodes // WIDTH)
            self._levels.append(np.zeros((nodes, WIDTH)))
        self._flat = [level.reshape(-1) for level in self._levels]

    @property
    def values(self) -> NDArray[np.float64]:
        """The numbers in the leaves; read only. [size]"""
        return self._flat[0][: self.size]

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        return float(self._levels[-1].sum())

    def set(self, place: NDArray[np.int64], value: NDArray[np.float64] | float) -> None:
        """Set the numbers at indices `place`; the last number wins if an index is repeated. [batch] each"""
        self._flat[0][place] = value
        for level, above in zip(self._levels, self._flat[1:], strict=False):
            place = place // WIDTH
            above[place] = level.take(place, axis=0).sum(axis=1)

    def fill(self, values: NDArray[np.float64]) -> None:
        """Set all numbers. [size]"""
        self.values[:] = values
        for level, above in zip(self._levels, self._flat[1:], strict=False):
            above[: len(level)] = level.sum(axis=1)

    def find(self, prefix: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the first indices up to which the numbers add up to more than `prefix`. [batch] each

        prefix: 0 <= prefix < total. The index of a 0 is never returned, despite rounding errors.
        """
        node = np.zeros(len(prefix), np.int64)
        # Sums of the children before each child, and of all children.
        sums = np.zeros((len(prefix), WIDTH + 1))
        begins = np.arange(0, sums.size, WIDTH + 1)
        for level in reversed(self._levels):
            np.add.accumulate(level.take(node, axis=0), axis=1, out=sums[:, 1:])
            # Keep the prefix below the sum of the node despite rounding, so that a child is found.
            prefix = np.minimum(prefix, sums[:, -1] * _BELOW_ONE)
            child = (sums[:, 1:] > prefix[:, None]).argmax(axis=1)
            prefix -= sums.reshape(-1).take(begins + child)
            node *= WIDTH
            node += child
        return node
