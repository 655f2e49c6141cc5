"""Measures as functions of one hyperparameter: the groups of an experiment by their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from labrl.analysis.charts import Axis, Chart, Line, View
from labrl.analysis.colours import group_styles
from labrl.analysis.groups import Group, told, varied
from labrl.analysis.intervals import curve
from labrl.analysis.statistics import values_of

SHOWN = {
    "final_return": "Final return",
    "area_under_curve": "Average return",
    "strength": "Strength",
    "sample_efficiency": "Sample efficiency",
    "stability": "Stability",
    "fps": "Frames/s",
}
"""Measures of a session that are shown by setting, with the titles of their charts."""

MOST_KEYS = 6


def setting_charts(groups: Sequence[Group], entries: Sequence[Mapping[str, Any]]) -> dict[str, list[Chart]]:
    """Return by key that differs between `groups` of one environment a chart of each measure that is known.

    entries: of `group_statistics`, one for each group. At most MOST_KEYS keys.
    """
    if len(groups) < 2:
        return {}
    agents = [group.agent for group in groups]
    keys = varied([group.runs[0] for group in groups])
    shown = [key for key, values in keys.items() if _is_setting(key, values, agents)][:MOST_KEYS]
    means = {
        title: np.array([_mean(entry, measure) for entry in entries]) for measure, title in SHOWN.items()
    }
    known = {title: columns for title, columns in means.items() if np.isfinite(columns[:, 0]).any()}
    return {key: _charts(key, keys[key], known, groups) for key in shown if known}


def _charts(
    key: str, values: Sequence[Any], means: Mapping[str, np.ndarray], groups: Sequence[Group]
) -> list[Chart]:
    """Return a chart of each of `means` [groups, 3] over the values of a key, one line for each agent."""
    agents = [group.agent for group in groups]
    styles = dict(zip(dict.fromkeys(agents), group_styles(list(dict.fromkeys(agents))), strict=True))
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    names = [] if numeric else list(dict.fromkeys(map(told, values)))
    places = np.array(values if numeric else [names.index(told(value)) for value in values], dtype=np.float64)
    whole = numeric and bool((places == np.round(places)).all())
    log = numeric and bool(places.min() > 0 and places.max() > 9.99 * places.min())
    axis = Axis(key, names, log=log, whole=whole)
    charts = []
    for title, columns in means.items():
        lines = []
        for agent, style in styles.items():
            own = [i for i, other in enumerate(agents) if other == agent and np.isfinite(columns[i, 0])]
            view = View(np.log10(places[own]) if log else places[own], *columns[own].T)
            labels = [groups[i].name for i in own]
            lines.append(Line(f"by {agent}", agent, style, {"value": view}, "points", labels=labels))
        charts.append(Chart(title, {"value": axis}, lines))
    return charts


def _is_setting(key: str, values: Sequence[Any], agents: Sequence[str]) -> bool:
    """Return whether a key says more than which agent it is: it differs between groups of one agent."""
    if key.endswith("_target_") or any(isinstance(value, dict | list) for value in values):
        return False
    pairs = {(agent, repr(value)) for agent, value in zip(agents, values, strict=True)}
    return len(pairs) > len(set(agents))


def _mean(entry: Mapping[str, Any], measure: str) -> tuple[float, float, float]:
    """Return the mean of a measure over the counted sessions, and its interval; nan where there is none."""
    values = values_of(entry, measure)
    values = values[np.isfinite(values)]
    if not len(values):
        return (np.nan, np.nan, np.nan)
    band = curve(values[:, None], "mean")
    return float(band.value[0]), float(band.low[0]), float(band.high[0])
