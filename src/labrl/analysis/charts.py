"""Charts as plain data. A report draws them in the browser, and Matplotlib draws the plots from the same
data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labrl.analysis.colors import Style


class View:
    """A curve as plotted against one horizontal axis of its chart, as arrays of equal length."""

    def __init__(
        self, x: ArrayLike, y: ArrayLike, low: ArrayLike | None = None, high: ArrayLike | None = None
    ) -> None:
        """x: positions on the axis; y: values, with gaps where they are not finite; low, high: ends of the
        band around the values."""
        self.x, self.y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        self.low = None if low is None else np.asarray(low, dtype=np.float64)
        self.high = None if high is None else np.asarray(high, dtype=np.float64)


@dataclass(frozen=True)
class Axis:
    """A quantity on the horizontal axis of a chart."""

    label: str
    ticks: Sequence[str] = ()
    """Names of the positions 0, 1, 2, ...; empty if the axis is a numerical scale."""
    log: bool = False
    """Whether the values are decimal logarithms."""
    whole: bool = False
    """Whether all values are integers."""


@dataclass(frozen=True)
class Line:
    """One curve, or one set of points."""

    key: str
    """Lines with the same key are hidden and shown together in all charts."""
    name: str
    style: Style
    views: Mapping[str, View]
    """The curve as plotted against each horizontal axis of the chart, by the name of the axis."""
    role: Literal["center", "seed", "reference", "points"] = "center"
    """`center`: thick; `seed`: thin, hidden by the button `every seed`; `reference`: thin, always shown."""
    shade: int = 0
    """Percentage of ink (below 0) or paper (above 0) that is mixed into the color."""
    group: str = ""
    """Key of another line; hiding that line also hides this one. Empty if no other line hides this one."""
    labels: Sequence[str] = ()
    """Label of each point."""
    mark: Literal["dot", "cross"] = "dot"
    step: bool = False
    """Whether each value holds until the next point."""

    def spec(self, most: int) -> dict[str, Any]:
        """Return the line as data for `Chart.spec`."""
        views = {}
        for name, view in self.views.items():
            index = thin_curve(view.y, most) if self.role != "points" else slice(None)
            arrays = {"x": view.x, "y": view.y}
            if self.role != "seed" and view.low is not None and view.high is not None:
                arrays |= {"low": view.low, "high": view.high}
            views[name] = {key: _short(values[index]) for key, values in arrays.items()}
        head = {"key": self.key, "name": self.name, "role": self.role, "color": self.style.color}
        optional = {
            "dash": list(self.style.dash),
            "shade": self.shade,
            "group": self.group,
            "labels": list(self.labels),
            "mark": self.mark if self.mark != "dot" else "",
            "step": self.step,
        }
        return {**head, "views": views, **{name: value for name, value in optional.items() if value}}


@dataclass(frozen=True)
class Chart:
    """Curves with a common vertical scale."""

    title: str
    axes: Mapping[str, Axis]
    lines: Sequence[Line]
    unit: str = ""
    """Text that is shown after the title."""
    tall: bool = False
    """Whether the chart has the full width of a report."""
    fixed_y: tuple[float, float] | None = None

    def spec(self, most: int) -> dict[str, Any]:
        """Return the data that `report.js` draws, with each curve thinned to about `most` points."""
        axes = {
            name: {"label": axis.label, "ticks": list(axis.ticks), "log": axis.log, "whole": axis.whole}
            for name, axis in self.axes.items()
        }
        spec: dict[str, Any] = {"title": self.title, "axes": axes, "tall": self.tall}
        if self.fixed_y:
            spec["fixed_y"] = list(self.fixed_y)
        values = [view.y[np.isfinite(view.y)] for line in self.lines for view in line.views.values()]
        known = np.concatenate([*values, np.empty(0)])
        # A logarithmic scale is useful if all values are positive and far apart.
        can_log = bool(len(known) and known.min() > 0 and known.max() > 20 * known.min())
        lines = [line.spec(most) for line in self.lines]
        return spec | {"lines": lines, "can_log": can_log and not self.fixed_y}


def thin_curve(y: NDArray[np.float64], most: int) -> NDArray[np.intp]:
    """Return the indices of about `most` values of a curve that are kept, in increasing order and including
    both ends.

    y: [points]. The curve is divided into stretches of equal length. The lowest and the highest finite value
    and the first gap of each stretch are kept, so that no spike and no gap disappears.
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


def _short(values: NDArray[np.float64]) -> list[float | None]:
    """Round values to five significant digits, which is more than a screen shows. Integers stay unchanged;
    gaps become None."""
    rounded = (float(f"{value:.5g}") if value % 1 else value for value in values.tolist())
    return [
        None if not math.isfinite(value) else int(value) if value.is_integer() else value for value in rounded
    ]
