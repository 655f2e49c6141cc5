"""What a plot shows of sessions: their rows over frames or seconds, and the middle of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labrl.analysis.curves import on_grid
from labrl.analysis.intervals import Band, curve
from labrl.analysis.rows import Column
from labrl.analysis.runs import Run, SessionRun

AXES = {"frame": "frames", "wall": "wall time"}
"""Columns that curves are drawn against."""

POINTS = 200
"""Of a curve over several sessions."""

RUNS_FOR_IQM = 4
"""With fewer the interquartile mean leaves nothing out, and is called what it is: the mean."""


@dataclass(frozen=True)
class Curve:
    """One column of one session over an axis; all arrays are [rows], rows without the axis left out."""

    x: Column
    y: Column


def evaluates(run: Run) -> bool:
    """Whether the scores of `eval.csv` come from environments of their own, not from training."""
    return bool(run.config.get("meta", {}).get("rigorous_eval"))


def return_curve(session: SessionRun, axis: str, evaluation: bool) -> Curve:
    """The return over `axis`: of the evaluations, or of the last training episodes."""
    return column_curve(session, "return_mean", axis, evaluation)


def column_curve(session: SessionRun, column: str, axis: str, evaluation: bool = False) -> Curve:
    """Any column of a session over `axis`; empty where there is none."""
    table = session.eval if evaluation else session.train
    if column not in table or axis not in table:
        return Curve(np.empty(0), np.empty(0))
    known = np.isfinite(table[axis])
    return Curve(table[axis][known], table[column][known])


def statistic_of(number_of_runs: int) -> str:
    """What the middle of so many runs is: `iqm`, or `mean` where that would be the same."""
    return "iqm" if number_of_runs >= RUNS_FOR_IQM else "mean"


STATISTICS = {"iqm": "interquartile mean", "mean": "mean", "median": "median"}
"""Their names in full."""


@dataclass(frozen=True)
class Middle:
    """Curves of several sessions as one, on a grid. All are [POINTS] or fewer."""

    x: Column
    band: Band
    statistic: str


def middle(curves: Sequence[Curve], statistic: str | None = None) -> Middle | None:
    """Point by point the statistic over `curves`, with its interval; None without a finite value.

    Between the rows of a curve it is interpolated. The result begins where half of the curves have begun
    and ends where half of them have ended, because the middle of the few that came first or lived longest
    says nothing of the rest.
    """
    usable = [Curve(c.x[known], c.y[known]) for c in curves if (known := np.isfinite(c.y)).any()]
    if not usable:
        return None
    statistic = statistic or statistic_of(len(usable))
    # of an even number of curves the first half's last: the median would lie between two
    start, end = (sorted(c.x[place] for c in usable)[(len(usable) - 1) // 2] for place in (0, -1))
    longest = max(len(c.x) for c in usable)
    grid = np.linspace(start, end, min(max(longest, 2), POINTS)) if end > start else np.array([end])
    values = np.array([on_grid(grid, c.x, c.y) for c in usable])
    return Middle(grid, curve(values, statistic), statistic)


def alone(values: Column) -> NDArray[np.bool_]:
    """Which values have a gap, or an end, on either side: a line through them is not seen. [rows]"""
    known = np.concatenate([[False], np.isfinite(values), [False]])
    return known[1:-1] & ~known[:-2] & ~known[2:]


def moving_average(values: Column, rows: int) -> Column:
    """Mean of each value and those before it, `rows` together at most; nan are passed over. [rows]"""
    known = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    first = np.maximum(np.arange(1, len(values) + 1) - rows, 0)
    last = np.arange(1, len(values) + 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(
            count[last] > count[first], (total[last] - total[first]) / (count[last] - count[first]), np.nan
        )


def window_of(rows: int) -> int:
    """Rows over which a curve of so many is averaged: a twentieth, at least 3."""
    return max(3, round(rows / 20))


def time_unit(longest: float) -> tuple[str, float]:
    """In what a wall time of so many seconds is told, and the seconds in it."""
    for name, seconds in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if longest >= 2 * seconds:
            return name, seconds
    return "seconds", 1.0
