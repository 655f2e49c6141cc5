"""Processes of this machine that run sessions."""

from __future__ import annotations

import gc
import importlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Any

from labrl.errors import DONE
from labrl.processes import SAVE, SIGNALS, signals_leave, take_signals
from labrl.script import surroundings, take_surroundings

LEAVE_SECONDS = 5.0
"""Seconds that an idle process has to exit before it is killed."""

_PACKAGES = str(Path(__file__).resolve().parents[2])


class Worker:
    """A process that runs sessions, one after another, so that PyTorch is loaded once.

    It ignores Ctrl-C, which a terminal sends to every process. If this process ends, its session saves and
    ends. Processes are never forked from this one, in which threads of PyTorch and ALE would be unusable.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, module: str = "labrl.session") -> None:
        """Start the process, which loads PyTorch.

        environment: variables in addition to those of this process, such as the GPUs that it may use; module:
        its program, which calls `take_orders`.
        """
        self.environment = dict(environment or {})
        self.running = False
        """Whether it carries out an order, so that `ended` has not returned its answer yet."""
        self.died = False
        """Whether the process has ended without an answer."""
        self._line, there = Pipe()
        packages = [_PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
        # The process unblocks signals when it can handle them. Until then, none is lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (*SIGNALS, SAVE))
        try:
            self._process = Popen(
                [sys.executable, "-P", "-m", module, "--orders", str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=DEVNULL,
                env={**os.environ, **self.environment, "PYTHONPATH": os.pathsep.join(packages)},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            there.close()  # so that the end of the process is noticed

    def run(self, folder: Path, environment: Mapping[str, str] | None = None, **order: Any) -> None:
        """Order a session or a trial of the run in `folder`. The one before must have ended.

        environment: further variables; order: plain data for the program.
        """
        order |= {
            "folder": str(folder),
            "environment": {**os.environ, **self.environment, **(environment or {})},
            **surroundings(),
        }
        self.running = True
        with suppress(OSError):  # It has died, which `ended` will report.
            self._line.send_bytes(json.dumps(order).encode())

    def ended(self) -> tuple[int, str | None] | None:
        """Return the exit code and the error, if there is one, of what was ordered; None while it runs.

        The code is negative for a signal that has killed the process.
        """
        try:
            if not self._line.poll():
                return None
            code, error = json.loads(self._line.recv_bytes())
        except (EOFError, OSError):
            code, error, self.died = self._process.wait(), None, True
        self.running = False
        return code, error

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the process if a session runs."""
        if self.running and self.alive:
            self._process.send_signal(number)

    def close(self) -> None:
        """Let the process exit. A session that still runs saves first, however long that takes."""
        self._line.close()
        try:
            self._process.wait(None if self.running else LEAVE_SECONDS)
        except TimeoutExpired:  # because of a user's code
            self._process.kill()
            self._process.wait()


_ready: list[Worker] = []


@contextmanager
def workers_ready(count: int) -> Iterator[None]:
    """Start processes that load PyTorch within this context, while their sessions are being prepared."""
    _ready.extend(Worker() for _ in range(count))
    try:
        yield
    finally:
        while _ready:
            _ready.pop().close()


@contextmanager
def workers_for(count: int) -> Iterator[list[Worker]]:
    """Yield processes for as many sessions, and end them afterwards. After an error, sessions save first."""
    with ExitStack() as ending:
        workers = []
        for _ in range(count):
            workers.append(_ready.pop(0) if _ready else Worker())
            ending.callback(workers[-1].close)
        try:
            yield workers
        except BaseException:
            for worker in workers:
                worker.signal(signal.SIGTERM)
            raise


def wait_for(workers: Collection[Worker], seconds: float) -> None:
    """Wait until one of the orders has ended, at most `seconds`."""
    wait([worker._line for worker in workers if worker.running], seconds)


def take_orders(
    descriptor: int, imports: str, work: Callable[[Mapping[str, Any]], tuple[int, str | None]]
) -> int:
    """Carry out what a `Worker` orders, in its process, until it closes the connection. Return DONE.

    If it does so during an order, because its process has ended, SIGTERM lets this process save and end.
    imports: module to import while the first order is being prepared; work: carries out an order, and returns
    what `Worker.ended` returns.
    """
    os.set_inheritable(descriptor, False)
    line, orders = Connection(descriptor), queue.SimpleQueue[Any]()
    begun, busy = threading.Event(), threading.Event()
    take_signals()

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
        importlib.import_module(imports)
        while (order := orders.get()) is not None:
            begun.set()
            busy.set()
            os.environ.clear()
            os.environ.update(order["environment"])
            take_surroundings(order)
            answer = work(order)
            busy.clear()
            sys.stdout.flush()
            sys.stderr.flush()
            with suppress(OSError):
                line.send_bytes(json.dumps(answer).encode())
    gc.freeze()  # otherwise the interpreter visits all of PyTorch's objects at exit, for 0.3 s
    return DONE
