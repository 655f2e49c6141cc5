"""Worker processes of a search: each gets a next task the moment it is free."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

from labrl.lab.search.worker import Outcome, Task
from labrl.lab.search.worker import main as worker_main
from labrl.lab.shares import Share
from labrl.session.interruption import children_ignore_ctrl_c

Job = TypeVar("Job")
"""What the caller knows a task by."""


@dataclass
class _Worker(Generic[Job]):
    process: BaseProcess
    tasks: Connection
    share: Share
    job: Job | None = None


class Pool(Generic[Job]):
    """One process for each share of the machine; one that dies is replaced for the next task."""

    def __init__(self, shares: Sequence[Share]) -> None:
        self._free = list(shares)
        # A forked child would inherit threads in an unusable state.
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker[Job]] = []

    def __enter__(self) -> Pool[Job]:
        return self

    def __exit__(self, *error: object) -> None:
        """Those that are busy save and end; the others have nothing to lose."""
        self.terminate()
        for worker in self._workers:
            worker.tasks.close()
            worker.process.join()

    @property
    def jobs(self) -> list[Job]:
        """What runs at the moment."""
        return [worker.job for worker in self._workers if worker.job is not None]

    @property
    def has_room(self) -> bool:
        """Whether a task given now begins now."""
        return bool(self._free) or any(worker.job is None for worker in self._workers)

    def give(self, job: Job, task: Task) -> None:
        """Let a free process begin; there has to be room."""
        worker = next((worker for worker in self._workers if worker.job is None), None) or self._start()
        worker.job = job
        worker.tasks.send(task)

    def ended(self, seconds: float) -> Iterator[tuple[Job, Outcome | int]]:
        """Jobs that end within `seconds`, with their outcome, or the exit code of a process that died."""
        waiting = {worker.tasks: worker for worker in self._workers}
        for ready in wait(list(waiting), timeout=seconds):
            assert isinstance(ready, Connection)
            worker = waiting[ready]
            job, ended = worker.job, self._received(worker)
            worker.job = None
            if job is not None:
                yield job, ended

    def terminate(self) -> None:
        """Ask every process to save and end."""
        for worker in self._workers:
            if worker.process.is_alive():
                worker.process.terminate()

    def _start(self) -> _Worker[Job]:
        here, there = self._context.Pipe()
        share = self._free.pop(0)
        process = self._context.Process(
            target=worker_main, args=(there, share.environment), name="search worker"
        )
        with children_ignore_ctrl_c():
            process.start()
        there.close()  # so that the process's end is seen here
        worker: _Worker[Job] = _Worker(process, here, share)
        self._workers.append(worker)
        return worker

    def _received(self, worker: _Worker[Job]) -> Outcome | int:
        try:
            return worker.tasks.recv()
        except (EOFError, OSError):
            worker.process.join()
            self._workers.remove(worker)
            self._free.append(worker.share)
            return worker.process.exitcode or 0
