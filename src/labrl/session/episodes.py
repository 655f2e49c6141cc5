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
        self.latest: deque[Episode] = deque(maxlen=window)
        """What the statistics are over. Of episodes from a checkpoint only return and length are known."""

    def statistics(self) -> dict[str, float]:
        """Mean, population standard deviation, min, max of the returns; mean of the lengths (agent steps).

        All are nan as long as no episode has ended.
        """
        return episode_statistics(
            (episode.episode_return for episode in self.latest), (episode.length for episode in self.latest)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the window's returns and lengths as arrays."""
        return {
            "returns": np.array([episode.episode_return for episode in self.latest], dtype=np.float64),
            "lengths": np.array([episode.length for episode in self.latest], dtype=np.int64),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; a smaller window keeps the newest of the saved episodes."""
        known = zip(state["returns"], state["lengths"], strict=True)
        self.latest.clear()
        self.latest.extend(Episode(-1, -1, -1, float(score), int(length), False) for score, length in known)


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
