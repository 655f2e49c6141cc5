"""Long curves as fewer points that look the same: what a screen cannot show is not stored."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labrl.analysis.report.sections import View


def kept(y: NDArray[np.float64], most: int) -> NDArray[np.intp]:
    """Which of the values of a curve to keep, at most about `most`: rising indices, both ends among them.

    y: [points]. The curve is cut into stretches of equal length, of each of which the lowest and the
    highest finite value and the first gap stay: no spike and no hole disappears.
    """
    if len(y) <= most or most < 8:
        return np.arange(len(y))
    length = -(-len(y) // (most // 2))
    values = np.full(-(-len(y) // length) * length, np.nan)
    values[: len(y)] = y
    stretches = values.reshape(-1, length)
    starts = np.arange(0, len(values), length)
    gaps = ~np.isfinite(stretches)
    lowest = np.where(gaps, np.inf, stretches).argmin(axis=1)
    highest = np.where(gaps, -np.inf, stretches).argmax(axis=1)
    gap = gaps.argmax(axis=1)[gaps.any(axis=1)] + starts[gaps.any(axis=1)]
    chosen = np.unique(np.concatenate([[0, len(y) - 1], lowest + starts, highest + starts, gap]))
    return chosen[chosen < len(y)]


def thinned(view: View, most: int) -> View:
    """`view` with at most about `most` points; its band is kept at the same places."""
    index = kept(view.y, most)
    low, high = (None if ends is None else ends[index] for ends in (view.low, view.high))
    return View(view.x[index], view.y[index], low, high)
