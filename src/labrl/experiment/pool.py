"""Processes that do one task after the other. One that dies takes its task with it and nothing else."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

import cloudpickle

from labrl.errors import FAILED
from labrl.processes import (
    children_ignore_ctrl_c,
    exit_code_of,
    how_it_ended,
    signals_leave,
    stop_with_the_parent,
)
from labrl.script import Carried

Job = TypeVar("Job")
"""What the caller knows a task by."""
Task = TypeVar("Task")
"""What a process is given, picklable."""
Result = TypeVar("Result")
"""What it answers, picklable."""


@dataclass(frozen=True)
class Lost:
    """Stands for the result of a task that came to none."""

    exit_code: int
    """Of its process, negative for a signal; 1 where only the task failed."""
    error: str | None = None
    """What the task raised, in a line."""

    @property
    def interrupted(self) -> bool:
        """Whether the process was asked to end."""
        return self.exit_code in (exit_code_of(signal.SIGINT), exit_code_of(signal.SIGTERM), -signal.SIGTERM)

    def __str__(self) -> str:
        return self.error or f"its process {how_it_ended(self.exit_code)}"


@dataclass
class _Worker(Generic[Job]):
    process: BaseProcess
    connection: Connection
    environment: Mapping[str, str]
    job: Job | None = None
    told_to_stop: bool = False


class Pool(Generic[Job, Task, Result]):
    """Starts a process where none is idle; one that has done a task has torch loaded for the next.

    with Pool(perform) as pool:
        pool.start("a", task, environment)
        for job, result in pool.ended(seconds=1.0): ...
    """

    def __init__(self, perform: Callable[[Task], Result]) -> None:
        """perform: does a task in the process, picklable by cloudpickle."""
        self._payload = cloudpickle.dumps((Carried(), perform))
        self._workers: list[_Worker[Job]] = []

    def __enter__(self) -> Pool[Job, Task, Result]:
        return self

    def __exit__(self, *error: object) -> None:
        """Let idle processes go; where something went wrong, those that are busy save and end."""
        self.stop()
        for worker in self._workers:
            worker.connection.close()
            worker.process.join()
        self._workers.clear()

    @property
    def jobs(self) -> list[Job]:
        """What runs at the moment."""
        return [worker.job for worker in self._workers if worker.job is not None]

    def start(self, job: Job, task: Task, environment: Mapping[str, str]) -> None:
        """Begin a task in a process with these variables set before it imported anything."""
        worker = self._idle(environment)
        worker.job = job
        with contextlib.suppress(OSError):  # it died meanwhile, as `ended` will find
            worker.connection.send(task)

    def ended(self, seconds: float) -> list[tuple[Job, Result | Lost]]:
        """The jobs that have ended, as soon as there are any, after `seconds` none."""
        busy = [worker for worker in self._workers if worker.job is not None]
        wait([end for worker in busy for end in (worker.connection, worker.process.sentinel)], seconds)
        ended = []
        for worker in busy:
            result = _result(worker)
            if result is not None:
                assert worker.job is not None
                ended.append((worker.job, result))
                worker.job = None
        self._workers = [
            worker for worker in self._workers if worker.job is not None or worker.process.is_alive()
        ]
        return ended

    def stop(self) -> None:
        """Tell all tasks to save and end; idle processes leave."""
        for worker in self._workers:
            if worker.job is None:
                worker.connection.close()
            elif not worker.told_to_stop and worker.process.is_alive():
                worker.told_to_stop = True  # told twice, it would not finish what it has to write
                worker.process.terminate()

    def _idle(self, environment: Mapping[str, str]) -> _Worker[Job]:
        """A process with this environment that has nothing to do; a new one where there is none."""
        idle = [
            worker
            for worker in self._workers
            if worker.job is None and worker.process.is_alive() and not worker.connection.closed
        ]
        for worker in idle:
            if worker.environment == environment:
                return worker
        for worker in idle[:1]:  # torch has seen its GPUs: it cannot be given others
            worker.connection.close()
        # A forked child would inherit the threads of torch in an unusable state.
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        name = f"worker_{len(self._workers)}"
        process = context.Process(target=_serve, args=(there, self._payload, environment), name=name)
        with children_ignore_ctrl_c():
            process.start()
        there.close()  # so that its end is seen
        started: _Worker[Job] = _Worker(process, here, environment)
        self._workers.append(started)
        return started


def _result(worker: _Worker[Any]) -> Any:
    """Of a busy worker; None while it is at work."""
    alive = worker.process.is_alive()
    try:
        if worker.connection.poll():
            return worker.connection.recv()
    except (EOFError, OSError, pickle.UnpicklingError):
        worker.process.join()
        alive = False
    return None if alive else Lost(worker.process.exitcode or 0)


def _serve(connection: Connection, payload: bytes, environment: Mapping[str, str]) -> None:
    """Entry point of a process: do tasks until there are no more, or the one who gives them is gone."""
    os.environ.update(environment)
    stop_with_the_parent()
    perform: Callable[[Any], Any] | None = None
    try:
        with signals_leave():  # until a trial handles them
            while True:
                task = connection.recv()
                try:
                    perform = perform or pickle.loads(payload)[1]
                    result = perform(task)
                except Exception as error:
                    result = Lost(FAILED, f"{type(error).__name__}: {error}")
                sys.stdout.flush()
                connection.send(result)
    except (EOFError, OSError):
        return
    except KeyboardInterrupt:
        sys.exit(exit_code_of(signal.SIGTERM))
