"""Storage of one rollout as sequences, each with the state of the network before its first step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.memory.rollout import Rollout
from labrl.step import Step


class SequenceRollout(Rollout):
    """A rollout that is read sequence after sequence: `length` steps of one environment in their order.

    All environments' first sequences come before all their second ones.
    """

    def __init__(self, length: int, state_size: int, horizon: int, *shapes: Any) -> None:
        """length: of a sequence, divides the horizon; the others as those of a Rollout."""
        super().__init__(horizon, *shapes)
        self.length = length
        self._state = np.zeros((horizon // length, self.num_envs, state_size), np.float32)
        self._cut_state: list[NDArray] = []

    def add_state(self, state: NDArray) -> None:
        """What was remembered before step t; kept if a sequence begins there. [num_envs, state_size]"""
        if self.t % self.length == 0:
            self._state[self.t // self.length] = state

    def add_cut_states(self, step: Step, state: NDArray) -> None:
        """With `add_cuts`: what is remembered at the last states of episodes that were cut short.

        state: after step t. [num_envs, state_size]
        """
        self._cut_state += [state[env].copy() for env in np.flatnonzero(step.truncated & ~step.terminated)]

    @property
    def cut_state(self) -> NDArray:
        """What was remembered at each of `cut`. [cuts, state_size]"""
        return np.stack(self._cut_state) if self._cut_state else self._state[0, :0]

    @property
    def state(self) -> NDArray:
        """What was remembered before each sequence. [sequences, state_size]"""
        return self._state.reshape(-1, self._state.shape[2])

    @property
    def start(self) -> NDArray[np.bool_]:
        """Whether a step that is not the first of its sequence is the first of its episode.

        [sequences, length]; at the first of a sequence the state is a fresh one where an episode begins.
        """
        over = self._learned_from(self["episode_over"]).reshape(-1, self.length)
        return np.concatenate([np.zeros_like(over[:, :1]), over[:, :-1]], axis=1)

    def clear(self) -> None:
        """Begin the next rollout."""
        super().clear()
        self._cut_state.clear()

    def state_dict(self) -> dict[str, Any]:
        """The rows that are filled, and the states that belong to them."""
        begun = -(-self.t // self.length)
        return {
            **super().state_dict(),
            "state": self._state[:begun].copy(),
            "cut_state": [state.copy() for state in self._cut_state],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the middle of a rollout."""
        super().load_state_dict(state)
        self._state[: len(state["state"])] = state["state"]
        self._cut_state = list(state["cut_state"])

    def _learned_from(self, array: NDArray) -> NDArray:
        """[horizon, num_envs, ...] -> [n, ...]"""
        parts = array.reshape(-1, self.length, *array.shape[1:])  # [sequences of each, length, num_envs, ...]
        return parts.swapaxes(1, 2).reshape(-1, *array.shape[2:])
