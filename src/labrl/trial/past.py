"""What the past of a run fixes: checks and messages of everything that goes back to an earlier run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labrl.analysis.formats import align_columns
from labrl.config.keys import Change, typed_override, written
from labrl.errors import DamagedFileError, InputError, LabrlError
from labrl.run.checkpoint import misfit
from labrl.run.run import Run
from labrl.run.trust import check_recorded
from labrl.trial.configuration import Configuration, configure

if TYPE_CHECKING:
    from labrl.config.schema import TrialConfig
    from labrl.run.provenance import Origin
    from labrl.run.session import RunSession


def check_past(run: Run) -> Run:
    """Check the files that describe an earlier run, and return the run.

    Raises DamagedFileError if the run folder is damaged or incomplete, and InputError if someone else has
    written the folder and it names code that is not part of labrl.
    """
    check_recorded(run, run.read_config())
    return run


def configure_again(past: Run, plain: Mapping[str, Any], origin: Origin) -> Configuration:
    """Check an edited configuration of an earlier run, and return it. Raises InputError, which for a saved
    configuration names its file."""
    try:
        return configure(plain, origin)
    except InputError as error:
        if (explained := past.explain(error)) is error:
            raise
        raise explained from error.__cause__


def check_fits(
    past: Run, origin: Origin, config: TrialConfig, session: RunSession, changes: Sequence[Change]
) -> None:
    """Raise InputError, which lists the changed keys, if a session cannot load its checkpoint.

    config: the edited configuration of `past`; changes: its changes that contradict the past of the run.
    """
    # Imported late: a misspelled key must not wait for PyTorch.
    from labrl.session.main import check_restores

    try:
        check_restores(config, session)
    except LabrlError as error:
        if isinstance(error, DamagedFileError) or not changes:
            raise
        why = f"the checkpoint of {past.path} cannot be loaded with the changed values"
        new = [*origin.overrides, f"start_from.run={past.path}", "start_from.partial=true"]
        raise InputError.about(
            "; ".join(map(described, changes)),
            f"{why}, because {misfit(error.__cause__ or error)}",
            f"To start a new run from the weights that fit: {shlex.join(['labrl', *new])}",
            code="changed-past",
            key=changes[0].key,
        ) from error


def refusal(contradicting: Sequence[Change], asked: str) -> InputError:
    """Return the error for changes that contradict the past of a run, with a table and what to type instead.

    asked: the override that names the run.
    """
    lines = [f"{asked}: these values contradict the past of the run:"]
    rows = [("key", "then", "now")]
    rows += [(one.key, written(one.old), written(one.new)) for one in contradicting]
    lines += align_columns(rows, indent="  ")
    forked = asked.replace("resume", "fork", 1) if asked.startswith("+resume=") else ""
    message = "\n".join([*lines, *_ways_out(contradicting, forked)])
    return InputError(message, code="changed-past", key=contradicting[0].key)


def described(change: Change) -> str:
    """Return a changed key with its old and new values in one line."""
    return f"{change.key} {written(change.old)} -> {written(change.new)}"


def _ways_out(contradicting: Sequence[Change], forked: str) -> Iterator[str]:
    """Yield lines that say which overrides keep the old values, or permit the contradiction.

    forked: override that forks the run; '' if it cannot be forked.
    """
    if old := [typed_override(one.key, one.old) for one in contradicting if one.pinnable]:
        yield f"To keep the old values: {' '.join(old)}"
    if not all(change.pinnable for change in contradicting):
        yield "A key without an old or a new value belongs to another option or another version of labrl."
    elif forked:
        new = " ".join(typed_override(one.key, one.new) for one in contradicting)
        yield f"To try the new values in a run of its own: {forked} at=<frame> {new}"
    yield "To continue anyway (this is recorded in the run folder): +force=true"


def say_differences(differs: Sequence[str]) -> None:
    """Print why a continuation may not be exact. differs: what has changed in machine, code and packages."""
    from labrl.trial.summary import say

    if differs:
        say(f"The results may not be bit-for-bit exact, because these have changed: {'; '.join(differs)}")
