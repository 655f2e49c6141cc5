"""`labrl +rerun` repeats a run in a new folder, and compares the results of the two runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from labrl.config.keys import contradictions
from labrl.errors import FAILED, InputError
from labrl.run.run import Run
from labrl.run.session import RunSession
from labrl.trial.past import configure_again, refusal
from labrl.trial.result import TrialResult

if TYPE_CHECKING:
    from labrl.run.provenance import Origin

UNTIMED = frozenset({"wall", "fps", "end"})
"""Columns that are not compared: measured times, and `end`, which depends on the budget."""

TABLES = ("train", "eval")


def rerun(past: Run, plain: Mapping[str, Any], origin: Origin, folder: str, force: bool = False) -> Run:
    """Create a run in `folder` that repeats an earlier one.

    plain, origin: result of `edit_run`; force: whether edits may contradict the values of the run. Raises
    InputError, with a table, if they do, and also if the run is a fork, because another run has played its
    first frames.
    """
    # Imported late: a misspelled override must not wait for PyTorch.
    from labrl.trial.create import create

    if fork := past.read_info().get("fork"):
        again = ["labrl", f"+fork={fork['folder']}", f"at={fork['frame']}", *fork["edits"]]
        why = "the run is a fork, and +rerun repeats runs from frame 0"
        raise InputError.usage(f"+rerun={past.path}", why, f"To repeat it: {shlex.join(again)}")
    found = contradictions(past.changes(plain)) if past.sessions else []  # otherwise nothing is compared
    if found and not force:
        raise refusal(found, f"+rerun={past.path}")
    return create(configure_again(past, plain, origin), folder)


def record_comparison(past: Run, result: TrialResult) -> None:
    """Record in the result and in the run folder whether the metric rows equal those of the earlier run, if
    that has any."""
    again = Run.open(result.folder)
    if not past.sessions:
        result.comparison = f"nothing was compared, because {past.path} has no metric rows"
        again.update(rerun_of=str(past.path))
        return
    equal, result.comparison = compare(past, result)
    if not equal:
        result.exit_code = result.exit_code or FAILED
    again.update(rerun_of=str(past.path), equal=equal)


def compare(then: Run, result: TrialResult) -> tuple[bool, str]:
    """Return whether the metric rows of a repetition equal those of the run `then`, and a message.

    Rows are compared up to the end of the shorter run, except that a finished repetition must have all rows
    within its budget.
    """
    budgets = then.config["env"]["max_frame"], Run.open(result.folder).config["env"]["max_frame"]
    rows = sessions = 0
    finished = {session.index for session in result.sessions if session.status == "finished"}
    for session in then.sessions:
        repeated = RunSession(result.folder / session.path.name)
        if not repeated.path.is_dir():
            continue
        sessions += 1
        for table in TABLES:
            old, new = session.read_rows(table), repeated.read_rows(table)
            if budgets[1] < budgets[0]:
                old = [row for row in old if row["frame"] <= budgets[1]]
            # A run that went further lacks the row at the end of the smaller budget.
            ends = session.furthest("frame"), repeated.furthest("frame")
            old, new = _without_end(old, new, ends[1]), _without_end(new, old, ends[0])
            difference = _first_difference(old, new, whole=session.index in finished)
            if difference is not None:
                place = f"{session.path.name}/{table}.csv"
                return False, f"differs from {then.path}: first in {place}, {difference}"
            rows += min(len(old), len(new))
    plural = "" if sessions == 1 else "s"
    told = f"all {rows} metric rows of {sessions} session{plural} equal those of {then.path}"
    return True, f"{told} (wall time and speed aside)"


def _without_end(
    rows: list[dict[str, Any]], others: list[dict[str, Any]], furthest: float
) -> list[dict[str, Any]]:
    """Return rows without the row that exists only because the budget ended, if another run went further.

    others: the rows of the other run; furthest: last frame of the other run.
    """
    frames = {row["frame"] for row in others}
    return [
        row
        for row in rows
        if row.get("end") != "budget" or row["frame"] >= furthest or row["frame"] in frames
    ]


def _first_difference(old: list[dict[str, Any]], new: list[dict[str, Any]], whole: bool) -> str | None:
    """Return a message about the first row that differs, or None. whole: whether `new` must have all rows of
    `old`."""
    for then, now in zip(old, new, strict=False):
        for column in {**then, **now}:
            one, other = then.get(column), now.get(column)
            if column not in UNTIMED and str(one) != str(other):  # as they are written
                return f"frame {then['frame']}, column {column}: was {one}, is {other}"
    if whole and len(new) < len(old):
        return f"frame {old[len(new)]['frame']}: this row is missing"
    return None
