"""One trial: the middle of its sessions with the interval, every seed thin behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from labrl.analysis.plots.colours import Style, agent_style
from labrl.analysis.plots.figures import (
    COLUMN,
    ShortNumbers,
    draw_band,
    draw_line,
    label_axis,
    new_figure,
    save,
    styled,
    widen,
)
from labrl.analysis.plots.session import plot_sessions
from labrl.analysis.runs import Run
from labrl.analysis.series import (
    AXES,
    STATISTICS,
    Curve,
    evaluates,
    middle,
    moving_average,
    return_curve,
    window_of,
)


def plot_trial(run: Run, folder: Path) -> list[Path]:
    """Write the figures of a trial and of its sessions; returns their paths.

    `return_frame`, `return_wall` (with separate evaluations also `evaluation_frame`, `evaluation_wall`)
    and `session_<k>`, each as PNG and SVG.
    """
    style = agent_style(run.agent)
    written: list[Path] = []
    with styled():
        tables = {"return": False} | ({"evaluation": True} if evaluates(run) else {})
        for name, evaluation in tables.items():
            for axis in AXES:
                curves = [return_curve(session, axis, evaluation) for session in run.sessions]
                written += _plot(run, curves, axis, style, name, folder)
        written += plot_sessions(run.sessions, style, folder)
    return written


def _plot(run: Run, curves: Sequence[Curve], axis: str, style: Style, name: str, folder: Path) -> list[Path]:
    curves = [curve for curve in curves if np.isfinite(curve.y).any()]
    if not curves:
        return []
    figure, (axes,) = new_figure(COLUMN, 2.2)
    divisor = label_axis(axes, axis, max(float(curve.x[-1]) for curve in curves))
    draw_group(axes, curves, style, run.agent, divisor)
    widen(axes)
    label_returns(axes, evaluation=name == "evaluation")
    axes.set_title(run.env, loc="left")
    axes.legend(loc="best")
    return save(figure, folder, f"{name}_{axis}")


def label_returns(axes: Axes, evaluation: bool) -> None:
    """Write what the vertical axis is."""
    axes.set_ylabel("return of evaluation" if evaluation else "return")
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(ShortNumbers())


def draw_group(
    axes: Axes, curves: Sequence[Curve], style: Style, name: str, divisor: float, seeds: bool = True
) -> None:
    """The middle of `curves` with its interval; `seeds`: each of them thin behind it."""
    together = middle(curves) if len(curves) > 1 else None
    if together is None:
        for curve in curves[:1]:
            if len(curve.y) < 20:
                draw_line(axes, curve, style, divisor, linestyle=style.line, label=f"{name}, 1 seed")
                continue
            draw_line(axes, curve, style, divisor, linewidth=0.7, alpha=0.45)
            window = window_of(len(curve.y))
            smooth = Curve(curve.x, moving_average(curve.y, window))
            label = f"{name}, 1 seed, mean of {window} rows"
            draw_line(axes, smooth, style, divisor, linestyle=style.line, label=label)
        return
    if seeds:
        for curve in curves:
            draw_line(axes, curve, style, divisor, linewidth=0.5, alpha=0.4)
    band = together.band
    draw_band(axes, together.x / divisor, band.low, band.high, style.colour)
    statistic = "IQM" if together.statistic == "iqm" else STATISTICS[together.statistic]
    label = f"{name}, {statistic} of {len(curves)} seeds"
    draw_line(axes, Curve(together.x, band.value), style, divisor, linestyle=style.line, label=label)
