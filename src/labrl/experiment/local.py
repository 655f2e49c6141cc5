"""Trials in processes on this machine, each with its own cores and GPUs: `hydra/launcher=local`."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labrl.errors import InputError
from labrl.experiment.launcher import TrialLauncher
from labrl.experiment.machine import Machine, Need, Share
from labrl.experiment.scheduler import Outcome, Planned, Task
from labrl.processes import SAVE, exit_code_of, how_it_ended
from labrl.session.worker import Worker, wait_for

ASKED_TO_END = (exit_code_of(signal.SIGINT), exit_code_of(signal.SIGTERM), -signal.SIGTERM)
"""Exit codes of a process that a signal has asked to end."""


@dataclass(eq=False)
class _Job:
    """A trial that a worker trains, or that has ended while it was planned."""

    planned: Planned | Outcome
    share: Share
    worker: Worker
    told_to_stop: bool = False


class WorkersLauncher(TrialLauncher):
    """`hydra/launcher=local`: as many trials at the same time as the machine can run, each in its own
    process.

    A process runs one trial after another, so that PyTorch is loaded once. If it dies, only its trial is
    affected; with the pool of joblib, which Hydra's launcher of that name uses, all trials would end.
    """

    program = "labrl.trial"
    """Module that trains a trial in its process."""

    def __init__(self, n_jobs: int = -1) -> None:
        """n_jobs: largest number of trials at once, >= 1; -1 for as many as the machine can run."""
        super().__init__()
        self._idle: list[Worker] = []
        self._n_jobs = n_jobs
        self.limit = None if n_jobs == -1 else n_jobs

    def check(self) -> None:
        """Raise InputError if the number of trials at once is wrong."""
        whole = isinstance(self._n_jobs, int) and not isinstance(self._n_jobs, bool)
        if not whole or self._n_jobs == 0 or self._n_jobs < -1:
            raise InputError(
                "hydra.launcher.n_jobs must be at least 1, or -1 for as many as the machine can run, "
                f"got {self._n_jobs}",
                code="range" if whole else "type",
                key="hydra.launcher.n_jobs",
            )

    def __enter__(self) -> WorkersLauncher:
        self._machine = Machine(self.cores)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        for worker in [*(job.worker for job in self._jobs), *self._idle]:
            worker.close()
        self._idle.clear()
        super().__exit__()

    def has_room(self, need: Need) -> bool:
        """Return whether cores and GPUs for another trial are free."""
        if not super().has_room(need):
            return False
        share = self._machine.take(need)
        if share is not None:
            self._machine.give_back(share)
        return share is not None

    def start(self, task: Task) -> None:
        """Plan a trial in this process, and train it in one that uses its cores and GPUs."""
        share = self._machine.take(task.need)
        assert share is not None, "has_room must return True first"
        worker = self._worker(share.environment)  # A new one loads PyTorch while this process plans.
        planned = self.run.plan(task)
        if isinstance(planned, Planned):
            worker.run(
                planned.folder,
                planned.environment,
                label=f"[{task.number}] ",
                log=task.log,
                cwd=str(planned.cwd),
            )
        self._jobs[_Job(planned, share, worker)] = task

    def _outcomes(self, seconds: float) -> Sequence[tuple[_Job, Outcome]]:
        """Return the trials that have ended, as soon as there is one or after `seconds`."""
        if all(isinstance(job.planned, Planned) for job in self._jobs):
            wait_for([job.worker for job in self._jobs], seconds)
        ended = [(job, outcome) for job in self._jobs if (outcome := self._outcome(job)) is not None]
        for job, _ in ended:
            self._machine.give_back(job.share)
            if not job.worker.died:
                self._idle.append(job.worker)
        return ended

    def _outcome(self, job: _Job) -> Outcome | None:
        """Return the outcome of a trial; None while it runs."""
        if isinstance(job.planned, Outcome):
            return job.planned
        if (ended := job.worker.ended()) is None:
            return None
        code, error = ended
        if job.worker.died:
            lost = Outcome.lost(f"its process {how_it_ended(code)}", interrupted=code in ASKED_TO_END)
            return self.run.conclude(job.planned, lost)
        return self.run.conclude(job.planned, self.run.outcome(job.planned, code, error))

    def stop(self) -> None:
        """Ask each trial once to save and end. A second signal would interrupt saving."""
        for job in self._jobs:
            if not job.told_to_stop:
                job.told_to_stop = True
                job.worker.signal(signal.SIGTERM)

    def save(self) -> None:
        """Ask each trial to save and go on."""
        for job in self._jobs:
            job.worker.signal(SAVE)

    def _worker(self, environment: Mapping[str, str]) -> Worker:
        """Return an idle process with this environment, or a new one."""
        self._idle = [worker for worker in self._idle if worker.alive]
        for worker in self._idle:
            if worker.environment == environment:
                self._idle.remove(worker)
                return worker
        if self._idle:  # PyTorch has initialized its GPUs, so it cannot use others.
            self._idle.pop().close()
        return Worker(environment, self.program)
