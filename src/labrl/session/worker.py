"""Processes of this machine that run sessions."""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import pkgutil
import queue
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from multiprocessing import Pipe, forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any

from labrl.errors import DONE, LostProcessError
from labrl.processes.script import surroundings, take_surroundings
from labrl.processes.signals import (
    find_place_for_sockets,
    signals_leave,
    signals_wait_in_children,
    take_signals,
)
from labrl.processes.startup import collect_seldom

LEAVE_SECONDS = 5.0
"""Seconds that an idle process has to exit before it is killed."""

SESSIONS, TRIALS = "labrl.session.main", "labrl.trial.train"
"""Modules whose function `carry_out` a worker calls: the first to run a session, the second to train a
complete trial."""


class Worker:
    """A process that runs sessions or trials, one after another.

    It ignores Ctrl-C, which a terminal sends to every process. If the parent process ends, the session of the
    worker saves and ends. Workers are forked from a server that has imported PyTorch once for all of them and
    has no threads.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, work: str = SESSIONS) -> None:
        """Start the process.

        environment: variables in addition to those of this process, such as the GPUs that it may use; work:
        SESSIONS or TRIALS.
        """
        self.environment = dict(environment or {})
        self.running = False
        """Whether the process has an order whose result `ended` has not returned yet."""
        self.died = False
        """Whether the process has ended without a result."""
        self._line, there = Pipe()
        self._process = start_server(work).Process(target=_take_orders, args=(there, work))
        try:
            with signals_wait_in_children():
                self._process.start()
        except (EOFError, OSError) as error:
            raise LostProcessError(
                "the process from which sessions are forked was killed, perhaps because memory ran out"
            ) from error
        there.close()  # so that the end of the process is noticed

    def run(self, order: Mapping[str, Any]) -> None:
        """Have the process run a session or a trial. The previous one must have ended.

        order: plain data for `carry_out`: the `folder` of the run, further variables in `environment`, ...
        """
        variables = {**os.environ, **self.environment, **order.get("environment", {})}
        self.running = True
        with suppress(OSError):  # It has died, which `ended` will report.
            self._line.send_bytes(json.dumps({**surroundings(), **order, "environment": variables}).encode())

    def ended(self) -> tuple[int, str | None] | None:
        """Return the exit code of the session or trial, and its error if there is one; None while there is no
        result.

        The exit code is negative if a signal has killed the process.
        """
        try:
            if not self._line.poll():
                return None
            code, error = json.loads(self._line.recv_bytes())
        except (EOFError, OSError):
            self._process.join()
            code, error, self.died = self._process.exitcode or DONE, None, True
        self.running = False
        return code, error

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.is_alive()

    def signal(self, number: int) -> None:
        """Send a signal to the process if a session runs."""
        if self.running and self._process.pid is not None and self.alive:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def close(self) -> None:
        """Have the process exit. A session that still runs saves first, however long that takes."""
        self._line.close()
        self._process.join(None if self.running else LEAVE_SECONDS)
        if self.alive:  # because of a user's code
            self._process.kill()
            self._process.join()


@cache
def start_server(work: str = SESSIONS) -> ForkServerContext | SpawnContext:
    """Start the server from which workers are forked, if this system supports forking, and return the
    workers' multiprocessing context.

    Calling this early lets it import PyTorch while this process does other things. It imports `work` and the
    modules of labrl that every session needs, but no module of the user.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods() or not find_place_for_sockets():
        return multiprocessing.get_context("spawn")
    from labrl.session import callbacks

    parts = [f"{callbacks.__name__}.{one.name}" for one in pkgutil.iter_modules(callbacks.__path__)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work, SESSIONS, *parts] if work == TRIALS else [work, *parts])
    with signals_wait_in_children():
        forkserver.ensure_running()
    return context


@contextmanager
def workers_for(count: int) -> Iterator[list[Worker]]:
    """Yield `count` workers, and end them afterwards. After an error, their sessions save first."""
    with ExitStack() as ending:
        workers = []
        for _ in range(count):
            workers.append(Worker())
            ending.callback(workers[-1].close)
        try:
            yield workers
        except BaseException:
            for worker in workers:
                worker.signal(signal.SIGTERM)
            raise


def wait_for(workers: Collection[Worker], seconds: float) -> None:
    """Wait until a session or trial of one of the workers has ended, at most `seconds`."""
    wait([worker._line for worker in workers if worker.running], seconds)


def _take_orders(line: Connection, work: str) -> None:
    """Run, in the process of a `Worker`, the sessions or trials that the `Worker` orders, until the
    connection is closed.

    If the connection is closed during a session, because the parent process has ended, this process sends
    itself SIGTERM, so that the session saves and ends.
    """
    orders = queue.SimpleQueue[Any]()
    begun, busy = threading.Event(), threading.Event()
    take_signals()
    collect_seldom()

    def read() -> None:
        with suppress(EOFError, OSError):
            while True:
                orders.put(json.loads(line.recv_bytes()))
        if not begun.is_set():
            os._exit(DONE)
        orders.put(None)
        if busy.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, name="orders", daemon=True).start()
    with signals_leave():  # while no session handles them
        module = importlib.import_module(work)
        while (order := orders.get()) is not None:
            begun.set()
            busy.set()
            os.environ.clear()
            os.environ.update(order["environment"])
            take_surroundings(order)
            answer = module.carry_out(order)
            busy.clear()
            sys.stdout.flush()
            sys.stderr.flush()
            with suppress(OSError):
                line.send_bytes(json.dumps(answer).encode())
    gc.freeze()  # otherwise the interpreter visits all of PyTorch's objects at exit, for 0.3 s
