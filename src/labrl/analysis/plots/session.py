"""One session: what it reached and how its learning went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from labrl.analysis.plots.colours import GREY, Style
from labrl.analysis.plots.figures import TEXT, ShortNumbers, draw_band, draw_line, new_figure, save, widen
from labrl.analysis.rows import Column
from labrl.analysis.runs import SessionRun
from labrl.analysis.series import Curve, moving_average, window_of

TITLES = {
    "return_mean": "return",
    "length_mean": "episode length",
    "loss": "loss",
    "loss_policy": "policy loss",
    "loss_value": "value loss",
    "entropy": "entropy",
    "kl": "KL divergence",
    "explained_variance": "explained variance",
    "exploration": "exploration",
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "weight_norm": "weights' norm",
    "q_mean": "mean Q value",
    "value_mean": "mean value",
    "fps": "frames/s",
}
"""Columns by the order in which they are shown, with their names in a figure."""

CLOCK = {"frame", "env_frames", "episode", "opt_step", "wall", "episodes"}
"""Columns that time the others."""

COLUMNS = 3

Sheet = tuple[Figure, list[Axes]]
"""A figure and its panels, one for each column shown."""


def diagnostics(table: dict[str, Column]) -> list[str]:
    """The columns of a table that have something to show, the known ones first, then the others.

    Left out are the spread of returns, which belongs to its mean, and coefficients that never change.
    """
    others = sorted(set(table) - set(TITLES) - CLOCK)
    known = [name for name in TITLES if name in table]
    known += [name for name in others if name.startswith("loss")]
    return [name for name in known if np.isfinite(table[name]).any()]


def further(table: dict[str, Column]) -> list[str]:
    """What an agent reports beside those: shown in the report, not in the figures."""
    left = set(table) - set(diagnostics(table)) - CLOCK - {"return_std", "return_min", "return_max"}
    return sorted(name for name in left if _varies(table[name]))


def title(column: str) -> str:
    """The column's name in a figure."""
    return TITLES.get(column, column.replace("_", " "))


def plot_sessions(sessions: Sequence[SessionRun], style: Style, folder: Path) -> list[Path]:
    """Write `session_<k>.png` and `.svg`, a panel for each column; nothing for a session without rows.

    Sessions with the same columns are drawn on the same sheet one after the other: making a sheet takes
    half as long as drawing on it.
    """
    sheets: dict[tuple[str, ...], Sheet] = {}
    written: list[Path] = []
    for session in sessions:
        columns = tuple(diagnostics(session.train))
        if not columns or len(session.train["frame"]) == 0:
            continue
        figure, panels = sheets[columns] if columns in sheets else sheets.setdefault(columns, _sheet(columns))
        for axes, column in zip(panels, columns, strict=True):
            _draw(axes, session, column, style)
        for axes in panels:
            widen(axes)
        figure.suptitle(f"session {session.index}", fontsize=9, x=0.01, y=0.995, ha="left", va="top")
        written += save(figure, folder, f"session_{session.index}")
    return written


def _sheet(columns: Sequence[str]) -> Sheet:
    """A figure with an empty panel for each column."""
    rows = -(-len(columns) // COLUMNS)
    figure, panels = new_figure(TEXT, 0.8 + 1.15 * rows, rows, COLUMNS, top=0.42, between=0.32)
    for axes, column in zip(panels, columns, strict=False):
        axes.set_title(title(column), loc="left", pad=3)
        axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(ShortNumbers())
        axes.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_formatter(ShortNumbers())
    for axes in panels[len(columns) :]:
        axes.set_axis_off()
    for axes in panels[max(len(columns) - COLUMNS, 0) : len(columns)]:  # the lowest of each column
        axes.set_xlabel("frames")
        axes.tick_params(labelbottom=True)
    return figure, panels[: len(columns)]


def _draw(axes: Axes, session: SessionRun, column: str, style: Style) -> None:
    """Draw a column of the session in the place of what the panel showed before."""
    for shown in (*axes.lines, *axes.collections):
        shown.remove()
    axes.relim()
    frames, values = session.train["frame"], _finite(session.train[column])
    lines = list(_lines(column, values))
    for line in lines:
        averaged = line is not values
        look = (1.3, 1.0) if averaged else (0.8, 1.0 if len(lines) == 1 else 0.45)
        draw_line(axes, Curve(frames, line), style, linewidth=look[0], alpha=look[1])
    if column == "return_mean":
        spread = session.train.get("return_std")
        if spread is not None:
            draw_band(axes, frames, values - spread, values + spread, GREY)


SMOOTH = {"lr", "exploration"}
"""Columns that follow a schedule: nothing to average."""


def _lines(column: str, values: Column) -> Iterator[Column]:
    yield values
    if len(values) >= 20 and column not in SMOOTH:
        yield moving_average(values, window_of(len(values)))


def _finite(values: Column) -> Column:
    return np.where(np.isfinite(values), values, np.nan)


def _varies(values: Column) -> bool:
    known = values[np.isfinite(values)]
    return bool(len(known) and known.min() < known.max())
