"""Transitions that are at hand all at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Piece(NamedTuple):
    """Consecutive transitions of one environment."""

    observation: NDArray
    """[n, *obs]"""
    action: NDArray
    """As the agent remembers them. [n, *stored]"""
    reward: NDArray
    """[n]"""
    next_observation: NDArray
    """What each led to. [n, *obs]"""
    terminated: NDArray[np.bool_]
    """[n]"""
    cut: NDArray[np.bool_]
    """Whether the next one is not what follows. [n]"""
    mask: NDArray[np.bool_] | None = None
    """Which actions were valid, None where that is not told. [n, actions]"""
    next_mask: NDArray[np.bool_] | None = None
    """Which are valid in `next_observation`. [n, actions]"""

    def rows(self, which: slice) -> Piece:
        """Some of them."""
        columns: dict[str, Any] = {}
        for name, column in self._asdict().items():
            columns[name] = None if column is None else column[which]
        return Piece(**columns)
