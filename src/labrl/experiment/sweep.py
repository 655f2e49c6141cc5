"""Run a grid: plan its trials, run them, and record the results."""

from __future__ import annotations

import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from omegaconf import DictConfig

from labrl.analysis.formats import duration
from labrl.errors import FAILED, TERMINATED, InputError, LabrlError
from labrl.experiment.earlier import Earlier, replaced, swept_keys
from labrl.experiment.grid import Planned, plan_again, plan_grid, plan_more
from labrl.experiment.launcher import TrialLauncher
from labrl.experiment.machine import Machine, Need
from labrl.experiment.scheduler import Queue, exit_code_of, returns_of, run_queue
from labrl.experiment.stages import check_resume, next_stage, requested_stages, with_seeds
from labrl.experiment.summary import how_to_resume_experiment, own_texts, print_experiment, said_of
from labrl.experiment.trials import Trials, held
from labrl.processes.signals import Stopped
from labrl.run.experiment import Experiment, TrialRecord
from labrl.run.folder import Status, place
from labrl.run.provenance import describe_code
from labrl.run.run import Run
from labrl.session.interruption import Interruption
from labrl.trial import reporting
from labrl.trial.summary import say


def sweep_grid(
    config: DictConfig, trials: Trials, launcher: TrialLauncher, earlier: Earlier | None
) -> tuple[Path, int]:
    """Run every combination of the values in the overrides of `trials`. Return the experiment folder and the
    exit code.

    config: configuration of the experiment with the node `hydra`; earlier: the experiment that is resumed, if
    any. Raises InputError for wrong input before any trial starts, except for errors that only building a
    trial can reveal.
    """
    path = place(config.hydra.sweep.dir, "hydra.sweep.dir")
    params = config.hydra.sweeper.get("params") or {}
    overrides = replaced([f"{key}={value}" for key, value in params.items()], trials.overrides)
    machine = None if launcher.traits.elsewhere else Machine()
    stages = requested_stages(overrides)
    if stages is not None:
        if trials.fork is not None:
            why = "the random streams of the forked run continue, so all trials have the seed of that run"
            raise InputError.contradiction("seed=auto", "+fork", why, "Leave out seed")
        overrides = with_seeds(overrides, range(stages.size))
    if earlier is None:
        records, left = plan_grid(overrides, trials, machine, stages)
    else:
        before = Experiment.open(path)
        check_resume(earlier, before, stages)
        records, left = plan_again(earlier, before, overrides, trials, machine)
    facts = {
        "overrides": trials.overrides,
        "hydra_overrides": trials.hydras,
        "swept": sorted(swept_keys(overrides) | (earlier.swept if earlier else set())),
        "config_dir": trials.config_dir,
        "fork": trials.fork.as_json() if trials.fork else None,
        "stages": dataclasses.asdict(stages) if stages else None,
    }
    trials.home, trials.repositories = path, describe_code()
    with held(path, "grid", earlier is not None, records, command=trials.typed, **facts) as folder:
        if earlier is not None:
            folder.resumed(trials.typed, earlier.edits, **facts)
            folder.replace_trials(records)

        def plan_stage() -> Planned:
            assert stages is not None
            return plan_more(folder.trials(), next_stage(folder, stages), trials, machine)

        grid = Grid(folder, records, left, plan_stage if stages else None)
        grid.shows_progress = config.meta.progress
        if done := len(grid.over):
            say(f"Resuming {path}: {done} trials have finished, and {len(grid.left)} remain")
        else:
            say(f"{len(grid.left)} trial{'' if len(grid.left) == 1 else 's'} in {path}")
        return path, grid.run(launcher)


class Grid(Queue):
    """The queue of the trials of a grid, which records their status and prints a summary."""

    def __init__(
        self,
        folder: Experiment,
        trials: Sequence[TrialRecord],
        left: Sequence[tuple[TrialRecord, Need]],
        plan_more: Callable[[], Planned] | None = None,
    ) -> None:
        """trials: all trials of the folder; left: those that remain with their needs; the others have
        finished. plan_more: function that plans further trials after all have ended; None: there are none."""
        super().__init__(folder.path, left)
        self.folder, self._plan_more = folder, plan_more
        self._since, self._ended = time.monotonic(), 0  # for the pace of the trials of a stage
        self._set(trials)
        remaining = {trial.number for trial, _ in self.left}
        self.over = {number: one for number, one in self.trials.items() if number not in remaining}

    def run(self, launcher: TrialLauncher) -> int:
        """Run the remaining trials. Return the exit code of the experiment."""
        interruption = Interruption()
        try:
            with launcher, interruption:
                run_queue(self, launcher, interruption)
        except KeyboardInterrupt as stop:
            interruption.stop(signal.SIGTERM if isinstance(stop, Stopped) else signal.SIGINT)
        return self._close(interruption.exit_code if interruption.requested else None)

    def about(self, trial: TrialRecord) -> str:
        """Return the overrides that distinguish a trial from others."""
        return self._own[trial.number]

    def next(self, has_room: Callable[[Need], bool]) -> tuple[TrialRecord, Need] | None:
        """Return the next trial, after planning further ones if all have ended; None if there is none."""
        if self._plan_more and not self.left and len(self.over) == len(self.trials):
            self._add(*self._plan_more())
        return super().next(has_room)

    def tick(self, running: Collection[TrialRecord]) -> None:
        """Record which trials have started, according to their run folders."""
        for trial in running:
            if trial.status == "waiting" and Run.status_at(self.path_of(trial)) == "running":
                trial.status = "running"
                self.folder.set_trials([trial])

    def ended(self, trial: TrialRecord, need: Need, died: bool) -> None:
        """Record and print how a trial ended. If its process died, also record it in the run folder."""
        super().ended(trial, need, died)
        self._ended += 1
        path = self.path_of(trial)
        done = sum(other.status not in ("waiting", "running") for other in self.trials.values())
        told = f"{said_of(trial, self.trials.values(), path)} ({done} of {len(self.trials)})"
        _mend(path, trial)
        if trial.status == "failed":
            print(f"labrl: {told}", file=sys.stderr, flush=True)
        elif trial.status == "finished" or returns_of(path):
            say(told)
        if trial.status == "pruned":
            trial.status = "finished"
        trial.error = trial.error if trial.status == "failed" else None
        self.folder.set_trials([trial])

    def _set(self, trials: Sequence[TrialRecord]) -> None:
        self.trials, self._own = {trial.number: trial for trial in trials}, own_texts(trials)

    def _add(self, trials: list[TrialRecord], left: list[tuple[TrialRecord, Need]]) -> None:
        """Add the trials of the next stage of a comparison, if any, and say how long they will take."""
        if not left:
            return
        self.folder.replace_trials(trials)
        self._set(trials)
        self.left = left
        told = f"{len(self.left)} more trials"
        if self._ended:
            pace = (time.monotonic() - self._since) / self._ended
            told += f", about {duration(pace * len(self.left))} at the pace of the last stage"
        say(told)
        self._since, self._ended = time.monotonic(), 0
        if reporting.wants_report(self.folder.path):
            reporting.make_report(self.folder.path)

    def _close(self, interrupted: int | None) -> int:
        """Print the status of the trials, and make the report. Return the exit code of the experiment.

        interrupted: exit code if a signal ended the experiment, else None.
        """
        code = exit_code_of(self.over.values())
        status: Status = "failed" if code else "finished"
        if interrupted is not None or len(self.over) < len(self.trials) or code == TERMINATED:
            status, code = "interrupted", interrupted or code or FAILED
        self.folder.set_status(status)
        if lacking := self.folder.errors.summary(self.folder.path):
            print(f"labrl: {lacking}", file=sys.stderr)
            code = code or FAILED
        if status == "interrupted" and not any(returns_of(self.path_of(one)) for one in self.over.values()):
            say(f"interrupted; to resume: {how_to_resume_experiment(self.folder.path)}")
            return code
        print_experiment(self.folder.path, list(self.trials.values()), status)
        reporting.finish_experiment(self.folder.path, reporting.wants_report(self.folder.path))
        return code


def _mend(path: Path, trial: TrialRecord) -> None:
    """Record the end of a killed trial in its run folder, whose status is still `running`."""
    with suppress(LabrlError, OSError):  # A trial that never started has no folder.
        run = Run.open(path)
        if run.recorded_status in ("waiting", "running"):
            run.set_status(trial.status, error=trial.error)
