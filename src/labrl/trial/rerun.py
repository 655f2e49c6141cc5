"""`labrl +rerun` repeats a run in a new folder, and compares the results."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any

from labrl.errors import FAILED, InputError
from labrl.run.run_folder import RunFolder, SessionFolder
from labrl.trial.composed import Again, Composed
from labrl.trial.past import Past
from labrl.trial.result import TrialResult

UNTIMED = frozenset({"wall", "fps"})
"""Columns that differ between identical runs."""

TABLES = ("train", "eval")


class Rerun(Again):
    """A run that is repeated."""

    def __init__(self, past: Past, edits: Sequence[str], force: bool) -> None:
        """Raise InputError for a fork, whose first frames another run has played."""
        if fork := past.folder.info().get("fork"):
            raise InputError(
                f"{past.folder.path} is a fork, and +rerun repeats runs from frame 0. To repeat it: "
                + shlex.join(["labrl", f"+fork={fork['folder']}", f"at={fork['frame']}", *fork["edits"]]),
                code="usage",
                key="+rerun",
            )
        super().__init__(past, edits, force)

    def run(self, composed: Composed) -> TrialResult:
        """Run a new trial, and record in its result and its folder whether it equals the earlier run.

        Raises InputError with a table if its values contradict those of the earlier run.
        """
        # Imported late: a misspelled override must not wait for PyTorch.
        from labrl.trial.summary import say
        from labrl.trial.trial import run_trial

        past, then = self.past, self.past.folder
        if not self.force:
            past.check(composed.cfg, composed.plain, f"+rerun={then.path}")
        if keys := [change.key for change in past.changes(past.edited())]:
            edited = f"{then.config} was edited after the run ({', '.join(keys)})"
            say(f"{edited}; +rerun ignores the edits")
        result = run_trial(composed)
        equal, result.comparison = compare(then, result)
        if not equal:
            result.exit_code = result.exit_code or FAILED
        run = RunFolder.open(result.folder)
        run.set_status(run.status, rerun_of=str(then.path), equal=equal)
        return result


def compare(then: RunFolder, result: TrialResult) -> tuple[bool, str]:
    """Return whether the metric rows of a repetition equal those of the run `then`, and a message.

    Rows are compared up to the end of the shorter run, but a finished repetition must not have fewer rows.
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
                return False, f"differs from {then.path}: first in {new.path.name}/{table}.csv, {difference}"
            rows += min(map(len, pair))
    plural = "" if sessions == 1 else "s"
    told = f"all {rows} metric rows of {sessions} session{plural} equal those of {then.path}"
    return True, f"{told} (wall time and speed aside)"


def _rows(session: SessionFolder, table: str) -> list[dict[str, Any]]:
    # Imported late: a misspelled override must not wait for NumPy.
    from labrl.run.tables import read_rows

    return read_rows(session.path / f"{table}.csv")


def _first_difference(old: list[dict[str, Any]], new: list[dict[str, Any]], whole: bool) -> str | None:
    """Return a message about the first different row, or None. whole: whether `new` is complete."""
    for then, now in zip(old, new, strict=False):
        for column in {**then, **now}:
            one, other = then.get(column), now.get(column)
            if column not in UNTIMED and not _same(one, other):
                return f"frame {then['frame']}, column {column}: was {one}, is {other}"
    if whole and len(new) < len(old):
        return f"frame {old[len(new)]['frame']}: this row is missing"
    return None


def _same(one: Any, other: Any) -> bool:
    both_nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    return both_nan or (type(one) is type(other) and one == other)
