"""Launchers: Hydra plugins that plan the trials of an experiment in this process and train them in others."""

from __future__ import annotations

import importlib.util
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from labrl.errors import InputError
from labrl.experiment.machine import Machine, Need
from labrl.experiment.scheduler import Answer, Outcome, Planned, Planning, Queue, Task, run_queue
from labrl.session.interruption import Interruption


@dataclass(frozen=True, kw_only=True)
class LauncherTraits:
    """What a launcher can do."""

    apart: bool = True
    """Whether the trials are trained in other processes, which the scheduler stops after a signal; False: the
    trials themselves receive signals."""
    elsewhere: bool = False
    """Whether trials run on other machines, whose cores and GPUs are unknown here."""
    knows_room: bool = True
    """Whether the launcher knows how many trials can run at the same time; False: they wait in a cluster's
    queue."""


HYDRAS_BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
"""Hydra's default launcher, which labrl replaces with `InThisProcess`."""


class TrialLauncher(Launcher):
    """Starts the processes that train planned trials, and reports how each trial has ended.

    A launcher is a context manager. If it is left after an error, running trials save and end.
    """

    traits = LauncherTraits()
    limit: int | None = None
    """Maximum number of trials that run at the same time; None: as many as there is room for."""
    cores: int | None = None
    """Number of cores of this machine to use; None: all."""
    waits_for_room = False
    """Whether no trial is submitted before there is room for it, as in a search, whose trials depend on
    earlier results."""
    planner: Planning
    """Object that writes the folder of each trial."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[Task, Planned]] = {}
        """The trials that have been sent to processes, by number."""
        self._done: list[tuple[Task, Outcome]] = []
        """Trials that ended while they were planned."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Store Hydra's objects. Raises InputError if the launcher cannot work on this machine."""
        # Imported late, because Hydra imports all launchers at every start.
        from labrl.experiment.job import Planner

        self.check()
        self.planner = Planner(hydra_context, config, task_function, self.traits)

    def check(self) -> None:
        """Raise InputError if the launcher cannot work on this machine."""

    @property
    def running(self) -> list[Task]:
        """The trials that have started and that `ended` has not returned yet."""
        return [task for task, _ in (*self._sent.values(), *self._done)]

    def has_room(self, need: Need) -> bool:
        """Return whether another trial that needs `need` can start now."""
        return self.limit is None or len(self.running) < self.limit

    def start(self, task: Task) -> None:
        """Plan a trial, and send it to a process, or to the queue of a cluster."""
        planned = self.planner.plan(task)
        if isinstance(planned, Outcome):
            self._done.append((task, planned))
        else:
            self._sent[task.number] = task, planned
            self.send(task, planned)

    def ended(self, seconds: float) -> list[tuple[Task, Outcome]]:
        """Return the trials that have ended since the last call. Waits at most `seconds`."""
        done, self._done = self._done, []
        for number, answer in self.answers(0 if done else seconds) if self._sent else ():
            task, planned = self._sent.pop(number)
            done.append((task, self.planner.conclude(planned, answer)))
        return done

    @abstractmethod
    def send(self, task: Task, planned: Planned) -> None:
        """Have a process train a planned trial."""

    @abstractmethod
    def answers(self, seconds: float) -> Sequence[tuple[int, Answer]]:
        """Return the number and the answer of each sent trial that has ended. Waits at most `seconds`."""

    @abstractmethod
    def stop(self) -> None:
        """Ask the trials to save and end. The scheduler calls this repeatedly until all trials have ended."""

    def save(self) -> None:
        """Ask the trials to save and continue, if they run on this machine."""

    def __enter__(self) -> TrialLauncher:
        return self

    def __exit__(self, *error: object) -> None:  # nothing to end
        pass

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run one trial for each list of overrides, for sweepers of Hydra and of others.

        Raises SystemExit if a signal stopped the trials.
        """
        need = Need.of({}, len(job_overrides), Machine().cores)
        numbered = enumerate(job_overrides, start=initial_job_idx)
        tasks = [Task(number=n, overrides=list(own), folder=Path(), need=need) for n, own in numbered]
        queue = Queue(tasks)
        with Interruption() as interruption, self:
            run_queue(queue, self, interruption)
        if interruption.requested:
            raise SystemExit(interruption.exit_code)
        returned = []
        for task in tasks:
            returned.append(JobReturn(overrides=task.overrides, status=JobStatus.COMPLETED))
            returned[-1].return_value = queue.outcomes[task.number]
        return returned


class InThisProcess(TrialLauncher):
    """`hydra/launcher=basic`: train one trial after another in this process, which handles signals."""

    traits = LauncherTraits(apart=False)
    limit = 1

    def send(self, task: Task, planned: Planned) -> None:
        """Do nothing: `answers` trains the trial."""

    def answers(self, seconds: float) -> Sequence[tuple[int, Answer]]:
        """Train the trial to its end, however long that takes."""
        from labrl.experiment.job import changed_environment
        from labrl.trial.start import carry_out

        before = os.getcwd()
        (number, (_, planned)), *_ = self._sent.items()
        try:
            with changed_environment(planned.order["environment"]):
                return [(number, carry_out({**planned.order, "label": ""}))]
        finally:
            os.chdir(before)

    def stop(self) -> None:
        """Do nothing, because no trial is running when this is called."""


def check_count(key: str, value: Any, allowed: str = "be at least 1", also: Sequence[int] = ()) -> None:
    """Raise InputError unless a setting of `hydra.launcher` is a whole number >= 1, or one of `also`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or (value < 1 and value not in also):
        raise InputError.value(f"hydra.launcher.{key}", value, allowed, code="range" if whole else "type")


def check_installed(package: str, launcher: str) -> None:
    """Raise InputError if the extra `package`, which `launcher` needs, is not installed."""
    if importlib.util.find_spec(package) is None:
        raise InputError.not_installed(f"hydra/launcher={launcher}", package, package)


def make_launcher(context: HydraContext, task: TaskFunction, config: DictConfig) -> TrialLauncher:
    """Make the launcher of an experiment. Raises InputError if it is not one of labrl or cannot work."""
    known: Any = {"hydra_context": context, "task_function": task, "config": config}
    launcher: Any
    if config.hydra.launcher._target_ == HYDRAS_BASIC:
        launcher = InThisProcess()
        launcher.setup(**known)
    else:
        launcher = Plugins.instance().instantiate_launcher(**known)
    if not isinstance(launcher, TrialLauncher):
        chosen = config.hydra.runtime.choices["hydra/launcher"]
        allowed = "be local, submitit_local, submitit_slurm, ray or basic"
        raise InputError.value("hydra/launcher", chosen, allowed, code="unknown-option")
    return launcher
