"""Prioritized replay (Schaul et al., 2016, arXiv:1511.05952): the proportional variant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.config.types import NonNegativeSchedule, PositiveFloat
from labrl.memory.replay import Replay, ReplayConfig
from labrl.memory.sum_tree import SumTree
from labrl.schedules import value_at
from labrl.step import Step


@dataclass(kw_only=True)
class PrioritizedReplayConfig(ReplayConfig):
    """Options of prioritized replay."""

    alpha: NonNegativeSchedule
    """Exponent of the priorities, eq. 1, >= 0; 0 is uniform sampling. On a schedule, a priority is what the
    exponent made of the error when the transition was learned from."""
    beta: NonNegativeSchedule
    """Exponent of the importance weights, section 3.4, >= 0; 1 corrects the bias in full."""
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
        """As Replay."""
        super().__init__(config, **runtime)
        self._config = config
        # Not as many as there are slots: how many of these are spare must not change what is drawn.
        self._live = self._transitions.live
        # What cannot be sampled has priority 0. [num_envs * live]
        self._tree = SumTree(self._transitions.num_envs * self._live)
        self._largest = 1.0
        self._frame = 0  # of the latest sample, for the errors that come back for it
        self._both = np.arange(2 * self._transitions.num_envs)  # twice each environment

    @property
    def num_bytes(self) -> int:
        """Of memory or disk that all of it takes when full."""
        return super().num_bytes + self._tree.num_bytes

    def add(
        self, observation: NDArray, action: NDArray, step: Step, mask: NDArray[np.bool_] | None = None
    ) -> None:
        """Store one vector step; what can be sampled since then gets the largest priority so far."""
        transitions = self._transitions
        # Of every environment, the steps that left and then, for a new one may take their place, the new.
        first = np.concatenate([transitions.oldest, transitions.complete])
        super().add(observation, action, step, mask)
        count = np.concatenate([transitions.oldest, transitions.complete]) - first
        row = np.repeat(self._both, count)
        begins = count.cumsum() - count  # where the steps of each row of `first` begin in the result
        steps = np.arange(len(row)) + (first - begins)[row]
        is_new, env = np.divmod(row, transitions.num_envs)
        self._tree.set(self._places(env, steps), is_new * self._largest)

    def update_priorities(self, index: NDArray[np.int64], error: NDArray) -> None:
        """Give transitions of a sample their new errors; those that have left the memory are passed over.

        index, error: [batch], the sign of an error does not matter. Raises ValueError when one is not finite.
        """
        alpha = value_at(self._config.alpha, self._frame)
        priority = (np.abs(np.asarray(error, np.float64)) + self._config.eps) ** alpha
        if not np.isfinite(priority).all():
            raise ValueError("errors must be finite numbers")
        env, step = self._transitions.pairs(index)
        there = step >= self._transitions.oldest[env]
        self._largest = max(self._largest, float(priority.max(initial=0.0)))
        self._tree.set(self._places(env[there], step[there]), priority[there])

    def state_dict(self) -> dict[str, Any]:
        """All but the generator."""
        priority = self._tree.values.reshape(-1, self._live)[:, : self._transitions.steps]
        return {**super().state_dict(), "priority": priority.copy(), "largest_priority": self._largest}

    def _restore(self, state: Mapping[str, Any]) -> None:
        super()._restore(state)
        priority = np.zeros((self._transitions.num_envs, self._live))
        priority[:, : state["priority"].shape[1]] = state["priority"]
        self._tree.fill(priority.reshape(-1))
        self._largest = float(state["largest_priority"])

    def _draw(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        share = self._generator.random(count)
        if self._config.stratified:
            share = (np.arange(count) + share) / max(count, 1)
        env, place = np.divmod(self._tree.find(share * self._tree.total), self._live)
        # The latest step that was given this place.
        last = self._transitions.steps - 1
        return env, last - (last - place) % self._live

    def _weights(self, env: NDArray[np.int64], step: NDArray[np.int64], frame: int) -> NDArray[np.float32]:
        self._frame = frame
        priority = self._tree.values[self._places(env, step)]
        # N and the sum of priorities cancel out in the ratio to the largest weight.
        return ((priority.min() / priority) ** value_at(self._config.beta, frame)).astype(np.float32)

    def _places(self, env: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of transitions in the tree. [batch] each"""
        return env * self._live + step % self._live
