"""An experiment: many trials in one folder, where `experiment.json` says of each how it stands."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labrl.errors import DONE, FAILED, INTERRUPTED, LabrlError
from labrl.experiment.experiment_again import ExperimentAgain
from labrl.experiment.experiment_summary import how_to_resume_experiment, print_experiment, said_of
from labrl.experiment.outcome import Outcome, recorded
from labrl.processes import signals_raise
from labrl.storage.experiment_folder import (
    ExperimentFolder,
    ExperimentKind,
    ExperimentStatus,
    TrialRecord,
    names_in,
    take_away,
)
from labrl.storage.provenance import Typed
from labrl.storage.run_folder import MARKER, RunFolder
from labrl.trial import reporting
from labrl.trial.summary import say

LOOK_SECONDS = 1.0
"""Between two looks at the run folders of trials that other machines may be running."""


@contextmanager
def recording_end(folder: ExperimentFolder) -> Iterator[None]:
    """Record as the experiment's status what ends it early: a failure or an interruption.

    An interruption gets a note that says how to go on. The caller handles InputError.
    """
    try:
        with signals_raise():
            yield
    except LabrlError:
        raise
    except KeyboardInterrupt as stop:
        folder.set_status("interrupted")
        stop.add_note(f"to go on: {how_to_resume_experiment(folder.path)}")
        raise
    except BaseException:
        folder.set_status("failed")
        raise


class Experiment:
    """Records how the trials stand while somebody runs them, from any thread, and tells of it in the end."""

    def __init__(self, folder: ExperimentFolder) -> None:
        self.folder = folder
        self.records = {record.number: record for record in folder.trials()}
        self.outcomes: dict[int, Outcome] = {}
        """Of the trials that have ended, by number."""
        self._changing = threading.Lock()
        self._before = {number: self._standing(record) for number, record in self.records.items()}

    @classmethod
    @contextmanager
    def at_work(
        cls,
        path: Path,
        kind: ExperimentKind,
        records: Sequence[TrialRecord],
        command: Typed,
        again: ExperimentAgain | None,
        **facts: Any,
    ) -> Iterator[Experiment]:
        """An experiment in a new folder, or with `again` on in its own, kept from others meanwhile.

        records: of all trials; command: as it was typed; facts: what else `experiment.json` keeps. A new
        folder is taken away again where the launcher refuses its work with a InputError. Raises InputError
        where the folder is taken.
        """
        before = names_in(path)
        resumed = again is not None
        if resumed:
            folder = ExperimentFolder.open(path)
        else:
            folder = ExperimentFolder.create(path, kind, records, command=command, **facts)
        with folder.lock():
            if again is not None:
                folder.resumed(command, again.edits, **facts)
                folder.replace_trials(records)
            experiment = cls(folder)
            try:
                with recording_end(folder):
                    yield experiment
            except LabrlError:  # of a launcher that took no trial
                if resumed or experiment.outcomes or any(path.glob(f"*/{MARKER}")):
                    folder.set_status("failed")
                else:
                    take_away(path, before)
                raise

    def started(self, number: int) -> None:
        """A trial is running now."""
        self._change(number, status="running", error=None)

    def ended(self, number: int, outcome: Outcome) -> None:
        """Record what a trial came to, in its run folder too where its process could not, and say it."""
        with self._changing:
            if number in self.outcomes:
                return
            self.outcomes[number] = outcome
        self._change(number, status=outcome.status, error=outcome.error)
        record = self.records[number]
        _mend(self.folder.trial_path(record), outcome)
        done = sum(other.status not in ("waiting", "running") for other in self.records.values())
        told = f"{said_of(record, self.records.values(), outcome)} ({done} of {len(self.records)})"
        if outcome.status == "interrupted" and not outcome.returns:
            return  # the last line of the experiment says it
        if outcome.status == "failed":
            print(f"labrl: {told}", file=sys.stderr, flush=True)
        else:
            say(told)

    def skipped(self, number: int) -> None:
        """A trial had finished before this experiment was resumed."""
        outcome = recorded(RunFolder.open(self.folder.trial_path(self.records[number])))
        assert outcome is not None
        self.outcomes[number] = outcome

    @contextmanager
    def watched(self, ends: bool) -> Iterator[None]:
        """Meanwhile, what the run folders say is taken over: that a trial has begun and, with `ends`, what it
        came to. A cluster knows better: there a trial may be interrupted and go on.
        """
        stopped = threading.Event()

        def watch() -> None:
            while not stopped.wait(LOOK_SECONDS):
                self.look(ends)

        thread = threading.Thread(target=watch, name="experiment watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
            self.look(ends)

    def look(self, ends: bool) -> None:
        """Take over what the run folders of unfinished trials say, where it is new; see `watched`."""
        for number, record in list(self.records.items()):
            standing = self._standing(record)
            if number in self.outcomes or standing == self._before[number]:
                continue
            outcome = recorded(RunFolder.open(self.folder.trial_path(record)))
            if outcome is not None and ends:
                self.ended(number, outcome)
            elif record.status == "waiting":
                self.started(number)

    def _standing(self, record: TrialRecord) -> tuple[str, str] | None:
        """Status of the trial's run folder and since when; None before it is one."""
        try:
            info = RunFolder.open(self.folder.trial_path(record)).info()
            return info["status"], info["updated"]
        except (LabrlError, KeyError):
            return None

    def close(self, interrupted: int | None) -> int:
        """Tell how the trials stand, and make the report. Returns the exit code.

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
            say(f"interrupted; to go on: {how_to_resume_experiment(self.folder.path)}")
            return code
        print_experiment(self.folder.path, list(self.records.values()), self.outcomes, status)
        if reporting.wants_report(self.folder.path):
            reporting.report_experiment(self.folder.path)
        return code

    def _change(self, number: int, **changed: Any) -> None:
        with self._changing:
            record = self.records[number]
            for name, value in changed.items():
                setattr(record, name, value)
            self.folder.set_trials([record])


def _mend(path: Path, outcome: Outcome) -> None:
    """A trial whose process was killed left `running` in its folder."""
    try:
        run = RunFolder.open(path)
        if run.status == "running":
            run.set_status(outcome.status, error=outcome.error)
    except (LabrlError, OSError):
        return  # it never began
