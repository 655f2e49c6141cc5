"""Workers of this machine that run sessions or trials."""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import signal
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import wait
from typing import Any

from labrl.errors import FAILED
from labrl.processes.script import surroundings, take_surroundings
from labrl.processes.signals import signals_wait_in_children
from labrl.processes.startup import collect_seldom
from labrl.processes.worker import ParentConnection, Worker, WorkerError, worker_context

SESSIONS, TRIALS = "labrl.session.main", "labrl.trial.train"
"""Modules whose function `carry_out` a worker calls: the first to run a session, the second to train a
complete trial."""


class SessionWorker(Worker):
    """A worker that runs sessions or trials, one after another.

    If the parent process ends, the session saves and ends. Workers are forked from a server that has imported
    PyTorch once for all of them and has no threads.
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
        start_server(work)
        super().__init__("a process for sessions", _take_orders, (work,), takes_signals=True)

    def run(self, order: Mapping[str, Any]) -> None:
        """Have the process run a session or a trial. The previous one must have ended.

        order: plain data for `carry_out`: the `folder` of the run, further variables in `environment`, ...
        """
        variables = {**os.environ, **self.environment, **order.get("environment", {})}
        self.running = True
        with suppress(WorkerError):  # It has died, which `ended` will report.
            self.send({**surroundings(), **order, "environment": variables})

    def ended(self) -> tuple[int, str | None] | None:
        """Return the exit code of the session or trial, and its error if there is one; None while there is no
        result.

        The exit code is negative if a signal has killed the process.
        """
        if not self.has_message():
            return None
        self.running = False
        try:
            return self.receive()
        except WorkerError as error:
            if error.__cause__ is not None:
                print(error.__cause__, file=sys.stderr)
            self._process.join()
            self.died = True
            return self._process.exitcode or FAILED, None

    def close(self) -> None:
        """End the process. A session that still runs saves first, however long that takes."""
        if self.running:
            self.signal(signal.SIGTERM)
            self._connection.close()
            self._process.join()
        super().close()


@cache
def start_server(work: str = SESSIONS) -> None:
    """Start the server from which workers are forked, if this system supports forking.

    Calling this early lets it import PyTorch while this process does other things. It imports `work` and the
    modules of labrl that every session needs, but no module of the user.
    """
    from labrl.session import callbacks

    parts = [f"{callbacks.__name__}.{one.name}" for one in pkgutil.iter_modules(callbacks.__path__)]
    context = worker_context([*dict.fromkeys([work, SESSIONS]), *parts])
    if context.get_start_method() == "forkserver":
        with signals_wait_in_children():
            forkserver.ensure_running()


def wait_for(workers: Collection[SessionWorker], seconds: float) -> None:
    """Wait until a session or trial of one of the workers has ended, at most `seconds`."""
    wait([worker._connection for worker in workers if worker.running], seconds)


@contextmanager
def workers_for(count: int) -> Iterator[list[SessionWorker]]:
    """Yield `count` workers, and end them afterwards. After an error, their sessions save first."""
    with ExitStack() as ending:
        workers = []
        for _ in range(count):
            workers.append(SessionWorker())
            ending.callback(workers[-1].close)
        try:
            yield workers
        except BaseException:
            for worker in workers:
                worker.signal(signal.SIGTERM)
            raise


def _take_orders(parent: ParentConnection, work: str) -> None:
    """Run the sessions or trials that a `SessionWorker` orders, until the connection is closed."""
    collect_seldom()
    module = importlib.import_module(work)
    try:
        while True:
            order = parent.receive()
            os.environ.clear()
            os.environ.update(order["environment"])
            take_surroundings(order)
            answer = module.carry_out(order)
            sys.stdout.flush()
            sys.stderr.flush()
            parent.send(answer)
    finally:
        gc.freeze()  # otherwise the interpreter visits all of PyTorch's objects at exit, for 0.3 s
