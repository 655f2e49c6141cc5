"""What Hydra runs for each trial: one of its own, or one of an experiment's, in whatever process."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from labrl.config.compose import prepare, resolve, to_plain
from labrl.errors import DONE, FAILED, LabrlError
from labrl.experiment.experiment_again import ExperimentAgain
from labrl.experiment.outcome import Outcome, recorded
from labrl.storage.marker import place
from labrl.storage.run_folder import MARKER, RunFolder
from labrl.storage.session_log import print_without_modules

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from labrl.storage.provenance import Typed
    from labrl.trial.again import Again


class Job:
    """The function that Hydra calls with the configuration of each trial; it may be sent to other processes.

    It raises nothing but, where `raises_interruption`, the end that a signal asked for: a trial that fails
    takes no other with it.
    """

    def __init__(
        self,
        config_dir: str | None,
        full_error: bool,
        typed: Typed,
        words: Sequence[str],
        again: Again | ExperimentAgain | None = None,
    ) -> None:
        """config_dir: with a user's own groups; full_error: whether to show tracebacks; typed: the command;
        words: those of them that compose trials, or of the run or experiment to go back to: `again`."""
        self.typed, self.words = typed, list(words)
        self.config_dir = os.path.abspath(config_dir) if config_dir else None
        self.full_error = full_error
        self.again = None if isinstance(again, ExperimentAgain) else again
        self.experiment = again if isinstance(again, ExperimentAgain) else None
        """The experiment that is gone on with, if any."""
        self.force = False
        """Whether a trial that is resumed may have had another past."""
        self.in_experiment = False
        """Whether trials are part of one: then a folder that holds a run is the trial's own, broken off."""
        self.raises_interruption = False
        self.exit_code = DONE
        """The largest of the trials that ran in this process, or what the experiment says."""

    def __call__(self, cfg: DictConfig) -> Outcome:
        """Run one trial in the folder that Hydra has made for it."""
        outcome = self._outcome(cfg)
        self.exit_code = max(self.exit_code, outcome.exit_code)
        if self.raises_interruption and outcome.status == "interrupted":
            raise SystemExit(outcome.exit_code)
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
            return Outcome(status="failed", exit_code=error.exit_code, error=str(error))
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            if self._speaks(error):
                print(f"labrl: the trial in {folder} failed: {told}", file=sys.stderr)
                print("labrl: HYDRA_FULL_ERROR=1 before the command shows where", file=sys.stderr)
            return Outcome(status="failed", exit_code=FAILED, error=told)
        finally:
            remove_unused_folder()

    def _speaks(self, error: Exception) -> bool:
        """Whether to say what went wrong: in an experiment, whoever counts the outcomes of all does."""
        if self.full_error:
            traceback.print_exception(error)
        return not self.in_experiment

    def _run(self, cfg: DictConfig, job: Any, folder: str) -> Outcome:
        place(job.run.dir, "hydra.run.dir")
        # as they were typed: an interpolation in a word resolves where its key stands, not here
        task: Any = OmegaConf.to_container(job.overrides.task, resolve=False)
        broken_off = _broken_off(folder, self.force, task) if self.in_experiment else None
        if broken_off is not None and cfg.seed is None:
            cfg.seed = broken_off.seed
        plain = to_plain(cfg)
        config = resolve(plain, cfg)
        # Imported late: a mistyped key must not wait for the rest.
        from labrl.config.presets import choices_of
        from labrl.storage.provenance import Command
        from labrl.trial.resume import FinishedError
        from labrl.trial.summary import print_summary
        from labrl.trial.trial import run_trial

        command = Command.of(task, choices_of(job), self.config_dir, self.typed)
        again = broken_off or self.again
        if again is None:
            result = run_trial(config, plain, folder, command)
        else:
            try:
                result = again.run(cfg, config, plain, folder, command)
            except FinishedError:
                if broken_off is None:
                    raise
                # A cluster started it again after its end.
                return recorded(RunFolder.open(folder)) or Outcome(status="finished", exit_code=DONE)
        if not self.in_experiment:
            print_summary(result)
        return Outcome.of(result)


def _broken_off(folder: str, force: bool, words: list[str]) -> Again | None:
    """The run that an earlier attempt at the trial left in its folder, or None. words: of the trial now."""
    if not (Path(folder) / MARKER).exists():
        return None
    from labrl.trial.again import Again

    run = RunFolder.open(folder)
    if run.unrecorded:
        with run.lock():
            (run.path / MARKER).unlink()
        return None
    return Again.on_trial(run, force, words)


def refused(error: LabrlError, full_error: bool) -> int:
    """Print what is wrong. Returns the exit code for that."""
    if full_error:
        traceback.print_exception(error)
    print("\n".join(f"labrl: {line}" for line in str(error).splitlines()), file=sys.stderr)
    return error.exit_code
