"""The objective of a search: a measure of each session's evaluation checkpoints, averaged over the
sessions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labrl.analysis.measures import area_under_curve
from labrl.experiment.search.options import Measure
from labrl.run.session import RunSession
from labrl.run.tables import final_return
from labrl.types import INFO

Rows = list[dict[str, float]]
"""Numeric columns of the evaluation checkpoints of one session, in order."""


@dataclass(frozen=True)
class Objective:
    """What a search optimizes: the mean of a measure over the sessions of a trial."""

    measure: Measure
    num_sessions: int = 1

    def value(self, folder: Path) -> float | None:
        """Return the value of the trial in `folder`; None if a session has no checkpoint."""
        rows = [self._read_rows(session) for session in self._sessions(folder)]
        return float(np.mean([*map(self._measured, rows)])) if all(rows) else None

    def reports(self, folder: Path, budget: int) -> dict[int, float]:
        """Return, by frame, the value at each evaluation that all sessions of the trial have passed.

        A session that was stopped early by its evaluations keeps its last value until the end of its
        `budget` in frames.
        """
        values: list[dict[int, float]] = []
        for session in self._sessions(folder):
            rows = self._read_rows(session)
            if not rows:
                return {}
            values.append({int(row["frame"]): self._measured(rows[: n + 1]) for n, row in enumerate(rows)})
            if session.read_result().get("stop"):
                values[-1][budget] = self._measured(rows)
        begin, end = max(map(min, values)), min(map(max, values))
        return {
            frame: float(np.mean([one[max(at for at in one if at <= frame)] for one in values]))
            for frame in sorted(set[int]().union(*values))
            if begin <= frame <= end
        }

    def _sessions(self, folder: Path) -> list[RunSession]:
        return [RunSession(folder / f"session_{index}") for index in range(self.num_sessions)]

    @property
    def _column(self) -> str:
        own = self.measure == "wall" or self.measure.startswith(INFO)
        return self.measure if own else "return_mean"

    def _read_rows(self, session: RunSession) -> Rows:
        """Return the evaluation checkpoints that have a return, which there is none of before the first
        episode has ended, and a number in the column of the measure."""
        rows = [
            {name: float(cell) for name, cell in row.items() if isinstance(cell, int | float)}
            for row in session.read_rows("eval")
        ]
        return [row for row in rows if {"frame", "return_mean", self._column} <= row.keys()]

    def _measured(self, rows: Rows) -> float:
        """Return the measure of a session with at least one checkpoint, defined as in reports."""
        frames, values = [int(row["frame"]) for row in rows], [row[self._column] for row in rows]
        match self.measure:
            case "best_return":
                return max(values)
            case "auc":
                return area_under_curve(frames, values) or 0.0
            case "wall":
                return values[-1]
        return final_return(frames, values) or 0.0
