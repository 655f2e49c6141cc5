"""Curves of sessions over frames or seconds, and the middle of several, for charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from labrl.analysis.charts import Axis, View
from labrl.analysis.intervals import MAX_POINTS, curve, on_grid, statistic_of
from labrl.analysis.rows import Column
from labrl.analysis.runs import Run, SessionRun

AXES = ("frame", "wall")
"""Columns that curves are drawn against."""


class Curve(NamedTuple):
    """One column of one session over an axis: arrays [rows] of the rows in which the axis is known."""

    x: Column
    y: Column
    spread: Column | None = None
    """Standard deviation of what `y` is the mean of."""


def evaluates(run: Run) -> bool:
    """Whether the scores of `eval.csv` come from environments of their own, not from training."""
    return bool(run.config.get("meta", {}).get("rigorous_eval"))


def return_curve(session: SessionRun, axis: str, evaluation: bool) -> Curve:
    """The return over `axis`: of the evaluations, or of the last training episodes.

    evaluation: whether `eval.csv` is of environments of their own. Where it is not, both tables have rows of
    the same quantity, at other frames, and all of them make the curve.
    """
    if evaluation:
        return column_curve(session, "return_mean", axis, session.eval)
    tables = [session.train, session.eval]
    parts = [column_curve(session, "return_mean", axis, table) for table in tables]
    x = np.concatenate([part.x for part in parts])
    y = np.concatenate([part.y for part in parts])
    x, y = x[known := np.isfinite(y)], y[known]
    x, first = np.unique(x, return_index=True)
    return Curve(x, y[first])


def training_returns(session: SessionRun, axis: str) -> Curve:
    """The return of the training rows, with its spread over the episodes."""
    return column_curve(session, "return_mean", axis, session.train, "return_std")


def column_curve(
    session: SessionRun, column: str, axis: str, table: dict[str, Column] | None = None, spread: str = ""
) -> Curve:
    """Any column of a session over `axis`, of its training rows where no `table` is given."""
    table = session.train if table is None else table
    if column not in table or axis not in table:
        return Curve(np.empty(0), np.empty(0))
    known = np.isfinite(table[axis])
    return Curve(table[axis][known], table[column][known], table[spread][known] if spread in table else None)


def middle(curves: Sequence[Curve], statistic: str | None = None) -> View | None:
    """Point by point the statistic over `curves`, with its interval; None without a finite value.

    Between the rows of a curve it is interpolated. The result begins where half of the curves have begun
    and ends where half of them have ended, because the middle of the few that came first or lived longest
    says nothing of the rest.
    """
    usable = [Curve(c.x[known], c.y[known]) for c in curves if (known := np.isfinite(c.y)).any()]
    if not usable:
        return None
    # of an even number of curves the first half's last: the median would lie between two
    start, end = (sorted(c.x[place] for c in usable)[(len(usable) - 1) // 2] for place in (0, -1))
    points = min(max(2, *(len(c.x) for c in usable)), MAX_POINTS)
    grid = np.linspace(start, end, points) if end > start else np.array([end])
    band = curve([on_grid(grid, c.x, c.y) for c in usable], statistic or statistic_of(len(usable)))
    return View(grid, band.value, *((band.low, band.high) if np.isfinite(band.low).any() else ()))


class TimeAxes:
    """Frames and wall time, in a unit that suits the longest of the runs: what curves are drawn against."""

    def __init__(self, runs: Sequence[Run]) -> None:
        walls = [session.train.get("wall", np.empty(0)) for run in runs for session in run.sessions]
        longest = max((float(np.nanmax(wall)) for wall in walls if np.isfinite(wall).any()), default=0.0)
        unit, self._seconds = time_unit(longest)
        self.axes = {"frame": Axis("frames"), "wall": Axis(f"wall time ({unit})")}

    def views(self, curves: dict[str, Curve]) -> dict[str, View]:
        """One session's curve by axis."""
        return {
            axis: View(
                c.x / (self._seconds if axis == "wall" else 1.0),
                c.y,
                *(() if c.spread is None else (c.y - c.spread, c.y + c.spread)),
            )
            for axis, c in curves.items()
        }

    def middles(self, curves: Sequence[dict[str, Curve]]) -> dict[str, View]:
        """The middle of several sessions' curves by axis; empty without a finite value."""
        found = {axis: middle([one[axis] for one in curves]) for axis in AXES}
        return {
            axis: View(view.x / (self._seconds if axis == "wall" else 1.0), view.y, view.low, view.high)
            for axis, view in found.items()
            if view is not None
        }


def time_unit(longest: float) -> tuple[str, float]:
    """Choose the unit for a wall time of so many seconds; returns its name and the seconds in it."""
    for name, seconds in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if longest >= 2 * seconds:
            return name, seconds
    return "seconds", 1.0
