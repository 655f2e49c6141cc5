"""Launchers, which plan the trials of an experiment in this process and train them in others."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig

from labrl.component import TargetError, load_target
from labrl.errors import FAILED, INTERRUPTED, TERMINATED, InputError, first_line
from labrl.experiment.machine import Need
from labrl.experiment.scheduler import REFUSED, end_failed, read_end
from labrl.run.experiment import TrialRecord

Answer = tuple[int, str | None, bool]
"""What is known of a process that has ended: its exit code; an error that the run folder may lack; and
whether the process was lost, so that another attempt can continue from a checkpoint."""


def lost(error: str, interrupted: bool) -> Answer:
    """Return the answer of a process or machine that has died. interrupted: whether it was asked to end."""
    return TERMINATED if interrupted else FAILED, error, True


class Planning(Protocol):
    """Plans the trials that a launcher starts."""

    def plan(self, trial: TrialRecord, shown: bool) -> dict[str, Any] | None:
        """Return the order that trains the trial; None if it is refused or has already ended."""


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
        self._sent: dict[int, tuple[TrialRecord, Need, Path]] = {}
        """The trials that have been sent to processes with their slots and run folders, by number."""
        self._done: list[tuple[TrialRecord, Need]] = []
        """Trials that ended while they were planned."""

    def check(self) -> None:
        """Raise InputError if the launcher cannot work on this machine."""

    @property
    def running(self) -> list[TrialRecord]:
        """The trials that have started and that `ended` has not returned yet."""
        return [one[0] for one in self._sent.values()] + [trial for trial, _ in self._done]

    def has_room(self, need: Need) -> bool:
        """Return whether another trial that needs `need` can start now."""
        return self.limit is None or len(self.running) < self.limit

    def start(self, trial: TrialRecord, need: Need, shown: bool = False) -> None:
        """Plan a trial, and send it to a process, or to the queue of a cluster. shown: whether a panel shows
        its progress."""
        trial.facts.pop(REFUSED, None)  # of an earlier command
        order = self.planner.plan(trial, shown)
        if order is None:
            self._done.append((trial, need))
        else:
            self._sent[trial.number] = trial, need, Path(order["folder"])
            self.send(trial, need, order)

    def ended(self, seconds: float) -> list[tuple[TrialRecord, Need, bool]]:
        """Return the trials that have ended since the last call, each with its slots and with whether its
        process ended without a result. Waits at most `seconds`."""
        done, self._done = [(*one, False) for one in self._done], []
        for number, (code, error, died) in self.answers(0 if done else seconds) if self._sent else ():
            trial, need, folder = self._sent.pop(number)
            if code in (INTERRUPTED, TERMINATED):
                trial.status, trial.error = "interrupted", error
            elif error is not None:
                end_failed(trial, error, code)
            else:
                read_end(trial, folder)
                if code and trial.status == "finished":
                    end_failed(trial, "some of its files could not be written")
            done.append((trial, need, died))
        return done

    @abstractmethod
    def send(self, trial: TrialRecord, need: Need, order: dict[str, Any]) -> None:
        """Have a process train a planned trial. order: plain data for `labrl.trial.train.carry_out`."""

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
