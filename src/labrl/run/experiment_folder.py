"""The folder of one experiment: the run folders of its trials, and `experiment.json`."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from labrl.errors import DamagedFileError, InputError
from labrl.run.folder import REPORT_FILES, Folder, now, origin, read_json
from labrl.run.lock import LOCK
from labrl.run.provenance import Typed
from labrl.run.run_folder import MARKER as RUN_MARKER
from labrl.run.run_folder import RunFolder
from labrl.run.signature import is_own, signed
from labrl.secrets import redact

TRIAL_LOG = "trial.log"
"""File in the run folder of a search's trial with its output, and the traceback if it crashed."""

STUDY_FILE = "study.db"
"""Name of the SQLite storage of a search for which no other storage is configured."""

CONFIRMING = "confirm_"
"""Prefix of the run folders in which a search runs its best trials on fresh seeds."""

EXPERIMENT_MARKER = "experiment.json"
"""Name of the file that marks the folder of an experiment."""

ExperimentKind = Literal["grid", "search"]

ExperimentStatus = Literal["running", "finished", "failed", "interrupted"]

TrialStatus = Literal["waiting", "running", "finished", "failed", "interrupted", "pruned"]
"""Status of a trial. A killed experiment leaves `running` behind; `pruned`: stopped early by a search."""


def experiment_of(run: Path) -> Path | None:
    """Return the folder of the experiment that the trial in folder `run` belongs to, or None."""
    return next((parent for parent in run.parents if is_experiment(parent)), None)


def is_first_of_experiment(run: Path) -> bool:
    """Return whether the trial in folder `run` is the one that prints messages for all trials of its
    experiment. True outside experiments."""
    experiment = experiment_of(run)
    trials = read_json(experiment / EXPERIMENT_MARKER).get("trials") if experiment else None
    return not experiment or not trials or experiment / trials[0]["folder"] == run


@dataclass(kw_only=True)
class TrialRecord:
    """The entry of one trial in `experiment.json`."""

    number: int
    """Number of the trial in its experiment, >= 0. A number is never used twice."""
    overrides: list[str]
    """All overrides that compose the trial, without those for Hydra."""
    folder: str
    """Its run folder, relative to the experiment's. It does not exist before the trial starts."""
    status: TrialStatus = "waiting"
    error: str | None = None
    """Error of a failed trial, in one line."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further plain data: `params`, `values` and `intermediate` of a search. In the file they are beside the
    other fields."""

    def as_json(self) -> dict[str, Any]:
        """Return the entry as it is written to the file."""
        content = dataclasses.asdict(self)
        facts = content.pop("facts")
        return {**content, **facts}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TrialRecord:
        """Build a record from the result of `as_json`. Raises KeyError if a field is missing."""
        names = [own.name for own in dataclasses.fields(cls) if own.name != "facts"]
        facts = {name: value for name, value in content.items() if name not in names}
        return cls(**{name: content[name] for name in names}, facts=facts)


class ExperimentFolder(Folder[ExperimentStatus]):
    """The folder of one experiment.

    Its marker `experiment.json` holds: `kind`, `status` (a killed experiment stays `running`), `command` (as
    first typed), `resumes` (the command of each resume), `overrides` and `hydra_overrides` (the overrides
    that compose it now), `swept` (the keys in which trials differ), `config_dir`, `trials` ordered by number,
    and for a search its facts under `search`.
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
        """Claim `path` for a new experiment. Takes facts and raises errors as `create` does."""
        return cls.create(path, kind=kind, **facts, trials=[trial.as_json() for trial in trials])

    def check_format(self) -> None:
        """Raise InputError if this version of labrl does not read the folder or that of a trial."""
        super().check_format()
        check_objective(self.path, read_json(self.marker))
        with suppress(KeyError, TypeError):  # a damaged entry is reported when the trials are read
            for trial in read_json(self.marker).get("trials", ()):
                RunFolder(self.path / trial["folder"]).check_format()

    def trials(self) -> list[TrialRecord]:
        """Return all trials, ordered by number. Raises DamagedFileError if the file is damaged."""
        try:
            return [TrialRecord.from_json(content) for content in self.info().get("trials", [])]
        except (KeyError, TypeError, AttributeError) as error:
            raise DamagedFileError(
                f"{self.marker} is damaged: the entry of a trial lacks {error}", key=str(self.marker)
            ) from error

    def set_trials(self, changed: Iterable[TrialRecord]) -> None:
        """Add the records of `changed`, or replace those with the same number, and keep the others."""
        with self.writing:
            records = {trial.number: trial for trial in [*self.trials(), *changed]}
            self.replace_trials(records.values())

    def replace_trials(self, trials: Iterable[TrialRecord]) -> None:
        """Replace all records by `trials`."""
        self.update(trials=[trial.as_json() for trial in sorted(trials, key=lambda one: one.number)])

    def resumed(self, command: Typed, edits: Sequence[str], **facts: Any) -> None:
        """Record a resume: its command, its overrides, and further `facts`.

        The first command stays under `command`.
        """
        entry = {"time": now(), "command": command, "edits": list(edits)}
        self.set_status(
            "running",
            resumes=[*self.info().get("resumes", []), entry],
            format_version=self.FORMAT_VERSION,
            **facts,
        )

    def _sealed(self, content: dict[str, Any]) -> dict[str, Any]:
        """Sign the content, unless someone else has written what is there now."""
        before = read_json(self.marker)
        return signed(redact(content)) if not before or is_own(before) else content

    def trial_path(self, trial: TrialRecord) -> Path:
        """Return the run folder of `trial`, whether or not it exists yet."""
        return self.path / trial.folder


def check_objective(folder: Path, info: Mapping[str, Any]) -> None:
    """Raise InputError for a search with several objectives, as earlier versions of labrl made them. info:
    content of `experiment.json`."""
    facts = info.get("search")
    objective = facts.get("objective") if isinstance(facts, dict) else None
    if isinstance(objective, list) and len(objective) > 1:
        raise InputError(
            f"{folder} is a search with several objectives ({', '.join(map(str, objective))}), which this "
            f"version of labrl does not read. {origin(folder)}",
            code="not-installed",
            key=str(folder),
        )


def is_experiment(folder: Path) -> bool:
    """Return whether `folder` is the folder of an experiment."""
    return (folder / EXPERIMENT_MARKER).exists()


def discard_refused(folder: Path, before: set[str] | None) -> None:
    """Remove the files that a refused experiment has put into its folder, and the folder if the experiment
    created it.

    before: the names in the folder before; None if the folder did not exist. Later files with names that
    labrl does not use belong to someone else and stay.
    """
    for path in folder.iterdir():
        if path.name in (before or ()):
            continue
        if path.is_file() and (path.name in (EXPERIMENT_MARKER, LOCK) or path.name.startswith(STUDY_FILE)):
            path.unlink()
        elif path.name == ".submitit" or (
            path.is_dir()
            # of a trial whose process wrote nothing but its log
            and not any(file.is_file() and file.name != TRIAL_LOG for file in path.rglob("*"))
        ):
            shutil.rmtree(path, ignore_errors=True)
    if before is None:
        with suppress(OSError):
            folder.rmdir()
