"""Mean and variance of what goes by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.networks.ranks import ALONE


class RunningMoments:
    """Mean and variance of a stream of batches (Chan et al., 1979, "Updating formulae", eq. 1.5)."""

    def __init__(self, shape: tuple[int, ...], window: int | None = None) -> None:
        """window: what came before counts as this many samples at most; None: all that there were."""
        self.count, self._window = 0.0, window
        self.ranks = ALONE
        """Whose samples are taken in too: as many on each."""
        self.mean = np.zeros(shape)
        self._squares = np.zeros(shape)

    def update(self, batch: NDArray) -> None:
        """batch: [n, *shape]."""
        batch = np.asarray(batch, np.float64)
        n, mean = len(batch), batch.mean(0)
        squares = ((batch - mean) ** 2).sum(0)
        if not self.ranks.alone:
            n, mean, squares = _of_all(self.ranks.gathered((mean, squares)), n)
        difference, total = mean - self.mean, self.count + n
        self._squares += squares + difference**2 * (self.count * n / total)
        self.mean += difference * (n / total)
        self.count = total
        if self._window is not None and total > self._window:
            # What is old fades: after `window` further samples it weighs 1/e of what it did.
            self._squares *= self._window / total
            self.count = float(self._window)

    @property
    def variance(self) -> NDArray:
        """Population variance; 1 before there is one."""
        return self._squares / self.count if self.count > 1 else np.ones_like(self._squares)

    def state_dict(self) -> dict[str, Any]:
        """Sums so far."""
        return {"count": self.count, "mean": self.mean.copy(), "squares": self._squares.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved sums."""
        self.count = float(state["count"])
        self.mean = np.array(state["mean"], np.float64)
        self._squares = np.array(state["squares"], np.float64)


def _of_all(moments: Sequence[tuple[NDArray, NDArray]], n: int) -> tuple[int, NDArray, NDArray]:
    """Count, mean and sum of squared deviations of batches of n samples each, from those of each."""
    means = np.array([mean for mean, _ in moments])
    squares = np.sum([squares for _, squares in moments], axis=0)
    mean = means.mean(0)
    return n * len(moments), mean, squares + n * ((means - mean) ** 2).sum(0)
