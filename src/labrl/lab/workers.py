"""Processes that run the trials of an experiment, each one after the other.

One that dies takes its trial with it and nothing else. A process that has run a trial has torch loaded
for the next one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType, TracebackType

import cloudpickle

from labrl.lab.labelled import label_output
from labrl.lab.outcome import FAILED, Outcome
from labrl.lab.shares import Machine, Need, Share
from labrl.session.interruption import (
    Interruption,
    children_ignore_ctrl_c,
    how_it_ended,
    stop_with_the_parent,
)

RunTrial = Callable[[int, list[str]], Outcome]
"""Runs one trial in the calling process, given its number and the words that compose it."""


@dataclass(frozen=True)
class Order:
    """A trial to be run."""

    number: int
    """Of the trial in its experiment."""
    words: list[str]
    """All that compose it, those for Hydra included."""
    need: Need


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    environment: dict[str, str]
    order: Order | None = None
    share: Share | None = None
    told_to_stop: bool = field(default=False, compare=False)


class Workers:
    """Starts trials as long as cores and GPUs are free, and says which have ended.

    with Workers(run_trial, Machine()) as workers:
        workers.start(order)          # False: nothing is free at present
        for order, outcome in workers.wait(seconds=1.0): ...
    """

    def __init__(self, run_trial: RunTrial, machine: Machine, limit: int | None = None) -> None:
        """run_trial: what a worker does with a trial, picklable by cloudpickle; limit: most trials at once,
        None for as many as the machine carries."""
        self._payload = cloudpickle.dumps(run_trial)
        self._machine = machine
        self._limit = limit
        self._workers: list[_Worker] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let idle workers go; where something went wrong, those that are busy save and end."""
        self.stop()
        for worker in self._workers:
            worker.process.join()
        self._workers.clear()

    @property
    def busy(self) -> int:
        """How many trials are running."""
        return sum(worker.order is not None for worker in self._workers)

    def start(self, order: Order) -> bool:
        """Run a trial where there is room for it. Returns whether there is."""
        if self._limit is not None and self.busy >= self._limit:
            return False
        share = self._machine.take(order.need)
        if share is None:
            return False
        worker = self._idle(share.environment)
        worker.order, worker.share = order, share
        with contextlib.suppress(OSError):  # it died meanwhile, as `wait` will find
            worker.connection.send((order.number, order.words))
        return True

    def wait(self, seconds: float) -> list[tuple[Order, Outcome]]:
        """The trials that have ended, as soon as there are any, after `seconds` none."""
        busy = [worker for worker in self._workers if worker.order is not None]
        wait(
            [*(worker.connection for worker in busy), *(worker.process.sentinel for worker in busy)], seconds
        )
        ended = []
        for worker in busy:
            outcome = _outcome(worker)
            if outcome is not None:
                assert worker.order is not None
                assert worker.share is not None
                ended.append((worker.order, outcome))
                self._machine.give_back(worker.share)
                worker.order = worker.share = None
        for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
            if worker.order is None:
                self._workers.remove(worker)
        return ended

    def stop(self) -> None:
        """Tell all trials to save and end; idle workers leave."""
        for worker in self._workers:
            if worker.order is None:
                worker.connection.close()
            elif not worker.told_to_stop and worker.process.is_alive():
                worker.told_to_stop = True
                worker.process.terminate()

    def _idle(self, environment: dict[str, str]) -> _Worker:
        """A worker in `environment` that has nothing to do; a new one where there is none."""
        for worker in [worker for worker in self._workers if worker.order is None]:
            if worker.environment == environment and worker.process.is_alive():
                return worker
            # torch has seen its GPUs: it cannot be given others
            worker.connection.close()
            self._workers.remove(worker)
        # A forked child would inherit the threads of torch in an unusable state.
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(
            target=serve, args=(there, self._payload, environment), name=f"worker_{len(self._workers)}"
        )
        with children_ignore_ctrl_c():
            process.start()
        there.close()  # so that its end is seen
        worker = _Worker(process, here, environment)
        self._workers.append(worker)
        return worker


def run_all(
    workers: Workers,
    orders: Iterable[Order],
    on_start: Callable[[int], None],
    on_end: Callable[[int, Outcome], None],
) -> int | None:
    """Run all trials in order, as many at once as fit, telling of each start and end by its number.

    Returns None, or the exit code where a signal ended it: then running trials have saved and the rest
    has not begun.
    """
    waiting = deque(orders)
    with Interruption() as interruption, workers:
        while workers.busy or (waiting and not interruption.requested):
            if interruption.requested:
                workers.stop()
            else:
                while waiting and workers.start(waiting[0]):
                    on_start(waiting.popleft().number)
            for order, outcome in workers.wait(seconds=0.25):
                on_end(order.number, outcome)
    return interruption.exit_code if interruption.requested else None


def _outcome(worker: _Worker) -> Outcome | None:
    """Of the trial of a busy worker; None while it runs."""
    alive = worker.process.is_alive()
    try:
        if worker.connection.poll():
            return worker.connection.recv()
    except (EOFError, OSError, pickle.UnpicklingError):
        worker.process.join()
        alive = False
    if alive:
        return None
    code = worker.process.exitcode or 0
    if worker.told_to_stop:
        return Outcome(status="interrupted", exit_code=143)
    return Outcome(status="failed", exit_code=FAILED, error=f"its process {how_it_ended(code)}")


def serve(connection: Connection, payload: bytes, environment: Mapping[str, str]) -> None:
    """Entry point of a worker: run trials until there are no more, or the one who gives them is gone."""
    os.environ.update(environment)
    signal.signal(signal.SIGTERM, _raise_interruption)  # while no session listens
    stop_with_the_parent()
    label = label_output()
    run_trial: RunTrial | None = None
    while True:
        try:
            number, words = connection.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        label(f"[{number}] ")
        try:
            run_trial = run_trial or pickle.loads(payload)
            outcome = run_trial(number, words)
        except (KeyboardInterrupt, SystemExit):
            outcome = Outcome(status="interrupted", exit_code=143)
        except Exception as error:
            outcome = Outcome(status="failed", exit_code=FAILED, error=f"{type(error).__name__}: {error}")
        sys.stdout.flush()
        try:
            connection.send(outcome)
        except OSError:
            return


def _raise_interruption(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
