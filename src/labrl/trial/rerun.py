"""Whether a run that was repeated came out the same."""

from __future__ import annotations

import math
from typing import Any

from labrl.storage.run_folder import RunFolder, SessionFolder
from labrl.storage.tables import read_rows
from labrl.trial.result import TrialResult

UNTIMED = frozenset({"wall", "fps"})
"""Columns that no repetition can make equal."""

TABLES = ("train", "eval")


def compare(then: RunFolder, result: TrialResult) -> tuple[bool, str]:
    """Return whether the repetition that gave `result` has the metric rows of the run `then`, and that in a
    line.

    Rows count as far as both runs came; one that has finished must not have fewer than the other.
    """
    rows = sessions = 0
    finished = {session.index for session in result.sessions if session.status == "finished"}
    for old in then.sessions():
        new = SessionFolder(result.folder / old.path.name)
        if not new.path.is_dir():
            continue
        sessions += 1
        for table in TABLES:
            pair = (_rows(old, table), _rows(new, table))
            difference = _first_difference(*pair, whole=old.index in finished)
            if difference is not None:
                return False, f"not equal to {then.path}: first in {new.path.name}/{table}.csv, {difference}"
            rows += min(map(len, pair))
    plural = "" if sessions == 1 else "s"
    told = f"all {rows} metric rows of {sessions} session{plural} equal those of {then.path}"
    return True, f"{told} (wall time and speed aside)"


def _rows(session: SessionFolder, table: str) -> list[dict[str, Any]]:
    return read_rows(session.path / f"{table}.csv")


def _first_difference(old: list[dict[str, Any]], new: list[dict[str, Any]], whole: bool) -> str | None:
    """Return a message on the first different row; whole: whether `new` is complete."""
    for then, now in zip(old, new, strict=False):
        for column in {**then, **now}:
            one, other = then.get(column), now.get(column)
            if column not in UNTIMED and not _same(one, other):
                return f"frame {then['frame']}, column {column}: {one} then, {other} now"
    if whole and len(new) < len(old):
        return f"frame {old[len(new)]['frame']}: this row is missing now"
    return None


def _same(one: Any, other: Any) -> bool:
    both_nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    return both_nan or (type(one) is type(other) and one == other)
