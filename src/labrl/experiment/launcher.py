"""Launchers: Hydra plugins that run the trials of an experiment, given one at a time."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from labrl.errors import InputError
from labrl.experiment.machine import Machine, Need
from labrl.experiment.scheduler import Outcome, Queue, Task, run_queue
from labrl.session.interruption import Interruption


class TrialLauncher(Launcher):
    """Runs trials, in processes of this machine or as jobs of a cluster.

    A context manager. On leaving after an error, it lets running trials save and end.
    """

    elsewhere = False
    """Whether trials run on other machines, whose cores and GPUs are unknown here."""
    handles_signals = True
    """Whether the scheduler handles signals and stops the trials; False: the trials handle signals."""
    queues = True
    """Whether trials may be submitted before there is room for them. A search avoids this, because its trials
    depend on earlier results."""
    limit: int | None = None
    """Largest number of trials at the same time; None: as many as there is room for."""
    cores: int | None = None
    """Number of cores of this machine to use; None: all."""
    run: Callable[[Task], Outcome]
    """Function that runs one trial in the calling process; cloudpickle can pickle it."""

    def __init__(self) -> None:
        self._jobs: dict[Any, Task] = {}
        """Running trials by their process or job."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Store Hydra's objects. Raises InputError if the launcher cannot work on this machine."""
        # Imported late, because Hydra imports all launchers at every start.
        from labrl.experiment.job import HydraTrial

        self.check()
        job: Any = task_function
        self.run = HydraTrial(hydra_context, config, job)

    def check(self) -> None:
        """Raise InputError if the launcher cannot work on this machine."""

    @property
    def running(self) -> list[Task]:
        """The running trials."""
        return list(self._jobs.values())

    def has_room(self, need: Need) -> bool:
        """Return whether another trial with this need can start now."""
        return self.limit is None or len(self.running) < self.limit

    @abstractmethod
    def start(self, task: Task) -> None:
        """Start a trial, or submit it to the cluster's queue."""

    def ended(self, seconds: float) -> list[tuple[Task, Outcome]]:
        """Return the trials that have ended since the last call, after at most `seconds`."""
        return [(self._jobs.pop(job), outcome) for job, outcome in self._outcomes(seconds)]

    @abstractmethod
    def _outcomes(self, seconds: float) -> Sequence[tuple[Any, Outcome]]:
        """Return the entries of `_jobs` that have ended, after at most `seconds`."""

    @abstractmethod
    def stop(self) -> None:
        """Ask the trials to save and end. The scheduler calls this until all have ended."""

    def save(self) -> None:
        """Ask the trials to save and go on, if they run on this machine."""

    def __enter__(self) -> TrialLauncher:
        return self

    def __exit__(self, *error: object) -> None:
        self._jobs.clear()

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run one trial for each list of overrides, for sweepers of Hydra and of others.

        Raises SystemExit if a signal stopped them.
        """
        need = Need.of({}, len(job_overrides), Machine().cores)
        numbered = enumerate(job_overrides, start=initial_job_idx)
        tasks = [Task(number=n, overrides=list(own), folder=Path(), need=need) for n, own in numbered]
        queue = _Returns(tasks)
        with Interruption() as interruption, self:
            run_queue(queue, self, interruption)
        if interruption.requested:
            raise SystemExit(interruption.exit_code)
        return [queue.returns[task.number] for task in tasks]


class _Returns(Queue):
    """The trials of another sweeper, with their outcomes in Hydra's form."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        super().__init__(tasks)
        self.returns: dict[int, JobReturn] = {}

    def ended(self, task: Task, outcome: Outcome) -> None:
        """Keep the outcome of a trial."""
        returned = JobReturn(overrides=task.overrides, status=JobStatus.COMPLETED)
        returned.return_value = outcome
        self.returns[task.number] = returned


class CallingLauncher(TrialLauncher):
    """Runs trials in one call, during which they handle signals: `hydra/launcher=basic` and other plugins."""

    handles_signals = False

    def __init__(self, launcher: Launcher | None) -> None:
        """launcher: a launcher of another package; None: run trials in this process, one after the other."""
        super().__init__()
        self._launcher = launcher
        self.limit = 1 if launcher is None else None

    def start(self, task: Task) -> None:
        """Keep the trial for the next call."""
        self._jobs[task.number] = task

    def _outcomes(self, seconds: float) -> Sequence[tuple[Any, Outcome]]:
        """Run the started trials to their end, however long that takes."""
        if self._launcher is None:
            return [(number, self.run(task)) for number, task in self._jobs.items()]
        overrides = [task.overrides for task in self._jobs.values()]
        returns = self._launcher.launch(overrides, initial_job_idx=next(iter(self._jobs)))
        return list(zip(self._jobs, map(_returned, returns), strict=True))

    def stop(self) -> None:
        """Do nothing, because no trial runs when this is called."""


def _returned(returned: JobReturn) -> Outcome:
    try:
        outcome: Outcome = returned.return_value
    except Exception as error:  # raised by the trial or its process
        return Outcome.failed(f"{type(error).__name__}: {error}")
    return outcome


def check_installed(package: str, launcher: str) -> None:
    """Raise InputError if the extra `package`, which `launcher` needs, is not installed."""
    if importlib.util.find_spec(package) is None:
        raise InputError.not_installed(f"hydra/launcher={launcher}", package, package)
