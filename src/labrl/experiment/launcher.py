"""Launchers, which plan the trials of an experiment in this process and train them in others."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from labrl.component import TargetError, load_target
from labrl.errors import InputError, first_line
from labrl.experiment.machine import Need
from labrl.experiment.scheduler import Answer, Outcome, Planned, Planning, Task, outcome_of


@dataclass(frozen=True, kw_only=True)
class LauncherTraits:
    """What a launcher can do."""

    elsewhere: bool = False
    """Whether trials run on other machines, whose cores and GPUs are unknown here."""
    knows_room: bool = True
    """Whether the launcher knows how many trials can run at the same time; False: they wait in a cluster's
    queue."""


class TrialLauncher:
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
            done.append((task, outcome_of(planned.folder, answer)))
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


def check_count(key: str, value: Any, allowed: str = "be at least 1", also: Sequence[int] = ()) -> None:
    """Raise InputError unless a setting of `hydra.launcher` is a whole number >= 1, or one of `also`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or (value < 1 and value not in also):
        raise InputError.value(f"hydra.launcher.{key}", value, allowed, code="range" if whole else "type")


def check_installed(package: str, launcher: str) -> None:
    """Raise InputError if the extra `package`, which `launcher` needs, is not installed."""
    if importlib.util.find_spec(package) is None:
        raise InputError.not_installed(f"hydra/launcher={launcher}", package, package)


def make_launcher(config: DictConfig) -> TrialLauncher:
    """Make the launcher of an experiment. config: its configuration with the node `hydra`.

    Raises InputError if the launcher is not one of labrl or cannot work.
    """
    settings = {str(key): value for key, value in config.hydra.launcher.items()}
    try:
        launcher = load_target(str(settings.pop("_target_", None)))(**settings)
    except (TargetError, TypeError) as error:
        raise InputError.about("hydra.launcher", first_line(error), code="target") from error
    if not isinstance(launcher, TrialLauncher):
        chosen = config.hydra.runtime.choices["hydra/launcher"]
        allowed = "be local, submitit_local, submitit_slurm or ray"
        raise InputError.value("hydra/launcher", chosen, allowed, code="unknown-option")
    launcher.check()
    return launcher
