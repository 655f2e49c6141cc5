"""The objective of a search: a measure of each session's evaluation checkpoints, averaged over the
sessions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labrl.analysis.measures import area_under_curve, strength
from labrl.experiment.search.options import Measure
from labrl.run.session import RunSession
from labrl.run.tables import final_return
from labrl.types import INFO

Curve = Mapping[int, Mapping[str, float]]
"""Numeric columns of one session's evaluation checkpoints, by frame in ascending order."""


@dataclass(frozen=True)
class Objective:
    """What a search optimizes: the mean of a measure over the sessions of a trial."""

    measure: Measure
    num_sessions: int = 1
    random_return: float = 0.0
    """Mean return of the random policy, the reference of `strength`."""

    def value(self, folder: Path) -> float | None:
        """Return the value of the trial in `folder`; None if a session has no checkpoint."""
        curves = [self._read_curve(session) for session in self._sessions(folder)]
        return float(np.mean([self._measured(curve) for curve in curves])) if all(curves) else None

    def reports(self, folder: Path) -> dict[int, float]:
        """Return, by frame, the value at each evaluation that all sessions of the trial have passed.

        A session that was stopped early by its evaluations keeps its last value.
        """
        values, ends = [], [math.inf]
        for session in self._sessions(folder):
            rows = list(self._read_curve(session).items())
            if not rows:
                return {}
            values.append({at: self._measured(dict(rows[: n + 1])) for n, (at, _) in enumerate(rows)})
            if not session.read_result().get("stop"):
                ends.append(rows[-1][0])
        frames = sorted(set[int]().union(*values))
        begin, end = max(map(min, values)), min(ends)
        return {
            frame: float(np.mean([one[max(at for at in one if at <= frame)] for one in values]))
            for frame in frames
            if begin <= frame <= end
        }

    def stopped_early(self, folder: Path) -> bool:
        """Return whether all sessions were stopped by their evaluations before the end of their budget."""
        return all(session.read_result().get("stop") for session in self._sessions(folder))

    def _sessions(self, folder: Path) -> list[RunSession]:
        return [RunSession(folder / f"session_{index}") for index in range(self.num_sessions)]

    def _read_curve(self, session: RunSession) -> Curve:
        """Return the evaluation checkpoints that have a return and, if the measure is an `info` column, a
        number in that column. A checkpoint has no return before the first episode has ended."""
        curve = {}
        needed = {"frame", "return_mean", *([self.measure] if self.measure.startswith(INFO) else [])}
        for row in session.read_rows("eval"):
            numbers = {name: float(cell) for name, cell in row.items() if isinstance(cell, int | float)}
            if needed <= numbers.keys():
                curve[int(numbers["frame"])] = {"wall": 0.0, **numbers}
        return dict(sorted(curve.items()))

    def _measured(self, curve: Curve) -> float:
        """Return the measure of a session with at least one checkpoint, defined as in reports."""
        frames, returns = list(curve), [row["return_mean"] for row in curve.values()]
        value: float | None
        match self.measure:
            case "best_return":
                value = max(returns)
            case "auc":
                value = area_under_curve(frames, returns)
            case "strength":
                value = float(strength(returns, self.random_return).mean())
            case "wall":
                value = curve[frames[-1]]["wall"]
            case "final_return":
                value = final_return(frames, returns)
            case column:
                value = final_return(frames, [row[column] for row in curve.values()])
        assert value is not None, "there is a checkpoint"
        return value
