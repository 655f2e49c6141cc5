"""The objective of a search: the mean over sessions of a measure of their evaluation checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from labrl.analysis.measures import area_under_curve, final_return, strength
from labrl.experiment.search.options import Measure
from labrl.storage.run_folder import SessionFolder
from labrl.storage.tables import read_rows

Direction = Literal["minimize", "maximize"]

Curve = Mapping[int, Mapping[str, float]]
"""Columns `return_mean` and `wall` of one session's evaluation checkpoints, by frame in order."""


def read_curve(session: SessionFolder) -> Curve:
    """Return the evaluation checkpoints of a session, without those before the end of its first episode."""
    curve = {}
    for row in read_rows(session.eval_csv):
        frame, score, wall = (row.get(name) for name in ("frame", "return_mean", "wall"))
        if isinstance(frame, int | float) and isinstance(score, int | float):
            seconds = float(wall) if isinstance(wall, int | float) else 0.0
            curve[int(frame)] = {"return_mean": float(score), "wall": seconds}
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


def trial_values(
    folder: Path, measures: Sequence[Measure], num_sessions: int, random_return: float = 0.0
) -> list[float] | None:
    """Return the mean of each measure over the sessions; None if a session has no checkpoint."""
    curves = _curves(folder, num_sessions)
    values = []
    for measure in measures:
        each = [measured(measure, curve, random_return) for curve in curves]
        known = [value for value in each if value is not None]
        if len(known) < num_sessions:
            return None
        values.append(float(np.mean(known)))
    return values


def intermediate_values(
    folder: Path, measure: Measure, num_sessions: int, random_return: float = 0.0
) -> dict[int, float]:
    """Return the mean of the measure over the sessions by frame, up to the frame that all have reached.

    A session that was stopped early by its evaluations keeps its last value.
    """
    curves = _curves(folder, num_sessions)
    ends = [
        max(curve, default=0) if ended_early(folder, index) else None for index, curve in enumerate(curves)
    ]
    values: dict[int, float] = {}
    for frame in sorted(set.union(*(set(curve) for curve in curves))):
        if not all(
            frame in curve or (end is not None and 0 < end < frame)
            for curve, end in zip(curves, ends, strict=True)
        ):
            continue
        until = [{at: row for at, row in curve.items() if at <= frame} for curve in curves]
        each = [measured(measure, curve, random_return) for curve in until]
        values[frame] = float(np.mean([value for value in each if value is not None]))
    return values


def ended_early(folder: Path, index: int) -> bool:
    """Return whether a session of the trial was stopped by its evaluations before the end of its budget."""
    return bool(SessionFolder(folder / f"session_{index}").read_result().get("stop"))


def _curves(folder: Path, num_sessions: int) -> list[Curve]:
    return [read_curve(SessionFolder(folder / f"session_{index}")) for index in range(num_sessions)]
