"""What the trials of an experiment have in common, and the creation of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from omegaconf import DictConfig

from labrl.config.compose import compose, prepare
from labrl.config.extensions import slug
from labrl.config.keys import without_alias
from labrl.config.presets import choices_of
from labrl.envs.games import check_environment
from labrl.errors import LabrlError, answer_to, described
from labrl.experiment.scheduler import end_failed, read_end
from labrl.experiment.summary import how_to_resume_experiment
from labrl.processes.output import (
    INDENT,
    labeled_output,
    print_error,
    print_traceback,
    printing_to,
)
from labrl.processes.script import refuse_main
from labrl.processes.secrets import redact
from labrl.processes.signals import signals_raise
from labrl.run.experiment import (
    CONFIRMING,
    TRIAL_LOG,
    Experiment,
    ExperimentKind,
    TrialRecord,
    discard_refused,
)
from labrl.run.find import is_run
from labrl.run.provenance import Origin
from labrl.run.run import MARKER, Run
from labrl.run.session_log import print_warnings
from labrl.run.signature import Trust, trusting
from labrl.session.callbacks.display import SHOWN_ABOVE
from labrl.session.callbacks.pruning import SEARCH
from labrl.trial.configuration import configure, overrides_of
from labrl.trial.fork import ForkPoint, fork
from labrl.trial.past import check_past
from labrl.trial.resume import FinishedError, resume

if TYPE_CHECKING:
    from labrl.run.provenance import Repositories, Typed


@dataclass(kw_only=True)
class Trials:
    """The trials of an experiment: how they are composed, and how the folder of each is written."""

    kind: Literal["grid", "search"]
    overrides: list[str]
    """Overrides that compose trials, without those for Hydra."""
    hydras: list[str]
    """Overrides for Hydra, such as `hydra.sweep.dir`."""
    config_dir: str | None
    """Absolute path of the folder with the user's own groups."""
    typed: Typed
    """The command, which is recorded in each trial."""
    home: Path = Path()
    """Folder of the experiment."""
    full_error: bool = False
    """Whether to print tracebacks of all errors."""
    fork: ForkPoint | None = None
    """The checkpoint of another run from which the trials start, if any."""
    force: bool = False
    """Whether new values may contradict the past of a resumed trial."""
    elsewhere: bool = False
    """Whether the trials run on other machines, whose cores and GPUs are unknown here."""
    repositories: Repositories | None = None
    """The state of the code, which is described once for all trials."""

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """Return the configuration of a trial with the node `hydra`. Raises InputError."""
        return compose(without_alias([*self.hydras, *overrides]), self.config_dir, with_hydra=True)

    def plan(self, trial: TrialRecord, shown: bool) -> dict[str, Any] | None:
        """Write the folder of a trial, and return the order for the process that trains it.

        shown: whether a panel shows its progress. Returns None for a trial that is refused or has already
        ended, and records how. Raises no exceptions, so that a failed trial does not end other trials.
        """
        name, folder = (TRIAL_LOG if shown or self.kind == "search" else None), self.home / trial.folder
        log = folder / name if name else None
        try:
            with printing_to(log), labeled_output("" if log else f"[{trial.number}] "):
                print_warnings()
                try:
                    run = self._create(trial, folder)
                except Exception as error:
                    self._refuse(error, trial, log)
                    return None
        except OSError as error:
            end_failed(trial, f"{folder} cannot be written ({error.strerror or error})")
            return None
        if run is None:
            read_end(trial, folder)
            return None
        reports = self.kind == "search" and not trial.folder.startswith(CONFIRMING)
        return {
            "folder": str(folder),
            "environment": ({SEARCH: str(self.home)} if reports else {})
            | ({SHOWN_ABOVE: "1"} if shown else {}),
            "cwd": os.getcwd(),
            "label": f"[{trial.number}] ",
            "log": name,
            "full_error": self.full_error,
        }

    def _create(self, trial: TrialRecord, path: Path) -> Run | None:
        """Write the folder of a new trial, or mark the sessions of an earlier attempt as due. Returns None if
        an earlier attempt has ended."""
        prepare(self.config_dir)
        folder, overrides = str(path), without_alias(trial.overrides)
        if is_run(path):
            run = Run.open(folder)
            run.wait_until_free()
            if not run.unrecorded:
                return self._resume(run, overrides)
        if self.fork is not None:
            return fork(self.fork.of_trial(overrides), folder, self.typed, self.repositories, self.elsewhere)
        cfg = self.compose(overrides)
        choices = choices_of(cfg.hydra)
        origin = Origin(overrides, choices, self.config_dir, self.typed, self.repositories)
        configuration = configure(cfg, origin)
        refuse_main(configuration.plain["env"].get("id"), "an experiment")
        check_environment(configuration.plain["env"], choices.get("env", ""))
        # Imported late: wrong values are reported without waiting for PyTorch.
        from labrl.trial.create import create

        return create(configuration, folder, self.elsewhere)

    def _resume(self, run: Run, overrides: Sequence[str]) -> Run | None:
        """Continue an earlier attempt of a trial. overrides: the trial's present overrides.

        Returns None for an attempt that has ended, even if it was killed before its status was recorded.
        """
        with trusting(Trust(everything=True)):  # This command has written or checked the run.
            edits = edits_of(check_past(run), overrides)
            sessions = run.sessions
            all_ended = len(sessions) == run.config["meta"]["max_session"] and all(
                one.ended_well for one in sessions
            )
            if self.kind == "search" and (run.recorded_status in ("finished", "pruned") or all_ended):
                return None
            try:
                return resume(
                    run,
                    edits,
                    self.typed,
                    force=self.force,
                    repositories=self.repositories,
                    elsewhere=self.elsewhere,
                )
            except FinishedError:
                return None

    def _refuse(self, error: Exception, trial: TrialRecord, log: Path | None) -> None:
        """Record that `error` has refused a trial. In a grid, the experiment prints it; a log also receives
        the traceback of a failure of the user's own code."""
        answer = answer_to(error)
        if self.full_error or (log and (answer is not error or error.__cause__)):
            print_traceback(error, INDENT if log else "")
        if answer is None:
            answer = LabrlError(redact(described(error)))
        if self.kind != "grid":
            print_error(answer)
        end_failed(trial, str(answer), answer.exit_code)


def edits_of(run: Run, overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a trial that its earlier attempt did not have."""
    before = overrides_of(run)
    return [one for one in overrides if one not in before]


def trial_folder(config: DictConfig, number: int) -> str:
    """Return the folder of a trial, relative to that of its experiment. config: its configuration with the
    node `hydra`."""
    return f"{number}_{choices_of(config.hydra)['agent']}_{slug(config.env.name)}"


@contextmanager
def held(
    path: Path, kind: ExperimentKind, exists: bool, records: Sequence[TrialRecord] = (), **facts: Any
) -> Iterator[Experiment]:
    """Context manager: lock the folder of an experiment.

    exists: whether the experiment exists; otherwise, it is created with `records` and `facts`, and removed
    again if a LabrlError ends it before a trial has started. Any other early end is recorded as the status of
    the experiment: a failure, or an interruption with a note on how to resume. Raises BusyFolderError if the
    folder is in use.
    """
    before = {one.name for one in path.iterdir()} if path.is_dir() else None
    folder = Experiment.open(path) if exists else None
    folder = folder or Experiment.begin(path, kind, records, **facts)
    with folder.lock():
        try:
            with signals_raise():
                yield folder
        except LabrlError:
            if not exists and not any(path.glob(f"*/{MARKER}")):
                discard_refused(path, before)
            elif folder.recorded_status == "running":
                folder.set_status("interrupted")
            raise
        except KeyboardInterrupt as stop:
            folder.set_status("interrupted")
            stop.add_note(f"to resume: {how_to_resume_experiment(path)}")
            raise
        except BaseException:
            folder.set_status("failed")
            raise
