"""The charts and numbers that only the report of a search has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from labrl.analysis.charts import Axis, Chart, Line, View
from labrl.analysis.colors import BLUE, GRAY, GREEN, VERMILLION, Style
from labrl.analysis.formats import number
from labrl.analysis.search_result import SearchResult, SearchTrial, State, importances

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


def search_content(search: SearchResult) -> dict[str, Any]:
    """Return the charts of a search by name, and the importance of each key."""
    return {
        "history": _history(search),
        "importances": importances(search),
        "parallel": _parallel(search),
        "slices": [_slice(search, key) for key in search.facts["space"]],
    }


def _points(
    trials: Sequence[SearchTrial], state: State, axis: str, places: Sequence[float], heights: Sequence[float]
) -> Line:
    """Return the points of the trials that ended in a state, each labeled with the trial's number and
    values."""
    name, color, mark = MARKS[state]
    labels = []
    for one in trials:
        failure = f" failed: {one.error}" * (one.state == "fail")
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
        best = (np.maximum if search.maximize else np.minimum).accumulate(_values(sequence))
        last = max(trial.number for trial in search.trials)
        view = View([*(trial.number for trial in sequence), last], [*best, best[-1]])
        lines.append(Line("search-best", "best so far", Style(GREEN), {"trial": view}, step=True))
    axis = Axis("trial", whole=True)
    return Chart("Value of each trial", {"trial": axis}, lines, search.objective, tall=True)


def _place(one: Mapping[str, Any], value: Any) -> float:
    """Return the position of `value` on the axis of a key: the number, its logarithm to base 10, or the index
    of a choice. one: attributes of Optuna's distribution of the key."""
    if choices := one.get("choices"):
        return float(choices.index(value)) if value in choices else math.nan
    return math.log10(value) if one["log"] else float(value)


def _share(one: Mapping[str, Any], value: Any) -> float:
    """Return the position of `value` as a fraction of the range, 0 to 1; one half for a single value."""
    choices = one.get("choices")
    ends = (choices[0], choices[-1]) if choices else (one["low"], one["high"])
    low, high = (_place(one, end) for end in ends)
    return (_place(one, value) - low) / (high - low) if low != high else 0.5


def _parallel(search: SearchResult) -> Chart:
    """Return the chart in which each trial is a line through its values, with the best trials in color."""
    ranked, space = search.ranked(), search.facts["space"]
    top = ranked[: max(1, math.ceil(TOP_SHARE * len(ranked)))]
    lines = []
    for trial in reversed([*ranked, *search.of_state("pruned")][:MOST_LINES]):
        shares = [
            _share(one["attributes"], trial.params[key]) if key in trial.params else math.nan
            for key, one in space.items()
        ]
        name = f"trial {trial.number}: {number(trial.value)}"
        views = {"key": View(range(len(shares)), shares)}
        if trial in top:
            lines.append(Line("search-top", name, Style(BLUE), views))
        else:
            lines.append(Line(f"search-{trial.state}", name, Style(GRAY), views, "reference"))
    axis = Axis("", ticks=[key.rpartition(".")[2] for key in space])
    title = "Each trial as a line: the best in blue, the others in gray"
    unit = "from the lowest to the highest value of each range"
    return Chart(title, {"key": axis}, lines, unit, tall=True, fixed_y=(0, 1))


def _slice(search: SearchResult, key: str) -> Chart:
    """Return the chart of the values over those of one key."""
    lines = []
    states: tuple[State, ...] = ("complete", "pruned")
    name, one = (search.facts["space"][key][part] for part in ("name", "attributes"))
    for state in states:
        trials = [trial for trial in search.of_state(state) if key in trial.params]
        places = [_place(one, trial.params[key]) for trial in trials]
        lines.append(_points(trials, state, "place", places, _values(trials)))
    log, choices = bool(one.get("log")), [*map(str, one.get("choices", ()))]
    axis = Axis(key, choices, log=log, whole=name == "IntDistribution" and not log)
    return Chart(key, {"place": axis}, lines, search.objective)
