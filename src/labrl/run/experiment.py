"""An experiment on disk: a folder that contains `experiment.json` and the run folders of its trials."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from labrl.errors import DamagedFileError, InputError, LabrlError, first_line
from labrl.processes.secrets import redact
from labrl.run.find import is_run, load_run
from labrl.run.folder import EXPERIMENT_MARKER, REPORT_FILES, Folder, Status, now, read_json
from labrl.run.lock import LOCK, FolderLock
from labrl.run.run import MARKER as RUN_MARKER
from labrl.run.run import Run
from labrl.run.signature import is_own, signed

if TYPE_CHECKING:
    from labrl.run.provenance import Typed

TRIAL_LOG = "trial.log"
"""Name of the file with the output of a search's trial, and its traceback if it crashed, in the trial's run
folder."""

STUDY_FILE = "study.db"
"""Name of the SQLite storage of a search for which no other storage is configured."""

CONFIRMING = "confirm_"
"""Prefix of the run folders in which a search runs its best trials on fresh seeds."""

ExperimentKind = Literal["grid", "search"]


@dataclass(kw_only=True)
class TrialRecord:
    """The entry of one trial in `experiment.json`."""

    number: int
    """Number that identifies the trial in its experiment, >= 0. A number is never used twice."""
    overrides: list[str]
    """All overrides that compose the trial's configuration, except those for Hydra."""
    folder: str
    """The trial's run folder, relative to the experiment folder. It does not exist before the trial
    starts."""
    status: Status = "waiting"
    error: str | None = None
    """Error of a failed trial, in one line."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further plain data: `params`, `values` and `intermediate` of a search. In `experiment.json`, they are
    on the same level as the other fields."""

    def as_json(self) -> dict[str, Any]:
        """Return the entry of the trial as it is written to `experiment.json`."""
        content = dataclasses.asdict(self)
        facts = content.pop("facts")
        return {**content, **facts}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TrialRecord:
        """Build a record from the result of `as_json`. Raises KeyError if a field is missing."""
        names = [own.name for own in dataclasses.fields(cls) if own.name != "facts"]
        facts = {name: value for name, value in content.items() if name not in names}
        return cls(**{name: content[name] for name in names}, facts=facts)


class Experiment(Folder):
    """An experiment on disk. Use `begin`, `open` or `load` to get an instance.

    Its marker `experiment.json` contains: `kind`; the recorded `status` (a killed experiment stays
    `running`); `command` (the command line of the start); `resumes` (the command line of each resume);
    `overrides` and `hydra_overrides` (the overrides that currently compose the experiment); `swept` (the keys
    in which trials differ); `config_dir`; `stages` (the plan of a comparison with `seed=auto`, otherwise
    null); `trials`, ordered by number; and for a search its settings under `search`.
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
        """Claim `path` for a new experiment, and return the experiment. facts: further plain data for the
        marker. Raises the errors of `create`."""
        return cls.create(path, kind=kind, **facts, trials=[trial.as_json() for trial in trials])

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Return the experiment in `folder` with its runs. Raises the errors of `open` and of runs."""
        experiment = cls.open(Path(folder).expanduser())
        experiment.runs  # noqa: B018 (raises the errors)
        return experiment

    def trials(self) -> list[TrialRecord]:
        """Return the records of all trials, ordered by number. Raises DamagedFileError if `experiment.json`
        is damaged."""
        try:
            return [TrialRecord.from_json(content) for content in self.read_info().get("trials", [])]
        except (KeyError, TypeError, AttributeError) as error:
            raise DamagedFileError.about(self.marker, f"the entry of a trial lacks {error}") from error

    def set_trials(self, changed: Iterable[TrialRecord]) -> None:
        """Write the trial records in `changed`, replacing records with the same number. Other records are
        kept."""
        with self.writing:
            records = {trial.number: trial for trial in [*self.trials(), *changed]}
            self.replace_trials(records.values())

    def replace_trials(self, trials: Iterable[TrialRecord]) -> None:
        """Replace the records of all trials with `trials`."""
        self.update(trials=[trial.as_json() for trial in sorted(trials, key=lambda one: one.number)])

    def resumed(self, command: Typed, edits: Sequence[str], **facts: Any) -> None:
        """Record a resume of the experiment, and set its status to `running`.

        command: command line of the resume; edits: overrides of the resume; facts: further plain data for the
        marker. The command line of the start remains under `command`.
        """
        entry = {"time": now(), "command": command, "edits": list(edits)}
        self.set_status(
            "running",
            resumes=[*self.read_info().get("resumes", []), entry],
            format_version=self.FORMAT_VERSION,
            **facts,
        )

    def _sealed(self, content: dict[str, Any]) -> dict[str, Any]:
        """Sign the marker's new content, unless someone else has written its present content."""
        before = read_json(self.marker)
        return signed(redact(content)) if not before or is_own(before) else content

    @property
    def runs(self) -> list[Run]:
        """The runs of the trials that have started, ordered by trial number."""
        return self._runs[0]

    @property
    def warnings(self) -> list[str]:
        """Messages about trials that have no readable run folder."""
        return self._runs[1]

    @cached_property
    def _runs(self) -> tuple[list[Run], list[str]]:
        runs: list[Run] = []
        warnings: dict[str, LabrlError | None] = {}
        for trial in self.info.get("trials", []):
            if not isinstance(trial, dict):
                raise DamagedFileError.about(self.marker, f"it cannot be read: a trial is {trial}")
            number, reason = trial.get("number"), trial.get("error")
            path = self.path / str(trial.get("folder"))
            try:
                if is_run(path):
                    runs.append(load_run(path))
                elif trial.get("status") != "waiting":
                    why = f": {first_line(reason)}" if reason else ""
                    warnings[f"trial {number} has no run folder{why}"] = None
            except LabrlError as error:
                warnings[f"trial {number}: {error}"] = error
        for refusal in warnings.values():
            if isinstance(refusal, InputError) and not runs:
                raise refusal
        return runs, list(warnings)

    @property
    def status(self) -> str:
        """Recorded status of the experiment, but `killed` if it is recorded as running and no process runs it
        or one of its trials."""
        said = str(self.info.get("status"))
        alive = said == "running" and (
            FolderLock(self.path).holder() or any(run.status == "running" for run in self.runs)
        )
        return "killed" if said == "running" and not alive else said

    def number_of(self, run: Run) -> int | None:
        """Return the number of the trial whose run is `run`; None for other runs, such as those that confirm
        a search."""
        return self._numbers.get(run.path.resolve())

    @cached_property
    def _numbers(self) -> dict[Path, int]:
        trials = self.info.get("trials", [])
        return {(self.path / str(trial.get("folder"))).resolve(): trial.get("number") for trial in trials}

    def forget(self) -> None:
        """Discard everything that was read, because the experiment has changed."""
        super().forget()
        for name in ("_runs", "_numbers"):
            self.__dict__.pop(name, None)

    def trial_path(self, trial: TrialRecord) -> Path:
        """Return the run folder of `trial`, whether or not it exists yet."""
        return self.path / trial.folder


def discard_refused(folder: Path, before: set[str] | None) -> None:
    """Remove the files that a refused experiment has written to its folder, and the folder itself if the
    experiment created it.

    before: the names in the folder before the experiment; None if the folder did not exist. New files whose
    names labrl does not use belong to someone else and are kept.
    """
    own = (EXPERIMENT_MARKER, LOCK, ".submitit")
    for path in folder.iterdir():
        # A folder of a trial whose process wrote nothing but its log.
        empty = all(file.name == TRIAL_LOG or file.is_dir() for file in path.rglob("*"))
        if path.name not in (before or ()) and (
            path.name in own or path.name.startswith(STUDY_FILE) or (path.is_dir() and empty)
        ):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    if before is None:
        with suppress(OSError):
            folder.rmdir()
