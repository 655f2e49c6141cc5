"""The folder that holds the trials of one experiment, each a run folder, and `experiment.json` about them."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from labrl.errors import DamagedFileError
from labrl.storage.folder import REPORT_FILES, Folder, now, read_json
from labrl.storage.lock import LOCK
from labrl.storage.provenance import Typed
from labrl.storage.run_folder import MARKER as RUN_MARKER

TRIAL_LOG = "trial.log"
"""File in the run folder of a search's trial: its output, and the traceback if it crashed."""

STUDY_FILE = "study.db"
"""The SQLite storage of a search that is told of no other."""

CONFIRMING = "confirm_"
"""Prefix of the run folders in which a search runs its best trials on fresh seeds."""

EXPERIMENT_MARKER = "experiment.json"
"""The file whose existence says that a folder belongs to an experiment."""

ExperimentKind = Literal["grid", "search"]

ExperimentStatus = Literal["running", "finished", "failed", "interrupted"]

TrialStatus = Literal["waiting", "running", "finished", "failed", "interrupted", "pruned"]
"""`running` is also what a killed experiment leaves behind; `pruned` is stopped early by a search."""


def experiment_of(run: Path) -> Path | None:
    """The folder of the experiment that the trial in folder `run` belongs to, or None."""
    return next((parent for parent in run.parents if is_experiment(parent)), None)


def is_first_of_experiment(run: Path) -> bool:
    """Return whether the trial in folder `run` is to tell what holds for all; true outside experiments."""
    experiment = experiment_of(run)
    trials = read_json(experiment / EXPERIMENT_MARKER).get("trials") if experiment else None
    return not experiment or not trials or experiment / trials[0]["folder"] == run


@dataclass(kw_only=True)
class TrialRecord:
    """One trial as `experiment.json` has it."""

    number: int
    """Number of the trial in its experiment, >= 0; never given twice."""
    overrides: list[str]
    """All overrides that compose it, without those for Hydra."""
    folder: str
    """Its run folder, relative to the experiment's; there is none before the trial starts."""
    status: TrialStatus = "waiting"
    error: str | None = None
    """Error of a failed trial, in one line."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further plain data: a search's `params`, `values`, `intermediate`. In the file these
    stand beside the others."""

    def as_json(self) -> dict[str, Any]:
        """Return the entry as in the file."""
        content = dataclasses.asdict(self)
        facts = content.pop("facts")
        return {**content, **facts}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TrialRecord:
        """Build from the result of `as_json`. Raises KeyError where a field is missing."""
        names = [own.name for own in dataclasses.fields(cls) if own.name != "facts"]
        facts = {name: value for name, value in content.items() if name not in names}
        return cls(**{name: content[name] for name in names}, facts=facts)


class ExperimentFolder(Folder[ExperimentStatus]):
    """The folder of one experiment.

    `experiment.json` marks it: `kind`, `status` (running is also what a killed one leaves behind), `command`
    (what was typed at first), `resumes` (what was typed each time that it went on), `overrides` and
    `hydra_overrides` (the overrides that compose it now), `swept` (the keys that tell trials apart),
    `config_dir`, `trials` in order of their number, and for a search its facts under `search`.
    """

    MARKER = EXPERIMENT_MARKER
    KIND = "experiment"
    RESUME = "labrl -m +resume="
    KEY = "hydra.sweep.dir"
    WRITTEN = (RUN_MARKER, *REPORT_FILES)

    @classmethod
    def begin(
        cls, path: str | os.PathLike[str], kind: ExperimentKind, trials: Iterable[TrialRecord], **facts: Any
    ) -> Self:
        """Claim `path` for a new experiment; facts and errors as in `create`."""
        return cls.create(path, kind=kind, **facts, trials=[trial.as_json() for trial in trials])

    def trials(self) -> list[TrialRecord]:
        """Return all trials, in order of their number. Raises DamagedFileError where the file is damaged."""
        try:
            return [TrialRecord.from_json(content) for content in self.info().get("trials", [])]
        except (KeyError, TypeError, AttributeError) as error:
            raise DamagedFileError(
                f"{self.marker} is damaged: a trial has no {error}", key=str(self.marker)
            ) from error

    def set_trials(self, changed: Iterable[TrialRecord]) -> None:
        """Put in, or replace by number, the records of `changed`; the others stay."""
        with self.writing:
            records = {trial.number: trial for trial in [*self.trials(), *changed]}
            self.replace_trials(records.values())

    def replace_trials(self, trials: Iterable[TrialRecord]) -> None:
        """Let `trials` be all there are."""
        self.update(trials=[trial.as_json() for trial in sorted(trials, key=lambda one: one.number)])

    def resumed(self, command: Typed, edits: Sequence[str], **facts: Any) -> None:
        """Record that the experiment goes on: by which command, with which overrides, and further `facts`.

        What was typed at first stays under `command`.
        """
        entry = {"time": now(), "command": command, "edits": list(edits)}
        self.set_status("running", resumes=[*self.info().get("resumes", []), entry], **facts)

    def trial_path(self, trial: TrialRecord) -> Path:
        """Return the run folder of `trial`, whether it exists yet or not."""
        return self.path / trial.folder


def is_experiment(folder: Path) -> bool:
    """Return whether `folder` belongs to an experiment."""
    return (folder / EXPERIMENT_MARKER).exists()


def take_away(folder: Path, before: set[str] | None) -> None:
    """Remove what a refused experiment has put into its folder, and the folder if it has made that.

    before: the names in the folder before; None where it was not there. What has come since and bears none of
    our names is somebody else's.
    """
    for path in folder.iterdir():
        if path.name in (before or ()):
            continue
        if path.is_file() and (path.name in (EXPERIMENT_MARKER, LOCK) or path.name.startswith(STUDY_FILE)):
            path.unlink()
        elif path.name == ".submitit" or (
            path.is_dir()
            # of a trial that wrote no more than what its process said before it began
            and not any(file.is_file() and file.name != TRIAL_LOG for file in path.rglob("*"))
        ):
            shutil.rmtree(path, ignore_errors=True)
    if before is None:
        with suppress(OSError):
            folder.rmdir()
