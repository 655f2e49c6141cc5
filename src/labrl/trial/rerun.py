"""`labrl +rerun` repeats a run in a new folder, and compares the results."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from labrl.errors import FAILED, InputError
from labrl.run.run import Run
from labrl.run.session import RunSession
from labrl.trial.composed import Again, Composed
from labrl.trial.past import check_changes, edited_config
from labrl.trial.result import TrialResult

UNTIMED = frozenset({"wall", "fps", "end"})
"""Columns that differ between identical runs: times, and a mark that runs of older versions lack."""

TABLES = ("train", "eval")


class Rerun(Again):
    """A run that is repeated."""

    def __init__(self, past: Run, edits: Sequence[str], force: bool) -> None:
        """Raise InputError for a fork, whose first frames another run has played."""
        if fork := past.read_info().get("fork"):
            raise InputError(
                f"{past.path} is a fork, and +rerun repeats runs from frame 0. To repeat it: "
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

        then = self.past
        if not self.force:
            check_changes(then, composed.cfg, composed.plain, f"+rerun={then.path}")
        if keys := [change.key for change in then.changes(edited_config(then))]:
            edited = f"{then.config_yaml} was edited after the run ({', '.join(keys)})"
            say(f"{edited}; +rerun ignores the edits")
        result = run_trial(composed)
        equal, result.comparison = compare(then, result)
        if not equal:
            result.exit_code = result.exit_code or FAILED
        run = Run.open(result.folder)
        run.set_status(run.recorded_status, rerun_of=str(then.path), equal=equal)
        return result


def compare(then: Run, result: TrialResult) -> tuple[bool, str]:
    """Return whether the metric rows of a repetition equal those of the run `then`, and a message.

    Rows are compared up to the end of the shorter run, but a finished repetition must not have fewer rows.
    """
    rows = sessions = 0
    finished = {session.index for session in result.sessions if session.status == "finished"}
    for old in then.sessions:
        new = RunSession(result.folder / old.path.name)
        if not new.path.is_dir():
            continue
        sessions += 1
        for table in TABLES:
            pair = (old.read_rows(table), new.read_rows(table))
            difference = _first_difference(*pair, whole=old.index in finished)
            if difference is not None:
                return False, f"differs from {then.path}: first in {new.path.name}/{table}.csv, {difference}"
            rows += min(map(len, pair))
    plural = "" if sessions == 1 else "s"
    told = f"all {rows} metric rows of {sessions} session{plural} equal those of {then.path}"
    return True, f"{told} (wall time and speed aside)"


def _first_difference(old: list[dict[str, Any]], new: list[dict[str, Any]], whole: bool) -> str | None:
    """Return a message about the first different row, or None. whole: whether `new` is complete."""
    for then, now in zip(old, new, strict=False):
        for column in {**then, **now}:
            one, other = then.get(column), now.get(column)
            if column not in UNTIMED and str(one) != str(other):  # as they are written
                return f"frame {then['frame']}, column {column}: was {one}, is {other}"
    if whole and len(new) < len(old):
        return f"frame {old[len(new)]['frame']}: this row is missing"
    return None
