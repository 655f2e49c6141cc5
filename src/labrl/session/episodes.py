"""Statistics of the last finished whole episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from labrl.step import Episode

Source = Literal["training", "evaluation"]
"""Whose episodes a return is of: those that were learned from, or those of separate environments."""


class EpisodeWindow:
    """The returns and lengths of the last `window` episodes, in the order in which they ended."""

    def __init__(self, window: int) -> None:
        self.window = window
        """How many episodes the statistics look back."""
        self.total = 0
        """Episodes that were ever added."""
        self.latest: list[Episode] = []
        """Those that ended in the last step."""
        self._returns: deque[float] = deque(maxlen=window)
        self._lengths: deque[int] = deque(maxlen=window)

    def __len__(self) -> int:
        """How many episodes the statistics are over: at most `window`."""
        return len(self._returns)

    def add(self, episodes: Iterable[Episode]) -> None:
        """Take in the episodes that ended in one step, which may be none."""
        self.latest = list(episodes)
        for episode in self.latest:
            self._returns.append(float(episode.episode_return))
            self._lengths.append(int(episode.length))
            self.total += 1

    def statistics(self) -> dict[str, float]:
        """Mean, population standard deviation, min, max of the returns; mean of the lengths (agent steps).

        All are nan as long as no episode has ended.
        """
        return episode_statistics(self._returns, self._lengths)

    def state_dict(self) -> dict[str, Any]:
        """The window's episodes and the total, as arrays and numbers."""
        return {
            "total": self.total,
            "returns": np.array(self._returns, dtype=np.float64),
            "lengths": np.array(self._lengths, dtype=np.int64),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; a smaller window keeps the newest of the saved episodes."""
        self.total = int(state["total"])
        self._returns = deque((float(value) for value in state["returns"]), maxlen=self.window)
        self._lengths = deque((int(value) for value in state["lengths"]), maxlen=self.window)


def episode_statistics(returns: Iterable[float], lengths: Iterable[int]) -> dict[str, float]:
    """Columns `return_mean`, `return_std`, `return_min`, `return_max`, `length_mean`; nan if none."""
    score = np.fromiter(returns, dtype=np.float64)
    steps = np.fromiter(lengths, dtype=np.float64)
    if score.size == 0:
        return dict.fromkeys(("return_mean", "return_std", "return_min", "return_max", "length_mean"), np.nan)
    return {
        "return_mean": float(score.mean()),
        "return_std": float(score.std()),
        "return_min": float(score.min()),
        "return_max": float(score.max()),
        "length_mean": float(steps.mean()),
    }
