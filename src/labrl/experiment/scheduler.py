"""Run the trials of a grid or a search: a queue hands them out, an engine runs several at once."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from labrl.errors import INTERRUPTED
from labrl.experiment.machine import Need
from labrl.experiment.task import Outcome, Task
from labrl.session.interruption import Interruption

SECONDS = 0.5
"""Longest time between two checks for a request to stop, seconds."""

RunTask = Callable[[Task], Outcome]
"""Runs one trial in the calling process; picklable by cloudpickle if it is sent to another one."""


class Queue:
    """Hands out the trials of an experiment and records how each ends."""

    def __init__(self, left: Sequence[Task] = ()) -> None:
        """left: the trials to run, in order, as far as they are known."""
        self.left = list(left)

    def next(self, has_room: Callable[[Need], bool]) -> Task | None:
        """Return the next trial; None if none remains, or none for which there is room now."""
        return self.left.pop(0) if self.left and has_room(self.left[0].need) else None

    def ended(self, task: Task, outcome: Outcome) -> None:
        """Record the outcome of a trial."""
        raise NotImplementedError

    def tick(self, running: Collection[Task]) -> None:
        """Do what is due while trials run; called every SECONDS. What it raises ends all trials."""


class RetryingQueue(Queue):
    """A queue of trials that continue from their checkpoints when their processes die."""

    def __init__(self, retries: int, interruption: Interruption, left: Sequence[Task] = ()) -> None:
        """retries: how often a trial continues; interruption: after which none does."""
        super().__init__(left)
        self._retries, self._interruption = retries, interruption

    def ended(self, task: Task, outcome: Outcome) -> None:
        """Let a trial continue where its process has died, or record how it ended."""
        if not outcome.died and outcome.status != "interrupted":
            self.done(task, outcome)
        elif not self._interruption.requested:  # otherwise a resume continues it
            # Imported late: a single run loads this module and must not wait for it.
            from labrl.trial.summary import say

            how = outcome.error or "its process was asked to stop"
            if task.attempts < self._retries:
                say(f"{task.named}: {how}. It continues from its checkpoint")
                self.left.insert(0, replace(task, attempts=task.attempts + 1))
                self.retried(self.left[0])
            else:
                why = f"its process died {task.attempts + 1} times; the last time: {how}"
                self.done(task, Outcome.failed(why))

    def retried(self, task: Task) -> None:
        """Record that a trial continues, the number of times that `task.attempts` says."""

    def done(self, task: Task, outcome: Outcome) -> None:
        """Record the outcome of a trial that does not continue."""
        raise NotImplementedError


class Engine(ABC):
    """Runs trials, in processes of this machine or as jobs of a cluster.

    A context manager. On leaving after an error, it lets running trials save and end.
    """

    handles_signals = True
    """Whether the scheduler handles signals and stops the trials; else trials handle them themselves."""

    def __init__(self, limit: int | None = None) -> None:
        """limit: most trials at once; None: as many as there is room for."""
        self._limit = limit
        self._jobs: dict[Any, Task] = {}
        """Trials that were started and have not ended, by what runs them."""

    @property
    def running(self) -> list[Task]:
        """The trials that were started and have not ended."""
        return list(self._jobs.values())

    def has_room(self, need: Need) -> bool:
        """Return whether another trial with this need can start now."""
        return self._limit is None or len(self.running) < self._limit

    @abstractmethod
    def start(self, task: Task) -> None:
        """Start a trial, or submit it to the cluster's queue."""

    def ended(self, seconds: float) -> list[tuple[Task, Outcome]]:
        """Return the trials that have ended since the last call, after at most `seconds`."""
        return [(self._jobs.pop(job), outcome) for job, outcome in self._outcomes(seconds)]

    @abstractmethod
    def _outcomes(self, seconds: float) -> Sequence[tuple[Any, Outcome]]:
        """Return those of `_jobs` that have ended, after at most `seconds`."""

    @abstractmethod
    def stop(self) -> None:
        """Ask the trials to save and end; called again until they have."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self._jobs.clear()


class Calls(Engine):
    """The engine of launchers that run trials in one call and handle signals: Hydra's own."""

    handles_signals = False

    def __init__(self, run: Callable[[Sequence[Task]], Sequence[Outcome]], limit: int | None) -> None:
        """run: runs trials to their end; limit: trials of one call."""
        super().__init__(limit)
        self._run = run

    def start(self, task: Task) -> None:
        """Keep the trial for the next call."""
        self._jobs[task.number] = task

    def _outcomes(self, seconds: float) -> Sequence[tuple[Any, Outcome]]:
        """Run what was started to its end, however long that takes."""
        return list(zip(self._jobs, self._run(self.running), strict=True))

    def stop(self) -> None:
        """Do nothing: no trial runs when this can be called."""


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
