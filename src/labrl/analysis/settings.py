"""What measures become as one hyperparameter changes: the groups of an experiment by their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.analysis.groups import Group, told, varied
from labrl.analysis.intervals import Estimate, curve
from labrl.analysis.statistics import values_of

MEASURES = {
    "final_return": "final return",
    "area_under_curve": "average return",
    "strength": "strength",
    "sample_efficiency": "sample efficiency",
    "stability": "stability",
    "fps": "frames/s",
}
"""Measures of a session that are shown by setting, with their names."""

MOST_KEYS = 6


@dataclass(frozen=True)
class Setting:
    """One key that differs between groups, and what came of each of its values."""

    key: str
    values: list[Any]
    """One for each group."""
    measures: dict[str, list[Estimate | None]]
    """By name of the measure, the mean over the sessions of each group."""

    @property
    def names(self) -> list[str]:
        """The values where they are no scale: what stands at the places 0, 1, 2, ...; else nothing."""
        return [] if self._numeric else list(dict.fromkeys(map(told, self.values)))

    @property
    def places(self) -> NDArray[np.float64]:
        """Where each group stands on the axis, [groups]."""
        if self._numeric:
            return np.array(self.values, dtype=np.float64)
        names = self.names
        return np.array([names.index(told(value)) for value in self.values], dtype=np.float64)

    @property
    def logarithmic(self) -> bool:
        """Whether the values span a decade or more above 0."""
        places = self.places
        return self._numeric and bool(places.min() > 0 and places.max() > 9.99 * places.min())

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers."""
        return self._numeric and all(float(value).is_integer() for value in self.values)

    @property
    def _numeric(self) -> bool:
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


def settings(groups: Sequence[Group], statistics: Sequence[Mapping[str, Any]]) -> list[Setting]:
    """The keys that differ between `groups` of one environment, at most MOST_KEYS.

    statistics: of `group_statistics`, one for each group. Measures that no group has are left out.
    """
    if len(groups) < 2:
        return []
    different = varied([group.runs[0] for group in groups])
    estimates = {
        name: [_estimate(entry, measure) for entry in statistics] for measure, name in MEASURES.items()
    }
    known = {name: found for name, found in estimates.items() if any(found)}
    agents = [group.agent for group in groups]
    shown = [key for key, values in different.items() if known and _is_setting(key, values, agents)]
    return [Setting(key, different[key], known) for key in shown[:MOST_KEYS]]


def _is_setting(key: str, values: Sequence[Any], agents: Sequence[str]) -> bool:
    """Whether a key says more than which agent it is: it differs between groups of one agent."""
    if key.endswith("_target_") or any(isinstance(value, dict | list) for value in values):
        return False
    pairs = {(agent, repr(value)) for agent, value in zip(agents, values, strict=True)}
    return len(pairs) > len(set(agents))


def _estimate(entry: Mapping[str, Any], measure: str) -> Estimate | None:
    values = values_of(entry, measure)
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    band = curve(values[:, None], "mean")
    low, high = (float(end[0]) if np.isfinite(end[0]) else None for end in (band.low, band.high))
    return Estimate(float(band.value[0]), low, high)
