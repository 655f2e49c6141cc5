"""An experiment: many trials in one folder, with the status of each in `experiment.json`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from labrl.errors import DONE, FAILED, INTERRUPTED, LabrlError
from labrl.experiment.scheduler import Engine, TasksLeft, run_queue, working
from labrl.experiment.summary import how_to_resume_experiment, print_experiment, said_of
from labrl.experiment.task import Outcome, Task, recorded
from labrl.processes import Stopped, signals_raise
from labrl.session.interruption import Interruption
from labrl.storage.experiment_folder import (
    ExperimentFolder,
    ExperimentKind,
    ExperimentStatus,
    TrialRecord,
    names_in,
    take_away,
)
from labrl.storage.run_folder import MARKER, RunFolder
from labrl.trial import reporting
from labrl.trial.summary import say


@contextmanager
def held(
    path: Path, kind: ExperimentKind, exists: bool, records: Sequence[TrialRecord] = (), **facts: Any
) -> Iterator[ExperimentFolder]:
    """Lock the folder of an experiment in this context.

    exists: whether the folder exists; else a new one is made, with `records` and `facts`, and removed again
    if a LabrlError ends the experiment before a trial has begun. Any other early end is recorded as its
    status: a failure, or an interruption with a note on how to resume. Raises InputError if the folder is in
    use.
    """
    before = names_in(path)
    folder = ExperimentFolder.open(path) if exists else None
    folder = folder or ExperimentFolder.begin(path, kind, records, **facts)
    with folder.lock():
        try:
            with signals_raise():
                yield folder
        except LabrlError:
            if not exists and not any(path.glob(f"*/{MARKER}")):
                take_away(path, before)
            elif folder.status == "running":
                folder.set_status("interrupted")
            raise
        except KeyboardInterrupt as stop:
            folder.set_status("interrupted")
            stop.add_note(f"to resume: {how_to_resume_experiment(path)}")
            raise
        except BaseException:
            folder.set_status("failed")
            raise


class Grid(TasksLeft):
    """The trials of a grid: the queue that hands them out, records their status and summarizes them."""

    def __init__(self, folder: ExperimentFolder, tasks: Sequence[Task]) -> None:
        """tasks: the remaining trials; the others of the folder have finished."""
        super().__init__(tasks)
        self.folder = folder
        self.records = {record.number: record for record in folder.trials()}
        self.outcomes: dict[int, Outcome] = {}
        """Trials that have ended, by number."""
        left = {task.number for task in tasks}
        for number, record in self.records.items():
            if number not in left and record.status == "finished":
                self.outcomes[number] = recorded(RunFolder.open(folder.trial_path(record))) or Outcome(
                    status="finished", exit_code=DONE
                )

    def run(self, engine: Engine) -> int:
        """Run the remaining trials. Return the exit code of the experiment."""
        interruption = Interruption()
        try:
            with working(engine, interruption):
                run_queue(self, engine, interruption)
        except KeyboardInterrupt as stop:
            interruption.stop(signal.SIGTERM if isinstance(stop, Stopped) else signal.SIGINT)
        return self._close(interruption.exit_code if interruption.requested else None)

    def tick(self, running: Collection[Task]) -> None:
        """Record which trials have begun, as their run folders say."""
        for task in running:
            record = self.records[task.number]
            if record.status == "waiting" and _has_begun(self.folder.trial_path(record)):
                self._change(record, "running")

    def ended(self, task: Task, outcome: Outcome) -> None:
        """Record and print the outcome of a trial; also in its run folder if its process could not."""
        record = self.records[task.number]
        self.outcomes[task.number] = outcome
        status = "finished" if outcome.status == "pruned" else outcome.status
        self._change(record, status, outcome.error if status == "failed" else None)
        _mend(self.folder.trial_path(record), outcome)
        done = sum(other.status not in ("waiting", "running") for other in self.records.values())
        told = f"{said_of(record, self.records.values(), outcome)} ({done} of {len(self.records)})"
        if outcome.status == "failed":
            print(f"labrl: {told}", file=sys.stderr, flush=True)
        elif outcome.status == "finished" or outcome.returns:
            say(told)

    def _close(self, interrupted: int | None) -> int:
        """Print the status of the trials, and make the report. Return the exit code.

        interrupted: exit code where a signal ended the experiment, else None.
        """
        codes = [outcome.exit_code for outcome in self.outcomes.values()]
        failed = max((code for code in codes if code < INTERRUPTED), default=DONE)
        stopped = max((code for code in codes if code >= INTERRUPTED), default=DONE)
        status: ExperimentStatus
        if interrupted is not None or len(self.outcomes) < len(self.records) or (stopped and not failed):
            status, code = "interrupted", interrupted or stopped or FAILED
        else:
            status, code = ("failed" if failed else "finished"), failed
        self.folder.set_status(status)
        if status == "interrupted" and not any(outcome.returns for outcome in self.outcomes.values()):
            say(f"interrupted; to resume: {how_to_resume_experiment(self.folder.path)}")
            return code
        print_experiment(self.folder.path, list(self.records.values()), self.outcomes, status)
        if reporting.wants_report(self.folder.path):
            reporting.report_experiment(self.folder.path)
        return code

    def _change(self, record: TrialRecord, status: Any, error: str | None = None) -> None:
        record.status, record.error = status, error
        self.folder.set_trials([record])


def _has_begun(path: Path) -> bool:
    try:
        return RunFolder.open(path).status == "running"
    except LabrlError:
        return False


def _mend(path: Path, outcome: Outcome) -> None:
    """Record in the run folder the end of a killed trial, which still says `running`."""
    with suppress(LabrlError, OSError):  # where the trial never began, there is no folder
        run = RunFolder.open(path)
        if run.status == "running":
            run.set_status(outcome.status, error=outcome.error)
