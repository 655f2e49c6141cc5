"""Curves of several sessions on one grid of frames or seconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MAX_POINTS = 200
"""Of a common grid: more than a figure can show."""


def common_grid(ticks: Sequence[Array], max_points: int = MAX_POINTS) -> Array:
    """The places at which curves of several sessions are compared, rising, [points].

    ticks: frames or seconds of each session's rows, rising. The grid holds every place at which a session
    has a row, once; of more than `max_points` evenly many are left out, never the first or the last.
    """
    places = np.unique(np.concatenate([np.empty(0), *ticks]))
    if len(places) <= max_points:
        return places
    return places[np.linspace(0, len(places) - 1, max_points).round().astype(int)]


def on_grid(grid: Array, ticks: Array, values: Array) -> Array:
    """One session's values on the grid: straight between its rows, nan before the first and after the last.

    ticks, values: [rows]; rows whose value is not finite are passed over. Returns [points].
    """
    there = np.isfinite(values)
    if not there.any():
        return np.full(len(grid), np.nan)
    return np.interp(grid, ticks[there], values[there], left=np.nan, right=np.nan)


def aligned(ticks: Sequence[Array], values: Sequence[Array]) -> tuple[Array, Array]:
    """All sessions on their common grid: the grid [points] and the values [sessions, points]."""
    grid = common_grid(ticks)
    rows = [on_grid(grid, own, value) for own, value in zip(ticks, values, strict=True)]
    return grid, np.array(rows).reshape(len(rows), len(grid))
