"""Several groups of runs in one environment: curves overlaid, scores with intervals, profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from labrl.analysis.groups import Group
from labrl.analysis.intervals import METHOD, Estimate, performance_profile
from labrl.analysis.plots.colours import GREY, Style
from labrl.analysis.plots.figures import (
    COLUMN,
    TEXT,
    ShortNumbers,
    draw_line,
    label_axis,
    new_figure,
    save,
    shorten,
    widen,
)
from labrl.analysis.plots.trial import draw_group, label_returns
from labrl.analysis.series import AXES, evaluates, return_curve
from labrl.analysis.settings import Setting

MOST_NAMED = 8
"""Groups that a figure names; the others are grey lines behind them."""


@dataclass(frozen=True)
class Compared:
    """One group with what a figure needs of it."""

    group: Group
    style: Style
    scores: NDArray[np.float64]
    """Final returns of its sessions."""
    middle: Estimate | None
    """Of the scores: the interquartile mean; None without a score."""


def named(compared: Sequence[Compared]) -> list[Compared]:
    """The groups that a figure names: all, or of many the best."""
    if len(compared) <= MOST_NAMED:
        return list(compared)
    ranked = sorted(compared, key=lambda one: -one.middle.value if one.middle else np.inf)
    return ranked[:MOST_NAMED]


def plot_comparison(compared: Sequence[Compared], folder: Path, suffix: str = "") -> list[Path]:
    """Write `return_frame`, `return_wall`, `scores` and `profile`, each as PNG and SVG; returns their paths.

    compared: groups of one environment. suffix: behind each name, where there are several environments.
    """
    written = []
    for axis in AXES:
        written += _curves(compared, axis, folder, suffix)
    scored = [one for one in named(compared) if len(one.scores)]
    if scored:
        written += _scores(scored, folder, suffix)
        written += _profile(scored, folder, suffix)
    return written


def _curves(compared: Sequence[Compared], axis: str, folder: Path, suffix: str) -> list[Path]:
    chosen = named(compared)
    curves = {
        id(one): [
            curve
            for run in one.group.runs
            for session in run.sessions
            if np.isfinite((curve := return_curve(session, axis, evaluates(run))).y).any()
        ]
        for one in compared
    }
    longest = max((float(curve.x[-1]) for group in curves.values() for curve in group), default=None)
    if longest is None:
        return []
    below = 0.16 * len(chosen)
    figure, (axes,) = new_figure(COLUMN, 2.2 + below, bottom=0.42 + below)
    divisor = label_axis(axes, axis, longest)
    for one in compared:
        if one not in chosen:
            for curve in curves[id(one)][:1]:
                draw_line(axes, curve, Style(GREY), divisor, linewidth=0.5, alpha=0.35)
    names = shorten([one.group.name for one in chosen])
    for one, name in zip(chosen, names, strict=True):
        draw_group(axes, curves[id(one)], one.style, name, divisor, seeds=len(chosen) <= 3)
    widen(axes)
    label_returns(axes, evaluation=False)
    axes.set_title(compared[0].group.env, loc="left")
    _legend_below(axes, 2.2 + below)
    return save(figure, folder, f"return_{axis}{suffix}")


def _scores(compared: Sequence[Compared], folder: Path, suffix: str) -> list[Path]:
    """The final return of each group with its interval, every seed a small dot; the best on top."""
    ranked = sorted(compared, key=lambda one: one.middle.value if one.middle else -np.inf)
    figure, (axes,) = new_figure(COLUMN, 0.75 + 0.24 * len(ranked), left=1.25)
    for place, one in enumerate(ranked):
        axes.plot(one.scores, np.full(len(one.scores), place), ".", color=one.style.colour, ms=3, alpha=0.5)
        if one.middle is None:
            continue
        value, low, high = one.middle
        if low is not None and high is not None:
            axes.plot([low, high], [place, place], color=one.style.colour, linewidth=5, alpha=0.3)
        axes.plot([value], [place], "|", color=one.style.colour, markersize=9, markeredgewidth=2)
    axes.set_yticks(range(len(ranked)), shorten([one.group.name for one in ranked], 22))
    axes.set_ylim(-0.6, len(ranked) - 0.4)
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(ShortNumbers())
    axes.set_xlabel(f"final return, 95 % {METHOD}")
    axes.set_title(compared[0].group.env, loc="left")
    return save(figure, folder, f"scores{suffix}")


def thresholds(compared: Sequence[Compared]) -> NDArray[np.float64]:
    """Returns from a little below the lowest to a little above the highest, [100]."""
    scores = np.concatenate([one.scores for one in compared])
    margin = 0.05 * (scores.max() - scores.min()) or 1.0
    return np.linspace(scores.min() - margin, scores.max() + margin, 100)


def _profile(compared: Sequence[Compared], folder: Path, suffix: str) -> list[Path]:
    below = 0.16 * len(compared)
    figure, (axes,) = new_figure(COLUMN, 2.1 + below, bottom=0.42 + below)
    places = thresholds(compared)
    names = shorten([one.group.name for one in compared])
    for one, name in zip(compared, names, strict=True):
        share, low, high = performance_profile(one.scores, places)
        look: Any = {"color": one.style.colour, "linestyle": one.style.line, "drawstyle": "steps-post"}
        axes.plot(places, share, label=name, **look)
        if low is not None and high is not None:
            axes.fill_between(places, low, high, step="post", color=one.style.colour, alpha=0.15, linewidth=0)
    axes.set_ylim(-0.03, 1.03)
    axes.xaxis.set_major_formatter(ShortNumbers())
    axes.set_xlabel("final return")
    axes.set_ylabel("share of seeds above it")
    axes.set_title(compared[0].group.env, loc="left")
    _legend_below(axes, 2.1 + below)
    return save(figure, folder, f"profile{suffix}")


def plot_setting(
    setting: Setting, styles: Mapping[str, Style], agents: Sequence[str], folder: Path, suffix: str = ""
) -> list[Path]:
    """Write `measures_<key>`: a panel for each measure against the values of one hyperparameter.

    styles: of each agent; agents: that of each group. Numbers stand on a scale, a logarithmic one where
    they span a decade; anything else side by side.
    """
    columns = min(3, len(setting.measures))
    rows = -(-len(setting.measures) // columns)
    figure, panels = new_figure(TEXT, 0.75 + 1.35 * rows, rows, columns, between=0.42)
    for axes, (name, estimates) in zip(panels, setting.measures.items(), strict=False):
        for agent in dict.fromkeys(agents):
            own = [i for i, other in enumerate(agents) if other == agent and estimates[i] is not None]
            _measure(axes, setting.places[own], [estimates[i] for i in own], styles[agent], agent)
        axes.set_title(name, loc="left", pad=3)
        axes.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_formatter(ShortNumbers())
    for axes in panels[: len(setting.measures)]:
        _setting_axis(axes, setting)
    for axes in panels[len(setting.measures) :]:
        axes.set_axis_off()
    for axes in panels[max(len(setting.measures) - columns, 0) : len(setting.measures)]:
        axes.set_xlabel(setting.key)
        axes.tick_params(labelbottom=True)
    if len(set(agents)) > 1:
        panels[0].legend(loc="best")
    return save(figure, folder, f"measures_{setting.key.replace('/', '.')}{suffix}")


def _setting_axis(axes: Axes, setting: Setting) -> None:
    if setting.names:
        axes.set_xticks(range(len(setting.names)), shorten(setting.names, 12))
        axes.set_xlim(-0.5, len(setting.names) - 0.5)
        return
    if setting.logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=4))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(ShortNumbers())


def _measure(
    axes: Axes,
    places: NDArray[np.float64],
    estimates: Sequence[Estimate | None],
    style: Style,
    agent: str,
) -> None:
    known = [(x, one) for x, one in zip(places, estimates, strict=True) if one is not None]
    for x, one in known:
        if one.low is not None and one.high is not None:
            axes.plot([x, x], [one.low, one.high], color=style.colour, linewidth=1)
    dots = [x for x, _ in known], [one.value for _, one in known]
    axes.plot(*dots, style.marker, color=style.colour, markersize=3, label=agent)


def _legend_below(axes: Axes, height: float) -> None:
    """One name a line under the figure, where it hides no curve."""
    figure = axes.figure
    axes.legend(
        loc="lower left", bbox_to_anchor=(0.02, 0.02 / height), bbox_transform=figure.transFigure, ncols=1
    )
