"""The final return: one definition, interval and wording for the terminal, reports, tables and W&B.

The numbers of `env.info_keys` are averaged over the same checkpoints and sessions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from labrl.analysis.formats import METHODS, alike, interval_by
from labrl.analysis.intervals import Estimate, aggregates, score_method, statistic_of
from labrl.types import INFO

MEANING = "final return: mean over the evaluation checkpoints in the last tenth of a session's frames"
"""Definition of the final return of a session, in one line."""

INTERVALS = f"[low, high]: 95 % interval over the seeds ({METHODS})"
"""Meaning of the brackets after the return of several sessions, in one line."""

NAMES = {"iqm": "interquartile mean", "mean": "mean", "median": "median"}


class GroupReturn(NamedTuple):
    """The final return of several sessions: their interquartile mean, or their mean if there are fewer than
    RUNS_FOR_IQM."""

    value: float
    low: float | None
    """Lower end of the 95 % interval; None for fewer than three sessions."""
    high: float | None
    seeds: int

    @property
    def statistic(self) -> str:
        """Short name of the statistic, `IQM` or `mean`."""
        return statistic_name(self.seeds)

    def sentence(self) -> str:
        """Return text such as `12.5 (mean of 4 seeds; 95 % interval 11.0 to 14.0, Student's t)`."""
        of = f"{NAMES[statistic_of(self.seeds)]} of {self.seeds} seeds" if self.seeds > 1 else "one seed"
        spread = f"; {self.spread}" if self.spread else ""
        return f"{alike(self.value, self.low, self.high)[0]} ({of}{spread})"

    @property
    def spread(self) -> str:
        """Text on the interval and its method; '' if there is no interval."""
        return interval_by(self.low, self.high, self.value, self.seeds)


def statistic_name(count: int) -> str:
    """Return the short name of the statistic that is used for `count` sessions: `IQM` or `mean`."""
    return {"iqm": "IQM", "mean": "mean"}[statistic_of(count)]


def collect_info(numbers: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the numbers of sessions by column, `info/<name>`. numbers: the numbers of each session."""
    names = dict.fromkeys(name for one in numbers for name in one)
    return {f"{INFO}{name}": [one[name] for one in numbers if name in one] for name in names}


def group_return(returns: Sequence[float]) -> GroupReturn | None:
    """Summarize the final returns of a group's sessions; None if there are none."""
    if not len(returns):
        return None
    value, low, high = aggregates(np.asarray(returns, dtype=np.float64))[statistic_of(len(returns))]
    return GroupReturn(value, low, high, len(returns))


def improvement_text(improvement: Estimate, x: str, y: str, *seeds: int) -> str:
    """Return a sentence on the probability that a seed of x beats one of y, with its interval.

    seeds: the numbers of seeds of x and y.
    """
    value, low, high = improvement
    method = score_method(value, *seeds)
    return (
        f"A seed of {x} beats one of {y} with probability {value:.2f} "
        f"(95 % interval {low:.2f} to {high:.2f}, {method})."
    )
