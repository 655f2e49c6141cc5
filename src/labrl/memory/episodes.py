"""Storage of whole episodes: rows as those of a rollout, learned from when their episode has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.errors import LabrlError
from labrl.memory.rollout import Rollout
from labrl.workspace import memory_available


class Episodes(Rollout):
    """Collects until `count` episodes have ended; what is still under way then stays for the next time.

    A lost life ends an episode as the learner sees it. Memory grows with the longest episode.
    """

    FIRST_ROWS = 128
    """Vector steps for which there is room at first."""

    def __init__(self, count: int, *shapes: Any) -> None:
        """count: of episodes over all environments; shapes: as those of a Rollout."""
        super().__init__(self.FIRST_ROWS, *shapes)
        self._count, self._ended = count, 0
        self._first = np.zeros(self.num_envs, np.int64)  # rows that no update has used begin here [num_envs]
        self._end = np.zeros(self.num_envs, np.int64)  # the last episode that has ended, ends here [num_envs]

    @property
    def full(self) -> bool:
        """Whether enough episodes have ended."""
        return self._ended >= self._count

    def add_choice(self, observation: NDArray, *choice: Any) -> None:
        """As for a Rollout, making room first."""
        self._make_room(self.t + 1)
        super().add_choice(observation, *choice)

    def add_outcome(self, reward: NDArray, terminated: NDArray, episode_over: NDArray) -> None:
        """What came of step t, [num_envs] each; the rollout moves on to t + 1."""
        super().add_outcome(reward, terminated, episode_over)
        ended = terminated | episode_over
        self._end[ended] = self.t
        self._ended += int(ended.sum())

    def set_values(self, value: NDArray) -> None:
        """Fill in the values of all rows that are learned from, in the order of `flat`. [n]"""
        self._arrays["value"][: self.t].swapaxes(0, 1)[self._whole().T] = value

    def clear(self) -> None:
        """Forget the episodes that have ended, and keep the beginnings of the others."""
        self._first[:] = self._end
        gone = int(self._first.min())
        if gone:
            for array in self._arrays.values():
                array[: self.t - gone] = array[gone : self.t].copy()
        self.t -= gone
        self._first -= gone
        self._end -= gone
        self._ended = 0
        self.cut.clear()  # a cut ends an episode, so all have been used
        self.cut_mask.clear()

    def state_dict(self) -> dict[str, Any]:
        """The rows that are there, and which of them are whole episodes."""
        return {
            **super().state_dict(),
            "ended": self._ended,
            "first": self._first.copy(),
            "end": self._end.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the middle of episodes."""
        self._make_room(int(state["t"]))
        super().load_state_dict(state)
        self._ended = int(state["ended"])
        self._first[:] = state["first"]
        self._end[:] = state["end"]

    def _whole(self) -> NDArray[np.bool_]:
        """Rows of episodes that have ended. [t, num_envs]"""
        row = np.arange(self.t)[:, None]
        return (row >= self._first) & (row < self._end)

    def _learned_from(self, array: NDArray) -> NDArray:
        """[rows, num_envs, ...] -> [n, ...]: one environment's steps in order, then the next one's."""
        return array[: self.t].swapaxes(0, 1)[self._whole().T]

    def _make_room(self, rows: int) -> None:
        """Raises LabrlError before the system would end the process."""
        while self.horizon < rows:
            more, free = sum(array.nbytes for array in self._arrays.values()), memory_available()
            if free is not None and more > free:
                raise LabrlError(
                    f"agent.episodes: storing {self.num_envs} episodes of up to {self.t:,} steps needs "
                    f"{more / 2**30:.1f} GB more, and {free / 2**30:.1f} GB are free: learn from a fixed "
                    "number of steps (agent.horizon) instead of whole episodes, or set env.num_envs lower",
                    code="resources",
                    key="agent.episodes",
                )
            for name, array in self._arrays.items():
                self._arrays[name] = np.concatenate([array, np.zeros_like(array)])
            self.horizon *= 2
