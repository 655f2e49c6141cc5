"""A helper process of a session, which starts it, ends it and raises its errors."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from labrl.errors import LostProcessError
from labrl.processes.script import Carried
from labrl.processes.signals import (
    how_it_ended,
    ignore_signals,
    signals_wait_in_children,
    when_the_parent_ends,
)
from labrl.run.session_log import warnings_logged

LEAVE_SECONDS = 5.0
"""Seconds that the process has to exit after training has ended, before it is killed."""

_GONE = (EOFError, OSError, pickle.UnpicklingError)


class CompanionError(LostProcessError):
    """A helper process failed, died or hangs. The cause is its traceback, if it sent one."""


class RemoteError(Exception):
    """The traceback of another process, as text."""


class TrainingEndedError(Exception):
    """Raised in a helper process when training has ended."""


class Failure(NamedTuple):
    """The last message of a process that failed."""

    message: str
    traceback: str


class Companion:
    """The session's handle of a helper process. Messages can be any object that can be pickled.

    The process ignores the signals that stop a run, because the session saves first and then ends it. On
    SIGUSR2 the process writes its stack to the log.
    """

    def __init__(self, name: str, work: Callable[..., None], arguments: tuple[Any, ...], log: Path) -> None:
        """Start a process that runs `work(line, *arguments)`, where `line` is its `Line` to the session.

        name: name of the process in messages; log: the session's log, which also receives its warnings.
        """
        self.name = name
        self._log = log
        # A forked child would inherit the threads of torch in an unusable state.
        context = multiprocessing.get_context("spawn")
        self._line, there = context.Pipe()
        self._process = context.Process(
            target=_main, args=(Carried(), there, log, work, arguments), name=name
        )
        with signals_wait_in_children():
            self._process.start()
        there.close()  # so that this side notices when the process ends

    def send(self, message: Any) -> None:
        """Send the process a message. Raises CompanionError if it has ended."""
        try:
            _send(self._line, message)
            return
        except OSError:
            pass
        raise self._ended()

    def has_message(self, seconds: float = 0.0) -> bool:
        """Wait up to `seconds` for a message or the end of the process. Return whether either has come."""
        return self._line.poll(seconds)

    def receive(self) -> Any:
        """Wait for the next message of the process. Raises CompanionError if it failed or has ended."""
        message: Any = None
        with contextlib.suppress(*_GONE):
            message = self._line.recv()
            if not isinstance(message, Failure):
                return message
        raise self._error(message) if isinstance(message, Failure) else self._ended()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def signal(self, number: int) -> None:
        """Send the process a signal, if it is still running."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def close(self) -> None:
        """End the process. Calling it again has no effect."""
        self._line.close()
        self._process.join(LEAVE_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        if self._log.exists() and not self._log.stat().st_size:
            self._log.unlink()

    def _ended(self) -> CompanionError:
        with contextlib.suppress(*_GONE):  # its last message may still be in the pipe
            while self._line.poll():
                message = self._line.recv()
                if isinstance(message, Failure):
                    return self._error(message)
        self._process.join(LEAVE_SECONDS)
        code = self._process.exitcode
        how = "no longer answers" if code is None else how_it_ended(code)
        return CompanionError(f"{self.name} {how}")

    def _error(self, failure: Failure) -> CompanionError:
        error = CompanionError(f"{self.name} failed: {failure.message}")
        error.__cause__ = RemoteError(failure.traceback)
        return error


class Line:
    """The connection of a helper process to its session.

    Its methods raise TrainingEndedError once the session has ended.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._next_look = 0.0

    def send(self, message: Any) -> None:
        """Send the session a message. May be called from any thread."""
        try:
            with self._sending:
                _send(self._connection, message)
        except OSError:
            raise TrainingEndedError from None

    def receive(self) -> Any:
        """Wait for the session's next message."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise TrainingEndedError from None

    def has_message(self) -> bool:
        """Return whether the session has sent a message or has ended."""
        try:
            return self._connection.poll()
        except OSError:
            raise TrainingEndedError from None

    def stopped(self) -> bool:
        """Return False, or raise if the session has ended. Call it often while no message is expected."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + 0.1
            if self.has_message():
                raise TrainingEndedError
        return False


def _send(connection: Connection, message: Any) -> None:
    """Send a message by value.

    `Connection.send` would put every tensor into shared memory and open a socket for it, which not every
    machine has room for.
    """
    connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def _main(
    carried: Carried,
    connection: Connection,
    log: Path,
    work: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    """Run the helper process."""
    ignore_signals()
    # Ends this process however the session's process ends, and whatever this one is doing.
    when_the_parent_ends(_leave)
    try:
        file: Any = log.open("a", encoding="utf-8")
    except OSError:
        file = sys.stderr
    faulthandler.register(signal.SIGUSR2, file, chain=False)  # shows where it hangs
    line = Line(connection)
    try:
        with warnings_logged(log):
            work(line, *arguments)
    except TrainingEndedError:
        pass
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
        with contextlib.suppress(TrainingEndedError):
            line.send(Failure(message, traceback.format_exc()))


def _leave() -> None:
    time.sleep(1.0)  # the process may already be exiting
    os._exit(1)
