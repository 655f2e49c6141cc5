"""The charts and numbers that only the report of a search has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from labrl.analysis.charts import Axis, Chart, Line, View
from labrl.analysis.colors import BLUE, GRAY, GREEN, VERMILLION, Style
from labrl.analysis.formats import interval_heading, number
from labrl.analysis.search_result import (
    Parameter,
    SearchResult,
    SearchTrial,
    State,
    best_so_far,
    importances,
    runs_of,
)
from labrl.analysis.series import TimeAxes

MOST_LINES = 200
"""Largest number of trials in parallel coordinates; if there are more, the best are shown."""

TOP_SHARE = 0.1
"""Fraction of the complete trials that are colored in parallel coordinates."""

MARKS: dict[State, tuple[str, str, Literal["dot", "cross"]]] = {
    "complete": ("finished", BLUE, "dot"),
    "pruned": ("pruned, with its last value", GRAY, "cross"),
    "fail": ("failed", VERMILLION, "cross"),
}
"""Name, color and mark of a trial's point, by its state."""


def search_content(search: SearchResult, path: Path) -> dict[str, Any]:
    """Return the charts of a search by name, and the importance of each key. path: the experiment folder."""
    return {
        "history": _history(search),
        "importances": importances(search),
        "parallel": _parallel(search),
        "slices": [_slice(search, one) for one in search.parameters],
        "fresh": None if search.winner is None else _against_default(search, path),
    }


def _points(
    trials: Sequence[SearchTrial], state: State, axis: str, places: Sequence[float], heights: Sequence[float]
) -> Line:
    """Return the points of the trials that ended in a state, each labeled with the trial's number and
    values."""
    name, color, mark = MARKS[state]
    labels = []
    for one in trials:
        failure = f" failed: {one.error}" if one.state == "fail" else ""
        values = [f"{key}={number(v) if isinstance(v, float) else v}" for key, v in one.params.items()]
        labels.append(f"trial {one.number}{failure}: {', '.join(values)}")
    views = {axis: View(places, heights)}
    return Line(f"search-{state}", name, Style(color), views, "points", labels=labels, mark=mark)


def _values(trials: Sequence[SearchTrial]) -> list[float]:
    return [trial.value for trial in trials]


def _history(search: SearchResult) -> Chart:
    """Return the chart of each trial's value and of the best value so far."""
    lines = []
    for state in MARKS:
        trials = search.of_state(state)
        heights = _values(trials)
        if state == "fail" and trials:
            if not search.valued:
                continue
            # A failed trial has no value, and is shown at the worst value of the others.
            heights = [(min if search.maximize else max)(_values(search.valued))] * len(trials)
        if trials or state != "fail":
            lines.append(_points(trials, state, "trial", [trial.number for trial in trials], heights))
    sequence = sorted(search.of_state("complete"), key=lambda trial: trial.number)
    if sequence:
        best = best_so_far(_values(sequence), search.maximize)
        last = max(trial.number for trial in search.trials)
        view = View([*(trial.number for trial in sequence), last], [*best, best[-1]])
        lines.append(Line("search-best", "best so far", Style(GREEN), {"trial": view}, step=True))
    axes = {"trial": Axis("trial", whole=True)}
    return Chart("Value of each trial", axes, lines, search.objective, tall=True)


def _parallel(search: SearchResult) -> Chart:
    """Return the chart in which each trial is a line through its values, with the best trials in color."""
    top = {
        trial.number
        for trial in search.ranked()[: max(1, math.ceil(TOP_SHARE * len(search.of_state("complete"))))]
    }
    lines = []
    for trial in reversed([*search.ranked(), *search.of_state("pruned")][:MOST_LINES]):
        shares = [
            one.share(trial.params[one.key]) if one.key in trial.params else math.nan
            for one in search.parameters
        ]
        name = f"trial {trial.number}: {number(trial.value)}"
        views = {"key": View(range(len(shares)), shares)}
        if trial.number in top:
            lines.append(Line("search-top", name, Style(BLUE), views))
        else:
            lines.append(Line(f"search-{trial.state}", name, Style(GRAY), views, "reference"))
    axis = Axis("", ticks=[one.key.rpartition(".")[2] for one in search.parameters])
    title = "Each trial as a line: the best in blue, the others in gray"
    unit = "from the lowest to the highest value of each range"
    return Chart(title, {"key": axis}, lines, unit, tall=True, fixed_y=(0, 1))


def _slice(search: SearchResult, parameter: Parameter) -> Chart:
    lines = []
    states: tuple[State, ...] = ("complete", "pruned")
    for state in states:
        trials = [trial for trial in search.of_state(state) if parameter.key in trial.params]
        places = [parameter.place(trial.params[parameter.key]) for trial in trials]
        lines.append(_points(trials, state, "place", places, _values(trials)))
    ticks = [str(choice) for choice in parameter.choices]
    axis = Axis(parameter.key, ticks, log=parameter.log, whole=parameter.whole)
    return Chart(parameter.key, {"place": axis}, lines, search.objective)


def _against_default(search: SearchResult, path: Path) -> Chart | None:
    """Return the chart of the winner and the default on the same fresh seeds; None if their runs are lost."""
    chosen = [(one, color) for one, color in ((search.winner, BLUE), (search.default, GRAY)) if one]
    runs = {one.name: runs_of(one, path) for one, _ in chosen}
    axes = TimeAxes([run for several in runs.values() for run in several])
    lines = []
    for one, color in chosen:
        curves = [
            axes.scores("return_mean", s, run.evaluates) for run in runs[one.name] for s in run.sessions
        ]
        if views := axes.middles(curves):
            lines.append(Line(f"search-{one.name.replace(' ', '-')}", one.name, Style(color), views))
    unit = f"with its {interval_heading()}"
    return Chart("Return on fresh seeds", axes.axes, lines, unit, tall=True) if lines else None
