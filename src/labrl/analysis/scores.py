"""One session's score over time, and what it amounts to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labrl.analysis import measures
from labrl.analysis.baselines import Baseline, Threshold
from labrl.analysis.rows import Column
from labrl.analysis.runs import SessionRun

MEASURES = (
    "final_return",
    "best_return",
    "area_under_curve",
    "slm_final",
    "strength",
    "max_strength",
    "final_strength",
    "sample_efficiency",
    "training_efficiency",
    "stability",
    "frames_to_threshold",
    "seconds_to_threshold",
    "human_normalized",
    "fps",
)
"""What `session_statistics` says of each session that a mean over sessions makes sense of."""


@dataclass(frozen=True)
class ScoreRows:
    """Checkpoints with a return, in the order of their frames. All arrays are [rows]."""

    frame: Column
    returns: Column
    wall: Column
    """Seconds of training."""
    opt_step: Column
    """Updates."""

    def __len__(self) -> int:
        return len(self.frame)


def score_rows(session: SessionRun) -> ScoreRows:
    """The evaluation rows that have a return; of a session that was never evaluated its training rows."""
    evaluated = _with_return(session.eval)
    return evaluated if len(evaluated) else _with_return(session.train)


def _with_return(table: dict[str, Column]) -> ScoreRows:
    nothing = np.full(len(table["frame"]), np.nan)
    returns = table.get("return_mean", nothing)
    there = np.isfinite(returns)
    columns = [table["frame"], returns, table.get("wall", nothing), table.get("opt_step", nothing)]
    return ScoreRows(*(column[there] for column in columns))


def last_frame(session: SessionRun) -> float:
    """How far the session's rows go, frames; 0 without rows."""
    return max(
        (float(table["frame"][-1]) for table in (session.train, session.eval) if len(table["frame"])),
        default=0.0,
    )


def frames_reached(session: SessionRun) -> float:
    """How far the session came, frames: one that was broken off came farther than its last row."""
    return max(last_frame(session), _told(session, "frame"))


def _told(session: SessionRun, name: str) -> float:
    """What the session said at last of how far it is; 0 where it said nothing."""
    value = session.reached.get(name)
    return float(value) if isinstance(value, int | float) and np.isfinite(value) else 0.0


def session_statistics(
    session: SessionRun,
    baseline: Baseline | None,
    human: tuple[float, float] | None,
    threshold: Threshold | None,
) -> dict[str, Any]:
    """Everything that is said of a single session, plain; None where it is not defined.

    baseline: the random policy's return; human: published returns of the random policy and of a human.
    """
    rows = score_rows(session)
    final = measures.final_return(rows.frame, rows.returns)
    frames = frames_reached(session)
    wall = max(_last(session, "wall") or 0.0, _told(session, "wall")) or None
    emulated = _last(session, "env_frames")
    if emulated is not None and last_frame(session):
        emulated *= frames / last_frame(session)  # so many for each frame
    facts: dict[str, Any] = {
        "index": session.index,
        "seed": session.seed,
        "status": session.status,
        "frames": int(frames),
        "env_frames": None if emulated is None else round(emulated),
        "episodes": _whole(_last(session, "episode")),
        "opt_steps": _whole(_last(session, "opt_step")),
        "wall": wall,
        "fps": frames / wall if wall else None,
        "rows": len(rows),
        "final_return": final,
        "best_return": float(rows.returns.max()) if len(rows) else None,
        "best_frame": int(rows.frame[rows.returns.argmax()]) if len(rows) else None,
        "area_under_curve": measures.area_under_curve(rows.frame, rows.returns),
        "slm_final": measures.slm_final(_with_return(session.train).returns),
    }
    facts |= _against_random(rows, baseline)
    facts |= {"frames_to_threshold": None, "seconds_to_threshold": None, "human_normalized": None}
    if threshold is not None:
        facts["frames_to_threshold"] = measures.time_to(rows.frame, rows.returns, threshold.value)
        facts["seconds_to_threshold"] = _finite(measures.time_to(rows.wall, rows.returns, threshold.value))
    if human is not None and final is not None:
        facts["human_normalized"] = measures.human_normalized(final, *human)
    return facts


def _against_random(rows: ScoreRows, baseline: Baseline | None) -> dict[str, float | None]:
    """SLM Lab's measures of a session; None throughout without rows or without a baseline."""
    names = (
        "strength",
        "max_strength",
        "final_strength",
        "sample_efficiency",
        "training_efficiency",
        "stability",
    )
    if baseline is None or not len(rows):
        return dict.fromkeys(names)
    s = measures.strength(rows.returns, baseline.mean)
    updates = np.nan_to_num(rows.opt_step)  # a file without the column: no update is known of
    values = (
        float(s.mean()),
        float(s.max()),
        float(s[-1]),
        measures.efficiency(s, rows.frame),
        measures.efficiency(s, updates),
        measures.stability(s),
    )
    return dict(zip(names, values, strict=True))


def _last(session: SessionRun, column: str) -> float | None:
    """The last known value of a column that only grows."""
    ends = [
        values[known][-1]
        for table in (session.train, session.eval)
        if (values := table.get(column)) is not None and (known := np.isfinite(values)).any()
    ]
    return float(max(ends)) if ends else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None
