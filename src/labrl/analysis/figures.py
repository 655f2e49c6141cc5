"""Plots as PNG and PDF files, drawn by Matplotlib from the charts of a report."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from labrl.analysis.charts import Chart, Line, View
from labrl.analysis.colors import mix_color
from labrl.analysis.formats import short_number, shorten

COLUMN, TEXT = 3.25, 6.75
"""Widths of a column and of the text of a conference paper, in inches."""

DPI = 300
"""Resolution of a PNG with the width of a column, in dots per inch; a wider PNG has two thirds of this
resolution."""

PANELS = 3
"""Maximum number of charts side by side in a figure with several charts."""

STYLE = Path(__file__).with_name("data") / "figures.mplstyle"


class Sheet(NamedTuple):
    """One figure, with a single chart or with several charts as panels."""

    name: str
    """File name of its PNG and PDF, without the suffix."""
    charts: Sequence[Chart]
    axis: str
    """Name of the axis against which the charts are drawn."""
    title: str
    only: str = ""
    """Key of the lines that are drawn; empty for all."""

    def lines(self, chart: Chart) -> list[Line]:
        """Return the lines of a chart that this figure draws."""
        return [line for line in chart.lines if self.axis in line.views and self.only in ("", line.key)]


def save_sheets(sheets: Iterable[Sheet], folder: Path, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Write `<name>.<format>` for each sheet that has a value to show. Return the paths.

    formats: `png` and `pdf`. Equal sheets give equal bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with use_style():
        for sheet in sheets:
            charts = [
                chart
                for chart in sheet.charts
                if any(
                    np.isfinite(view.y).any() for line in sheet.lines(chart) for view in line.views.values()
                )
            ]
            if not charts:
                continue
            figure = (_panels if len(sheet.charts) > 1 else _single)(sheet, charts)
            name = os.fsdecode(sheet.name.encode())  # independent of the locale
            dpi = DPI * 2 / 3 if figure.get_figwidth() > COLUMN else DPI
            for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
                if not axis.get_label_text():  # otherwise all ticks are measured to place an empty label
                    axis.set_label_coords(0, 0)
            for form in formats:
                # The current time would change the bytes of the file.
                options: dict[str, Any] = {"metadata": {"CreationDate": None, "Creator": "labrl"}}
                if form == "png":
                    # Takes a third less time for a wide PNG than zlib's default of 6, and 6 % more bytes.
                    options = {"metadata": {"Software": "labrl"}, "pil_kwargs": {"compress_level": 3}}
                written.append(folder / f"{name}.{form}")
                figure.savefig(written[-1], dpi=dpi, **options)
    return written


@contextmanager
def use_style() -> Iterator[None]:
    """Context manager: draw with labrl's style, independent of the user's Matplotlib settings."""
    with mpl.rc_context():
        mpl.rc_file(STYLE)
        yield


def tick_format(log: bool = False) -> FuncFormatter:
    """Return a formatter of ticks as short numbers. log: whether the values are decimal logarithms."""
    return FuncFormatter(lambda value, _: short_number(10**value if log else value, 6))


def shorten_names(names: Sequence[str], most: int) -> list[str]:
    """Cut names in the middle to at most `most` characters, unless different names would become equal."""
    short = [shorten(name, most) for name in names]
    return short if len(set(short)) == len(set(names)) else list(names)


def _single(sheet: Sheet, charts: Sequence[Chart]) -> Figure:
    """Draw a chart with the width of a column. The names of its curves are below it, where they hide
    nothing."""
    (chart,) = charts
    lines = sheet.lines(chart)
    names = list(dict.fromkeys(line.name for line in lines if line.role in ("center", "points")))
    shown = names or [line.name for line in lines][:1]
    if chart.axes[sheet.axis].ticks:
        shown = []  # the names are at the axis
    legend = 0.15 * len(shown) if shown else 0.3
    figure, (axes,) = _figure((COLUMN, 2.1 + legend), bottom=0.42 + legend)
    _draw(axes, sheet, chart)
    axes.set_title(sheet.title, loc="left")
    axes.set_ylabel(chart.title.lower())
    handles: dict[str, Any] = {}
    for artist, name in zip(*axes.get_legend_handles_labels(), strict=True):
        if name in shown:
            handles.setdefault(name, artist)
    figure.legend(
        handles.values(), shorten_names(list(handles), 44), loc="lower left", bbox_to_anchor=(0.02, 0.0)
    )
    return figure


def _panels(sheet: Sheet, charts: Sequence[Chart]) -> Figure:
    rows, columns = -(-len(charts) // PANELS), min(PANELS, len(charts))
    figure, panels = _figure((TEXT, 0.85 + 1.2 * rows), rows, columns, top=0.42)
    for axes, chart in zip(panels, charts, strict=False):
        _draw(axes, sheet, chart, ticks=3)
        axes.set_title(chart.title, loc="left", pad=3)
    for axes in panels[len(charts) :]:
        axes.set_axis_off()
    for axes in panels[: max(len(charts) - columns, 0)]:
        axes.set_xlabel("")
    if len({line.name for chart in charts for line in chart.lines if line.role == "points"}) > 1:
        panels[0].legend(loc="best")
    figure.suptitle(sheet.title, fontsize=9, x=0.01, y=0.995, ha="left", va="top")
    return figure


def _figure(
    size: tuple[float, float],
    rows: int = 1,
    columns: int = 1,
    top: float = 0.22,
    bottom: float = 0.4,
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes, row by row.

    size: width and height in inches. The margins are fixed, because measuring every label takes as long as
    drawing.
    """
    width, height = size
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    left, right, beside, between = 0.52, 0.1, 0.45, 0.42
    inner_width = (width - left - right - beside * (columns - 1)) / columns
    inner_height = (height - bottom - top - between * (rows - 1)) / rows
    grid = {"left": left / width, "right": 1 - right / width, "bottom": bottom / height}
    grid |= {"top": 1 - top / height, "wspace": beside / inner_width, "hspace": between / inner_height}
    return figure, list(figure.subplots(rows, columns, squeeze=False, gridspec_kw=grid).flat)


def _draw(axes: Axes, sheet: Sheet, chart: Chart, ticks: int = 5) -> None:
    lines, axis = sheet.lines(chart), chart.axes[sheet.axis]
    alone = len(lines) == 1 or bool(sheet.only)
    order = {"seed": 0, "reference": 1, "center": 2, "points": 3}
    for line in sorted(lines, key=lambda line: order[line.role]):
        view = line.views[sheet.axis]
        if line.role == "points":
            _points(axes, line, view)
        else:
            _curve(axes, line, view, alone)
    for scale in (axes.xaxis, axes.yaxis):
        scale.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]))
        scale.set_major_formatter(tick_format())
    axes.set_xlabel(axis.label)
    low, high = axes.dataLim.intervalx
    if axis.ticks:
        names = shorten_names(axis.ticks, 12)
        crowded = sum(map(len, names)) > (36 if ticks > 3 else 16)
        turned: Any = {"rotation": 35, "ha": "right"} if crowded else {"rotation": 0, "ha": "center"}
        axes.set_xticks(range(len(names)), names, **turned)
        axes.set_xlim(-0.5, len(names) - 0.5)
    elif axis.log:
        axes.xaxis.set_major_formatter(tick_format(log=True))
        decades = np.arange(np.ceil(low), np.floor(high) + 1)
        if len(decades) > 1:
            axes.xaxis.set_major_locator(FixedLocator(decades[:: -(-len(decades) // 4)].tolist()))
    elif axis.whole:
        axes.xaxis.set_major_locator(MaxNLocator(ticks, integer=True))
    if chart.fixed_y:
        margin = 0.03 * (chart.fixed_y[1] - chart.fixed_y[0])
        axes.set_ylim(chart.fixed_y[0] - margin, chart.fixed_y[1] + margin)
    ends = {float(end) for end in axes.dataLim.intervalx if np.isfinite(end)}
    if len(ends) == 1 and not axis.ticks:
        axes.set_xlim(0, 2 * ends.pop() or 1)  # center a single value


def _curve(axes: Axes, line: Line, view: View, alone: bool) -> None:
    """Draw a line with its band, a marker for each isolated value, and a bar for each isolated interval."""
    style, place = line.style, "steps-post" if line.step else "default"
    y = np.where(np.isfinite(view.y), view.y, np.nan)
    color = style.color if alone else mix_color(style.color, line.shade / 100)
    if view.low is not None and view.high is not None and (line.role == "center" or alone):
        gray = "#7F7F7F" if line.role == "seed" else color
        step: Any = "post" if line.step else None
        axes.fill_between(view.x, view.low, view.high, color=gray, alpha=0.2, linewidth=0, step=step)
        bars = _alone(view.low)
        axes.vlines(view.x[bars], view.low[bars], view.high[bars], color=color, alpha=0.2, linewidth=4)
    thin = line.role != "center" and not alone
    look: dict[str, Any] = {"color": color, "drawstyle": place, "label": line.name}
    look |= {"linestyle": (0, style.dash) if style.dash else "-"}
    (drawn,) = axes.plot(view.x, y, linewidth=0.5 if thin else 1.4, alpha=0.4 if thin else 1.0, **look)
    dots = np.flatnonzero(_alone(y))
    if len(dots):
        size = 3.5 if len(dots) < 20 else 1.5
        drawn.set(marker=style.marker, markersize=size, markeredgewidth=0, markevery=dots.tolist())
        if np.isfinite(y).sum() == len(dots):
            drawn.set_linestyle("none")


def _points(axes: Axes, line: Line, view: View) -> None:
    color, marker = line.style.color, "x" if line.mark == "cross" else line.style.marker
    if view.low is not None and view.high is not None:
        axes.vlines(view.x, view.low, view.high, color=color, linewidth=1)
    look: dict[str, Any] = {"color": color, "label": line.name, "markersize": 3.5}
    axes.plot(view.x, view.y, marker, clip_on=False, zorder=3, **look)


def _alone(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask of the values that have a gap or an end of the curve on both sides, so that a line would
    not show them. [rows]"""
    known = np.concatenate([[False], np.isfinite(values), [False]])
    return known[1:-1] & ~known[:-2] & ~known[2:]
