"""Run the trials of a grid or a search: a queue hands them out, an engine runs several at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Protocol

from labrl.errors import INTERRUPTED
from labrl.experiment.machine import Need
from labrl.experiment.task import Outcome, Task
from labrl.session.interruption import Interruption

SECONDS = 0.5
"""Longest time between two checks for a request to stop, seconds."""

RunTask = Callable[[Task], Outcome]
"""Runs one trial in the calling process; picklable by cloudpickle if it is sent to another one."""


class Queue(Protocol):
    """Hands out the trials of an experiment and records how each ends."""

    def next(self, has_room: Callable[[Need], bool]) -> Task | None:
        """Return the next trial; None if none remains, or none for which there is room now."""

    def ended(self, task: Task, outcome: Outcome) -> None:
        """Record the outcome of a trial."""

    def tick(self, running: Collection[Task]) -> None:
        """Do what is due while trials run; called every SECONDS. What it raises ends all trials."""


class Engine(Protocol):
    """Runs trials, in processes of this machine or as jobs of a cluster.

    A context manager. On leaving after an error, it lets running trials save and end.
    """

    handles_signals: bool
    """Whether the scheduler handles signals and stops the trials; else trials handle them themselves."""

    @property
    def running(self) -> Collection[Task]:
        """The trials that were started and have not ended."""

    def has_room(self, need: Need) -> bool:
        """Return whether another trial with this need can start now."""

    def start(self, task: Task) -> None:
        """Start a trial, or submit it to the cluster's queue."""

    def ended(self, seconds: float) -> Sequence[tuple[Task, Outcome]]:
        """Return the trials that have ended since the last call, after at most `seconds`."""

    def stop(self) -> None:
        """Ask the trials to save and end; called again until they have."""

    def __enter__(self) -> Engine: ...

    def __exit__(self, *error: object) -> None: ...


@contextmanager
def working(engine: Engine, interruption: Interruption) -> Iterator[None]:
    """Enter the engine, and the interruption if the scheduler handles signals."""
    with engine, interruption if engine.handles_signals else nullcontext():
        yield


def run_queue(queue: Queue, engine: Engine, interruption: Interruption) -> None:
    """Run trials as there is room for them until the queue is empty and the last one has ended.

    After a signal no further trial begins, and those that run save and end.
    """
    while True:
        while not interruption.requested and (task := queue.next(engine.has_room)) is not None:
            engine.start(task)
        if not engine.running:
            return
        for task, outcome in engine.ended(SECONDS):
            if not engine.handles_signals and outcome.status == "interrupted":
                interruption.stop(signal.SIGINT if outcome.exit_code == INTERRUPTED else signal.SIGTERM)
            queue.ended(task, outcome)
        queue.tick(engine.running)
        if interruption.requested:
            engine.stop()


class TasksLeft:
    """A queue of trials that are all known from the beginning, in order."""

    def __init__(self, left: Sequence[Task]) -> None:
        self.left = list(left)

    def next(self, has_room: Callable[[Need], bool]) -> Task | None:
        """Return the first of the trials that are left, if there is room for it."""
        return self.left.pop(0) if self.left and has_room(self.left[0].need) else None

    def tick(self, running: Collection[Task]) -> None:
        """Do nothing."""


class Calls:
    """The engine of launchers that run trials in one call and handle signals: Hydra's own."""

    handles_signals = False

    def __init__(self, run: Callable[[Sequence[Task]], Sequence[Outcome]], all_at_once: bool) -> None:
        """run: runs trials to their end; all_at_once: whether it takes all trials in one call, or one
        each."""
        self._run, self._all_at_once = run, all_at_once
        self.running: list[Task] = []

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *error: object) -> None:
        self.running.clear()

    def has_room(self, need: Need) -> bool:
        """Return whether the next call takes another trial."""
        return self._all_at_once or not self.running

    def start(self, task: Task) -> None:
        """Keep the trial for the next call."""
        self.running.append(task)

    def ended(self, seconds: float) -> Sequence[tuple[Task, Outcome]]:
        """Run what was started to its end, however long that takes."""
        tasks, self.running = self.running, []
        return list(zip(tasks, self._run(tasks), strict=True))

    def stop(self) -> None:
        """Do nothing: no trial runs when this can be called."""
