"""The objective of a search: a measure of each session's evaluation checkpoints, averaged over the
sessions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from labrl.analysis.measures import area_under_curve, strength
from labrl.experiment.search.options import Measure
from labrl.run.session import RunSession
from labrl.run.tables import final_return
from labrl.types import INFO

Curve = Mapping[int, Mapping[str, float]]
"""Numeric columns of one session's evaluation checkpoints, by frame in ascending order."""


def read_curve(session: RunSession, measure: Measure) -> Curve:
    """Return the evaluation checkpoints of a session that have a return and, if `measure` is an `info`
    column, a number in that column.

    A checkpoint has no return before the first episode has ended.
    """
    curve = {}
    needed = {"frame", "return_mean", *([measure] if measure.startswith(INFO) else [])}
    for row in session.read_rows("eval"):
        numbers = {name: float(cell) for name, cell in row.items() if isinstance(cell, int | float)}
        if needed <= numbers.keys():
            curve[int(numbers["frame"])] = {"wall": 0.0, **numbers}
    return dict(sorted(curve.items()))


def measured(measure: Measure, curve: Curve, random_return: float = 0.0) -> float | None:
    """Return the measure of one session, defined as in reports; None without a checkpoint.

    random_return: mean return of the random policy, the reference of `strength`.
    """
    if not curve:
        return None
    frames, returns = list(curve), [row["return_mean"] for row in curve.values()]
    match measure:
        case "final_return":
            return final_return(frames, returns)
        case "best_return":
            return max(returns)
        case "auc":
            return area_under_curve(frames, returns)
        case "strength":
            return float(strength(returns, random_return).mean())
        case "wall":
            return list(curve.values())[-1]["wall"]
        case column:
            return final_return(frames, [row[column] for row in curve.values()])


def trial_value(
    folder: Path, measure: Measure, num_sessions: int, random_return: float = 0.0
) -> float | None:
    """Return the mean of the measure over the sessions; None if a session has no checkpoint."""
    each = [measured(measure, curve, random_return) for curve in _curves(folder, measure, num_sessions)]
    known = [value for value in each if value is not None]
    return float(np.mean(known)) if len(known) == num_sessions else None


def intermediate_values(
    folder: Path, measure: Measure, num_sessions: int, random_return: float = 0.0
) -> dict[int, float]:
    """Return, by frame, the mean of the measure over the sessions, up to the frame that all sessions have
    reached.

    A session that was stopped early by its evaluations keeps its last value.
    """
    sessions = session_values(folder, measure, num_sessions, random_return)
    ends = [max(one, default=0) if ended_early(folder, index) else None for index, one in enumerate(sessions)]
    values: dict[int, float] = {}
    for frame in sorted(set.union(*(set(one) for one in sessions))):
        if all(
            frame in one or (end is not None and 0 < end < frame)
            for one, end in zip(sessions, ends, strict=True)
        ):
            values[frame] = float(np.mean([one[max(at for at in one if at <= frame)] for one in sessions]))
    return values


def session_values(
    folder: Path, measure: Measure, num_sessions: int, random_return: float = 0.0
) -> list[dict[int, float]]:
    """Return the measure of each session by frame, computed from its evaluations up to that frame."""
    found = []
    for curve in _curves(folder, measure, num_sessions):
        until: dict[int, Mapping[str, float]] = {}
        values = {}
        for frame, row in curve.items():
            until[frame] = row
            value = measured(measure, until, random_return)
            assert value is not None, "it has a checkpoint"
            values[frame] = value
        found.append(values)
    return found


def ended_early(folder: Path, index: int) -> bool:
    """Return whether a session of the trial was stopped by its evaluations before the end of its budget."""
    return bool(RunSession(folder / f"session_{index}").read_result().get("stop"))


def _curves(folder: Path, measure: Measure, num_sessions: int) -> list[Curve]:
    sessions = [RunSession(folder / f"session_{index}") for index in range(num_sessions)]
    return [read_curve(session, measure) for session in sessions]
