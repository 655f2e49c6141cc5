"""The task that Hydra runs for each trial, alone or in an experiment, in any process."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from omegaconf import OmegaConf

from labrl.config.compose import prepare
from labrl.config.presets import choices_of
from labrl.errors import DONE, LabrlError
from labrl.experiment.again import ExperimentAgain
from labrl.experiment.task import Outcome, recorded
from labrl.steady_output import refused
from labrl.storage.folder import place
from labrl.storage.provenance import Command
from labrl.storage.run_folder import MARKER, RunFolder
from labrl.storage.session_log import print_without_modules
from labrl.trial.composed import Again, Composed
from labrl.trial.resume import FinishedError, Resume

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from labrl.storage.provenance import Typed

PATIENCE = 60.0
"""Seconds for the processes of a killed experiment to save and end, before their trial is resumed."""


class Job:
    """The function that Hydra calls with the configuration of each trial; it may be sent to other processes.

    It raises nothing, so that a failed trial does not end others.
    """

    def __init__(
        self,
        config_dir: str | None,
        full_error: bool,
        typed: Typed,
        overrides: Sequence[str],
        again: Again | ExperimentAgain | None = None,
    ) -> None:
        """config_dir: with a user's own groups; full_error: whether to show tracebacks; typed: the command;
        overrides: those of them that compose trials, or of the run or experiment to go back to: `again`."""
        self.typed, self.overrides = typed, list(overrides)
        self.config_dir = os.path.abspath(config_dir) if config_dir else None
        self.full_error = full_error
        self.again = again.fork if isinstance(again, ExperimentAgain) else again
        self.experiment = again if isinstance(again, ExperimentAgain) else None
        """The experiment that is resumed, if any."""
        self.force = False
        """Whether a trial that is resumed may have had another past."""
        self.part_of: Literal["grid", "search"] | None = None
        """Kind of experiment that the trials belong to; a folder that holds a run is then the trial's own,
        broken off."""
        self.exit_code = DONE
        """The largest of the trials that ran in this process, or what the experiment says."""

    def __call__(self, cfg: DictConfig) -> Outcome:
        """Run one trial in the folder that Hydra has made for it."""
        outcome = self._outcome(cfg)
        self.exit_code = max(self.exit_code, outcome.exit_code)
        return outcome

    def _outcome(self, cfg: DictConfig) -> Outcome:
        from hydra.core.hydra_config import HydraConfig

        from labrl.experiment.hydra_trial import remove_unused_folder

        job = HydraConfig.get()
        folder = job.runtime.output_dir
        print_without_modules()
        try:
            prepare(self.config_dir)
            return self._run(cfg, job, folder)
        except LabrlError as error:
            if self._speaks(error):
                refused(error, full_error=False)
            return Outcome.failed(str(error), error.exit_code)
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            if self._speaks(error):
                print(f"labrl: the trial in {folder} failed: {told}", file=sys.stderr)
                print("labrl: HYDRA_FULL_ERROR=1 before the command shows where", file=sys.stderr)
            return Outcome.failed(told)
        finally:
            remove_unused_folder()

    def _speaks(self, error: Exception) -> bool:
        """Return whether to print what went wrong: in a grid, the experiment does."""
        if self.full_error or (self.part_of == "search" and not isinstance(error, LabrlError)):
            traceback.print_exception(error)
        return self.part_of != "grid"

    def _run(self, cfg: DictConfig, job: Any, folder: str) -> Outcome:
        place(job.run.dir, "hydra.run.dir")
        # as they were typed: an interpolation in an override resolves where its key stands, not here
        task: Any = OmegaConf.to_container(job.overrides.task, resolve=False)
        broken_off = self._broken_off(folder, task) if self.part_of else None
        if isinstance(broken_off, Outcome):
            return broken_off
        if broken_off is not None and cfg.seed is None:
            cfg.seed = broken_off.seed
        command = Command.of(task, choices_of(job), self.config_dir, self.typed)
        composed = Composed.of(cfg, folder, command)
        try:
            result = composed.run(broken_off or self.again)
        except FinishedError:
            if broken_off is None:
                raise
            # A cluster started it again after its end.
            return recorded(RunFolder.open(folder)) or Outcome(status="finished", exit_code=DONE)
        if not self.part_of:
            # Imported late: a mistyped key must not wait for it.
            from labrl.trial.summary import print_summary

            print_summary(result)
        return Outcome.of(result)

    def _broken_off(self, folder: str, overrides: list[str]) -> Resume | Outcome | None:
        """Return the run that an earlier attempt at the trial left in its folder, or None.

        overrides: of the trial now. What a search's trial came to is returned where it has ended, whatever
        the marker of a killed trial says.
        """
        if not (Path(folder) / MARKER).exists():
            return None
        run = RunFolder.open(folder)
        _wait_for(run)
        if run.unrecorded:
            with run.lock():
                run.discard_unrecorded()
            return None
        again = Resume.on_trial(run, self.force, overrides)
        sessions = run.sessions()
        all_ended = len(sessions) == again.num_sessions and all(one.ended_well for one in sessions)
        if self.part_of == "search" and (run.status in ("finished", "pruned") or all_ended):
            return recorded(run) or Outcome(status="finished", exit_code=DONE)
        return again


def _wait_for(run: RunFolder) -> None:
    """Wait until the last process of an earlier attempt has saved the trial.

    Raises BusyFolderError where it has not after PATIENCE.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with run.lock():
                return
        except LabrlError:
            if time.monotonic() > until:
                raise
        time.sleep(0.2)
