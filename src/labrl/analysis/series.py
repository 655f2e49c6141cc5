"""Curves of sessions over frames or wall time, and the IQM or mean of several curves, for charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from labrl.analysis.charts import Axis, View
from labrl.analysis.formats import time_unit
from labrl.analysis.intervals import align_curves, curve, statistic_of
from labrl.run.run import Run
from labrl.run.session import RunSession
from labrl.run.tables import Column, known

AXES = ("frame", "wall")
"""Columns that curves are drawn against."""

Views = dict[str, View]
"""Views of one curve, by the name of the axis."""


class TimeAxes:
    """The axes that curves are drawn against: frames, and wall time in a unit that suits the longest
    session."""

    def __init__(self, runs: Sequence[Run]) -> None:
        walls = [known(session.train, "wall") for run in runs for session in run.sessions]
        unit, seconds = time_unit(max((float(wall.max()) for wall in walls if len(wall)), default=0.0))
        self._units = {"frame": 1.0, "wall": seconds}
        self.axes = {"frame": Axis("frames"), "wall": Axis(f"wall time ({unit})")}

    def column(self, table: Mapping[str, Column], column: str, spread: str = "") -> Views:
        """Return the curve of a column over each axis, from the rows in which the axis is known.

        spread: name of the column with the standard deviations of the values whose means are in `column`;
        empty for no band.
        """
        return {axis: self._view(table, column, axis, spread) for axis in AXES}

    def scores(self, column: str, session: RunSession, evaluation: bool) -> Views:
        """Return the curve of a session's returns, or of an info quantity, from evaluations or from the last
        training episodes.

        column: `return_mean` or `info/<name>`; evaluation: whether `eval.csv` is from separate environments.
        If it is not, both tables contain the same quantity at different frames, and the curve combines all
        rows.
        """
        if evaluation:
            return self.column(session.eval, column)
        found = {}
        for axis in AXES:
            parts = [self._view(table, column, axis) for table in (session.train, session.eval)]
            x = np.concatenate([part.x for part in parts])
            y = np.concatenate([part.y for part in parts])
            x, y = x[there := np.isfinite(y)], y[there]
            x, first = np.unique(x, return_index=True)
            found[axis] = View(x, y[first])
        return found

    def middles(self, curves: Sequence[Views], intervals: bool = True) -> Views:
        """Return the `middle` of several sessions' curves over each axis; empty if no value is finite."""
        found = {axis: middle([one[axis] for one in curves], intervals) for axis in AXES}
        return {axis: view for axis, view in found.items() if view is not None}

    def _view(self, table: Mapping[str, Column], column: str, axis: str, spread: str = "") -> View:
        if column not in table or axis not in table:
            return View([], [])
        there = np.isfinite(table[axis])
        x, y = table[axis][there] / self._units[axis], table[column][there]
        return (
            View(x, y, y - table[spread][there], y + table[spread][there]) if spread in table else View(x, y)
        )


def split(curve: Views, frame: float) -> tuple[Views, Views]:
    """Split a session's curve into the part up to `frame` and the rest. The rest begins with the last point
    of the first part."""
    count = int((curve["frame"].x <= frame).sum())
    past = {axis: View(one.x[:count], one.y[:count]) for axis, one in curve.items()}
    start = max(count - 1, 0)
    return past, {axis: View(one.x[start:], one.y[start:]) for axis, one in curve.items()}


def middle(curves: Sequence[View], intervals: bool = True) -> View | None:
    """Return the statistic over `curves` at each point, with its interval unless `intervals` is False; None
    if no value is finite.

    Each curve is interpolated between its rows. The result begins where half of the curves have begun and
    ends where half of them have ended, because the statistic of the few curves that begin first or end last
    says nothing about the others.
    """
    usable = [View(one.x[there], one.y[there]) for one in curves if (there := np.isfinite(one.y)).any()]
    if not usable:
        return None
    # For an even number of curves, the last of the first half, because the median is between two curves.
    start, end = (sorted(one.x[place] for one in usable)[(len(usable) - 1) // 2] for place in (0, -1))
    grid, values = align_curves([one.x for one in usable], [one.y for one in usable])
    inside = (grid >= start) & (grid <= end)
    if not inside.any():
        return None
    grid, band = grid[inside], curve(values[:, inside], statistic_of(len(usable)), intervals)
    return View(grid, band.value, *((band.low, band.high) if np.isfinite(band.low).any() else ()))
