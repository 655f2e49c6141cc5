"""An earlier run that is continued, repeated or forked, with edits of its configuration."""

from __future__ import annotations

import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from labrl.analysis.formats import align_columns
from labrl.config.compose import prepare
from labrl.config.edit import edit
from labrl.config.keys import (
    Change,
    is_hydras,
    key_of,
    override_of,
    split_override,
    typed_override,
    walk,
    written,
)
from labrl.errors import DamagedFileError, InputError, LabrlError
from labrl.processes.secrets import MASK
from labrl.run.checkpoint import misfit
from labrl.run.provenance import Command
from labrl.run.run import Run
from labrl.run.trust import check_recorded
from labrl.trial.composed import Composed, check_start_from

if TYPE_CHECKING:
    from labrl.config.schema import TrialConfig
    from labrl.run.provenance import Repositories, Typed
    from labrl.run.session import RunSession
    from labrl.trial.result import TrialResult


class Again(ABC):
    """An earlier run and edits of its configuration, from which a run is planned in the same or a new
    folder."""

    def __init__(
        self,
        past: Run,
        edits: Sequence[str],
        force: bool = False,
        config_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """past: the earlier run; edits: overrides that change its configuration; force: whether the edits may
        contradict the past of the run; config_dir: folder with the user's own groups; None: the folder that
        the run used."""
        self.past, self.edits, self.force = past, [one for one in edits if not is_hydras(one)], force
        self.hydras = [one for one in edits if is_hydras(one)]
        """Overrides for Hydra, such as `hydra.run.dir`."""
        self.config_dir = past.config_dir if config_dir is None else os.path.abspath(config_dir)

    @property
    def overrides(self) -> list[str]:
        """The overrides that would compose the edited configuration: those of the earlier run, followed by
        the edits."""
        keys = {key_of(one) for one in self.edits}
        return [*(one for one in overrides_of(self.past) if key_of(one) not in keys), *self.edits]

    @property
    def choices(self) -> dict[str, str]:
        """The chosen option of each configuration group."""
        recorded: dict[str, str] = dict(self.past.provenance.get("choices", {}))
        return recorded | {key: value for key, value in map(split_override, self.edits) if key in recorded}

    @property
    def node(self) -> dict[str, Any]:
        """Keys below `hydra`, from which the folder of the run is interpolated."""
        return {"runtime": {"choices": self.choices}}

    @cached_property
    def edited(self) -> dict[str, Any]:
        """The resolved configuration of the earlier run with the edits applied. Raises InputError."""
        prepare(self.config_dir)
        recorded, overrides = self.past.read_config(), overrides_of(self.past)
        # Secrets are not recorded, but references to them are, as in env.kwargs.key=${oc.env:MY_KEY}.
        masked = {key for key, value in walk(recorded) if isinstance(value, str) and MASK in value}
        references = [
            one
            for one in overrides
            if "${" in one and any(f"{key}.".startswith(f"{key_of(one)}.") for key in masked)
        ]
        plain = edit(recorded, [*references, *self.edits], overrides, self.config_dir)
        check_start_from(plain["start_from"]["run"], self.overrides)
        return {**plain, "seed": self.past.config["seed"]} if plain["seed"] is None else plain

    def composed(
        self,
        folder: str,
        typed: Typed,
        plain: Mapping[str, Any],
        repositories: Repositories | None = None,
        elsewhere: bool = False,
    ) -> Composed:
        """Check the configuration `plain` for a run in `folder`, and return it. The other arguments are those
        of `plan`. Raises InputError, which for a saved configuration names its file."""
        command = Command(self.overrides, self.choices, self.config_dir, typed, repositories)
        try:
            return Composed.of(plain, folder, command, elsewhere)
        except InputError as error:
            if (explained := self.past.explain(error)) is error:
                raise
            raise explained from error.__cause__

    @abstractmethod
    def plan(
        self,
        folder: str,
        typed: Typed,
        repositories: Repositories | None = None,
        elsewhere: bool = False,
    ) -> Run:
        """Write the files that the sessions need to the run folder, and return the run.

        folder: folder for a new run; typed: the complete command line; repositories: the state of the code,
        if it is known; elsewhere: whether another machine will train the run. Raises InputError, before
        anything is written, if the edits contradict the past of the run.
        """

    def check_fits(self, config: TrialConfig, session: RunSession, changes: Sequence[Change]) -> None:
        """Raise InputError, which lists the changed keys, if a session cannot load its checkpoint.

        config: the edited configuration; changes: its changes that contradict the past of the run.
        """
        from labrl.session.run import check_restores

        try:
            check_restores(config, session)
        except LabrlError as error:
            if isinstance(error, DamagedFileError) or not changes:
                raise
            why = f"the checkpoint of {self.past.path} cannot be loaded with the changed values"
            new = [*self.overrides, f"start_from.run={self.past.path}", "start_from.partial=true"]
            raise InputError.about(
                "; ".join(map(described, changes)),
                f"{why}, because {misfit(error.__cause__ or error)}",
                f"To start a new run from the weights that fit: {shlex.join(['labrl', *new])}",
                code="changed-past",
                key=changes[0].key,
            ) from error

    def conclude(self, result: TrialResult) -> TrialResult:
        """Do what remains to be done after the trial, and return its result."""
        return result


def check_past(run: Run, composes: bool = False) -> Run:
    """Check the files that describe an earlier run, and return the run.

    composes: whether the overrides of the run will be composed again. Raises DamagedFileError if the run
    folder is damaged or incomplete, and InputError if someone else has written the folder and it names code
    that is not part of labrl.
    """
    config = run.read_config()
    check_recorded(run, config, [one for one in run.overrides if not is_hydras(one)], composes)
    return run


def overrides_of(run: Run) -> list[str]:
    """Return the overrides that reproduce the configuration of a run, without those for Hydra."""
    overrides = [override for override in run.overrides if not is_hydras(override)]
    if not any(override.startswith("seed=") for override in overrides):
        overrides.append(override_of("seed", run.config["seed"]))
    return overrides


def refusal(contradicting: Sequence[Change], asked: str) -> InputError:
    """Return the error for changes that contradict the past of a run, with a table and what to type instead.

    asked: the override that names the run.
    """
    lines = [f"{asked}: these values contradict the past of the run:"]
    rows = [("key", "then", "now"), *map(row_of, contradicting)]
    lines += align_columns(rows, indent="  ")
    forked = asked.replace("resume", "fork", 1) if asked.startswith("+resume=") else ""
    message = "\n".join([*lines, *ways_out(contradicting, forked)])
    return InputError(message, code="changed-past", key=contradicting[0].key)


def described(change: Change) -> str:
    """Return a changed key with its old and new values in one line."""
    return f"{change.key} {written(change.old)} -> {written(change.new)}"


def row_of(change: Change) -> tuple[str, str, str]:
    """Return a key, its old value and its new value."""
    return change.key, written(change.old), written(change.new)


def ways_out(contradicting: Sequence[Change], forked: str = "") -> Iterator[str]:
    """Yield lines that say which overrides keep the old values, or permit the contradiction.

    forked: override that forks the run; '' if it cannot be forked.
    """
    # In an experiment, trials share old values.
    if old := dict.fromkeys(typed_override(one.key, one.old) for one in contradicting if one.pinnable):
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
