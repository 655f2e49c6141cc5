"""What all figures share: sizes of a paper, fonts that stay legible there, and the two files of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, MaxNLocator

from labrl.analysis.plots.colours import Style
from labrl.analysis.rows import Column
from labrl.analysis.series import Curve, alone, time_unit

COLUMN, TEXT = 3.25, 6.75
"""Widths of a column and of the text of a conference's page, inches."""

DPI = 300
"""Of the PNG of a column's width; wide ones have two thirds of it."""

PACKED: Any = {"compress_level": 3}
"""A third less time for a wide PNG than with zlib's usual 6, and 6 % more bytes."""

STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    # given, or each title is put above ticks that are never there, at the price of measuring all labels
    "axes.titley": 1.0,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#444444",
    "axes.labelcolor": "#222222",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.borderaxespad": 0.3,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "labrl",
    # letters, not their outlines: half the time and a tenth of the file, and an editor finds the words
    "svg.fonttype": "none",
    "path.simplify_threshold": 0.5,
    "agg.path.chunksize": 20_000,
    # a name may hold a dollar sign
    "text.parse_math": False,
}


@contextmanager
def styled() -> Iterator[None]:
    """Whatever is drawn meanwhile looks like labrl's figures, whatever a user's own settings are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


MARGINS = {"left": 0.52, "right": 0.1, "bottom": 0.4, "top": 0.22}
"""Around a figure's axes, inches. Given, not measured: measuring every label takes as long as drawing."""


def new_figure(
    width: float, height: float, rows: int = 1, columns: int = 1, **margins: float
) -> tuple[Figure, list[Axes]]:
    """A figure of so many inches with its axes, row by row; those of a column share the horizontal axis.

    margins: those of MARGINS that differ, and `between` rows and `beside` columns, inches.
    """
    margins = MARGINS | {"between": 0.3, "beside": 0.45} | margins
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    inner_width = (width - margins["left"] - margins["right"] - margins["beside"] * (columns - 1)) / columns
    inner_height = (height - margins["bottom"] - margins["top"] - margins["between"] * (rows - 1)) / rows
    axes = figure.subplots(
        rows,
        columns,
        squeeze=False,
        sharex=rows > 1,
        gridspec_kw={
            "left": margins["left"] / width,
            "right": 1 - margins["right"] / width,
            "bottom": margins["bottom"] / height,
            "top": 1 - margins["top"] / height,
            "wspace": margins["beside"] / inner_width,
            "hspace": margins["between"] / inner_height,
        },
    )
    return figure, list(axes.flat)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `<name>.png` and `<name>.svg`, the same bytes for the same figure; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    wide = figure.get_figwidth() > COLUMN + 1
    figure.savefig(png, dpi=DPI * 2 / 3 if wide else DPI, metadata={"Software": "labrl"}, pil_kwargs=PACKED)
    figure.savefig(svg, metadata={"Date": None, "Creator": "labrl"})
    return [png, svg]


def short_number(value: float, digits: int = 4) -> str:
    """`2M`, `500k`, `0.05`."""
    for letter, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 0.9999999:
            return f"{value / size:.{digits}g}{letter}"
    return f"{value:.{digits}g}"


class ShortNumbers(Formatter):
    """Labels of an axis, with as many digits as tell them apart."""

    def __call__(self, value: float, position: int | None = None) -> str:
        """The label of one tick."""
        return short_number(value)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """The labels of all ticks."""
        labels: list[str] = []
        for digits in range(4, 17):
            labels = [short_number(value, digits) for value in values]
            if len(set(labels)) == len(labels):
                break
        return labels


def label_axis(axes: Axes, axis: str, longest: float) -> float:
    """Write what the horizontal axis is. Returns what values in seconds or frames are divided by."""
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(ShortNumbers())
    if axis == "wall":
        unit, seconds = time_unit(longest)
        axes.set_xlabel(f"wall time ({unit})")
        return seconds
    axes.set_xlabel("frames")
    return 1.0


def draw_line(axes: Axes, curve: Curve, style: Style, divisor: float = 1.0, **look: Any) -> None:
    """A line over its places parted by `divisor`, with a mark for each value that no line would show.

    look: what the line has beside the colour of `style`. A curve of one value is its mark, in the legend too.
    """
    (line,) = axes.plot(curve.x / divisor, curve.y, color=style.colour, **look)
    places = np.flatnonzero(alone(curve.y))
    if len(places):
        size = 3.5 if len(places) < 20 else 1.5
        line.set(marker=style.marker, markersize=size, markeredgewidth=0, markevery=places.tolist())
        if np.isfinite(curve.y).sum() == 1:
            line.set_linestyle("none")


def draw_band(axes: Axes, x: Column, low: Column, high: Column, colour: str) -> None:
    """The interval around a curve; a bar where it has no width."""
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    places = alone(low)
    if places.any():
        axes.vlines(x[places], low[places], high[places], color=colour, alpha=0.2, linewidth=4)


def widen(axes: Axes) -> None:
    """Show a single place on the horizontal axis in the middle, from 0 to twice as far."""
    panels = axes.get_shared_x_axes().get_siblings(axes)
    # a panel without a value says that it goes from infinity to minus infinity
    ends = {float(end) for panel in panels for end in panel.dataLim.intervalx if np.isfinite(end)}
    if len(ends) == 1:
        axes.set_xlim(0, 2 * ends.pop() or 1, auto=None)  # the next sheet's curves choose their own again


def shorten(names: Sequence[str], most: int = 34) -> list[str]:
    """Names that fit a legend: the middle of a long one goes."""
    half = (most - 1) // 2
    return [name if len(name) <= most else f"{name[:half]}…{name[-half:]}" for name in names]
