"""Processes of this machine that run sessions."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired

from labrl.processes import SAVE, SIGNALS
from labrl.script import registering_modules
from labrl.secrets import remembered

LEAVE_SECONDS = 5.0
"""Seconds that an idle process has to exit before it is killed."""

_PACKAGES = str(Path(__file__).resolve().parents[2])


class Worker:
    """A process that runs sessions, one after another, so that PyTorch is loaded once.

    It ignores Ctrl-C, which a terminal sends to every process. If this process ends, its session saves and
    ends. Processes are never forked from this one, in which threads of PyTorch and ALE would be unusable.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the process, which loads PyTorch.

        environment: variables in addition to those of this process, such as the GPUs that it may use.
        """
        self.environment = dict(environment or {})
        self.running = False
        """Whether a session runs, so that `ended` has not returned its exit code yet."""
        self._line, there = Pipe()
        # The process unblocks signals when it can handle them. Until then, none is lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (*SIGNALS, SAVE))
        try:
            self._process = Popen(
                [sys.executable, "-P", "-m", "labrl.session", "--orders", str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=DEVNULL,
                env={**os.environ, **self.environment, "PYTHONPATH": _PACKAGES},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            there.close()  # so that the end of the process is noticed

    def run(self, folder: Path, index: int) -> None:
        """Run session number `index` of the run in `folder`. The session before must have ended."""
        order = {
            "folder": str(folder),
            "index": index,
            "environment": {**os.environ, **self.environment},
            "secrets": dict(remembered),
            "path": sys.path,
            "modules": registering_modules(),
        }
        self.running = True
        with suppress(OSError):  # It has died, which `ended` will report.
            self._line.send_bytes(json.dumps(order).encode())

    def ended(self) -> int | None:
        """Return the exit code of the session if it has ended, negative for a signal that killed the process;
        None while it runs."""
        try:
            if not self._line.poll():
                return None
            code: int = json.loads(self._line.recv_bytes())
        except (EOFError, OSError):
            code = self._process.wait()
        self.running = False
        return code

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
    """Wait until one of the sessions has ended, at most `seconds`."""
    wait([worker._line for worker in workers if worker.running], seconds)
