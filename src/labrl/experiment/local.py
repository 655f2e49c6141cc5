"""Trials in processes on this machine, each with its own cores and GPUs: `hydra/launcher=local`."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labrl.experiment.launcher import Answer, TrialLauncher, check_count, lost
from labrl.experiment.machine import Machine, Need, Share
from labrl.processes.signals import SAVE, exit_code_of, how_it_ended
from labrl.run.experiment import TrialRecord
from labrl.session.worker import TRIALS, SessionWorker, start_server, wait_for

ASKED_TO_END = (exit_code_of(signal.SIGINT), exit_code_of(signal.SIGTERM), -signal.SIGTERM)
"""Exit codes of a process that a signal has asked to end."""


@dataclass
class _Job:
    """A trial that a worker trains on some of the slots of this machine."""

    worker: SessionWorker
    share: Share
    told_to_stop: bool = False


class WorkersLauncher(TrialLauncher):
    """`hydra/launcher=local`: run as many trials at the same time as the machine can, each in its own
    process.

    A process runs one trial after another, so that PyTorch is loaded once. If a process dies, only its trial
    is affected; in the process pool of joblib, which Hydra's joblib launcher uses, all trials would end.
    """

    work = TRIALS
    """Module whose function `carry_out` trains a trial in its process."""

    def __init__(self, n_jobs: int = -1) -> None:
        """n_jobs: maximum number of trials that run at the same time, >= 1; -1 for as many as the machine can
        run."""
        super().__init__()
        self._jobs: dict[int, _Job] = {}
        self._idle: list[SessionWorker] = []
        self._n_jobs = n_jobs
        self.limit = None if n_jobs == -1 else n_jobs

    def check(self) -> None:
        """Raise InputError if the number of trials at once is wrong."""
        allowed = "be at least 1, or -1 for as many as the machine can run"
        check_count("n_jobs", self._n_jobs, allowed, also=(-1,))

    def __enter__(self) -> WorkersLauncher:
        self._machine = Machine(self.cores)
        start_server(self.work)  # It imports PyTorch while the first trial is planned.
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        for worker in [*(job.worker for job in self._jobs.values()), *self._idle]:
            worker.close()
        self._idle.clear()
        self._jobs.clear()

    def has_room(self, need: Need) -> bool:
        """Return whether cores and GPUs for another trial are free."""
        if not super().has_room(need):
            return False
        share = self._machine.take(need)
        if share is not None:
            self._machine.give_back(share)
        return share is not None

    def send(self, trial: TrialRecord, need: Need, order: dict[str, Any]) -> None:
        """Have a worker train the trial on free cores and GPUs."""
        share = self._machine.take(need)
        assert share is not None, "has_room must return True first"
        # An idle process with this environment, or a new one.
        self._idle = [worker for worker in self._idle if worker.alive]
        worker = next((one for one in self._idle if one.environment == share.environment), None)
        if worker is not None:
            self._idle.remove(worker)
        else:
            if self._idle:  # PyTorch has initialized its GPUs, so it cannot use others.
                self._idle.pop().close()
            worker = SessionWorker(share.environment, self.work)
        self._jobs[trial.number] = _Job(worker, share)
        worker.run(order)

    def answers(self, seconds: float) -> Sequence[tuple[int, Answer]]:
        """Return the trials that have ended, as soon as one has ended or after `seconds`."""
        wait_for([job.worker for job in self._jobs.values()], seconds)
        found: list[tuple[int, Answer]] = []
        for number, job in list(self._jobs.items()):
            if (ended := job.worker.ended()) is None:
                continue
            code, error = ended
            answer: Answer = code, error, False
            if job.worker.died:
                answer = lost(f"its process {how_it_ended(code)}", interrupted=code in ASKED_TO_END)
            else:
                self._idle.append(job.worker)
            self._machine.give_back(job.share)
            del self._jobs[number]
            found.append((number, answer))
        return found

    def stop(self) -> None:
        """Ask each trial once to save and end. A second signal would interrupt saving."""
        for job in self._jobs.values():
            if not job.told_to_stop:
                job.told_to_stop = True
                job.worker.signal(signal.SIGTERM)

    def save(self) -> None:
        """Ask each trial to save and continue."""
        for job in self._jobs.values():
            job.worker.signal(SAVE)
