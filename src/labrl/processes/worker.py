"""Worker processes: they run sessions and trials, step environments, act ahead of a learner, or evaluate."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from labrl.errors import FAILED, LostProcessError, described
from labrl.processes.script import surroundings, take_surroundings
from labrl.processes.signals import (
    how_it_ended,
    ignore_signals,
    signals_wait_in_children,
    take_signals,
    when_the_parent_ends,
)

LEAVE_SECONDS = 5.0
"""Seconds between closing the connection to idle workers and killing those that have not exited."""

LONGEST_FOLDER = 107 - len("/pymp-12345678/listener-12345678")
"""Length in bytes of the longest path of a folder in which Python can make its sockets."""

_GONE = (EOFError, OSError, pickle.UnpicklingError)


class WorkerError(LostProcessError):
    """A worker failed, died or hangs. The cause is its traceback, if it sent one."""


class RemoteError(Exception):
    """The traceback of another process, as text."""


class ParentEndedError(Exception):
    """Raised in a worker when its parent process has closed the connection or has ended."""


class Failure(NamedTuple):
    """The last message from a process that failed."""

    message: str
    traceback: str


def worker_context(preload: Sequence[str]) -> Any:
    """Return the multiprocessing context of workers.

    A child forked from this process would inherit the threads of torch in an unusable state, and locks that
    no thread releases. The server, from which it is forked instead, imports the modules in `preload` once. It
    has a socket in the folder of temporary files, whose path may be too long for one.
    """
    too_long = len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER
    if too_long or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    return context


class Worker:
    """The handle of a worker process. Messages can be any object that can be pickled.

    A worker ignores the signals that stop a run, because the session first saves its state and then ends the
    worker; on SIGUSR2, a worker with a log writes its stack to the log. A worker that `takes_signals` ignores
    only Ctrl-C, which a terminal sends to every process, and SIGUSR2, until its work handles them; if its
    parent process ends, it receives SIGTERM.
    """

    def __init__(
        self,
        name: str,
        work: Callable[..., None],
        arguments: tuple[Any, ...],
        log: Path | None = None,
        within: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
        takes_signals: bool = False,
    ) -> None:
        """Start a process that runs `work(parent, *arguments)`, where `parent` is its `ParentConnection`.

        name: name of the process in messages; log: file for the process's stack; within: function that makes
        the context manager in which `work` runs. Raises LostProcessError if the process cannot be started.
        """
        self.name = name
        self._log = log
        context = worker_context([work.__module__])
        self._connection, there = context.Pipe()
        given = (dict(os.environ), surroundings(), there, log, within, takes_signals, work, arguments)
        self._process = context.Process(target=_main, args=given, name=name)
        try:
            with signals_wait_in_children():
                self._process.start()
        except (EOFError, OSError) as error:
            raise LostProcessError(f"{name} could not be started: {error}") from error
        there.close()  # so that this side notices when the process ends

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.is_alive()

    def send(self, message: Any) -> None:
        """Send the process a message. Raises WorkerError if it has ended."""
        try:
            _send(self._connection, message)
            return
        except OSError:
            pass
        raise self._ended()

    def has_message(self, seconds: float = 0.0) -> bool:
        """Wait up to `seconds` for a message or the end of the process. Return whether one of them came."""
        return self._connection.poll(seconds)

    def receive(self) -> Any:
        """Wait for the next message of the process. Raises WorkerError if it failed or has ended."""
        message: Any = None
        with contextlib.suppress(*_GONE):
            message = self._connection.recv()
            if not isinstance(message, Failure):
                return message
        raise self._error(message) if isinstance(message, Failure) else self._ended()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def signal(self, number: int) -> None:
        """Send the process a signal, if it is still running."""
        if self.alive and self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def close(self) -> None:
        """End the process. Calling it again has no effect."""
        close_all([self])

    def _ended(self) -> WorkerError:
        with contextlib.suppress(*_GONE):  # its last message may still be in the pipe
            while self._connection.poll():
                message = self._connection.recv()
                if isinstance(message, Failure):
                    return self._error(message)
        self._process.join(LEAVE_SECONDS)
        code = self._process.exitcode
        how = "no longer answers" if code is None else how_it_ended(code)
        return WorkerError(f"{self.name} {how}")

    def _error(self, failure: Failure) -> WorkerError:
        error = WorkerError(f"{self.name} failed: {failure.message}")
        error.__cause__ = RemoteError(failure.traceback)
        return error


def close_all(workers: Collection[Worker]) -> None:
    """End several workers at the same time. Kill those that do not exit within LEAVE_SECONDS."""
    for worker in workers:
        worker._connection.close()  # Its next message or `receive` fails.
    left = {worker._process.sentinel: worker._process for worker in workers}
    end = time.monotonic() + LEAVE_SECONDS
    while left and (seconds := end - time.monotonic()) > 0:
        for sentinel in wait(list(left), seconds):
            del left[sentinel]
    for process in left.values():
        process.kill()
    for worker in workers:
        worker._process.join()
        if (log := worker._log) is not None and log.exists() and not log.stat().st_size:
            log.unlink()


class ParentConnection:
    """The connection of a worker to its parent process.

    Its methods raise ParentEndedError once that process has closed the connection or ended.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._next_look = 0.0

    def send(self, message: Any) -> None:
        """Send a message to the parent process. May be called from any thread."""
        try:
            with self._sending:
                _send(self._connection, message)
        except OSError:
            raise ParentEndedError from None

    def receive(self) -> Any:
        """Wait for the next message of the parent process."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise ParentEndedError from None

    def has_message(self) -> bool:
        """Return whether the parent process has sent a message or has ended."""
        try:
            return self._connection.poll()
        except OSError:
            raise ParentEndedError from None

    def stopped(self) -> bool:
        """Return False; raise ParentEndedError if the session has ended. Call it often during long work."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + 0.1
            if self.has_message():
                raise ParentEndedError
        return False


def _send(connection: Connection, message: Any) -> None:
    """Send a message by value.

    `Connection.send` would put every tensor into shared memory and open a socket for it, for which some
    machines lack room.
    """
    connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def _main(
    environment: Mapping[str, str],
    given: Mapping[str, Any],
    connection: Connection,
    log: Path | None,
    within: Callable[[], AbstractContextManager[Any]],
    takes_signals: bool,
    work: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    """Run the worker. environment: variables, because a process that is forked from a server has those with
    which the server started; given: `surroundings` of the parent process."""
    if takes_signals:
        take_signals()
        when_the_parent_ends()
    else:
        ignore_signals()
        # Ends this process however its parent ends, and whatever this one is doing.
        when_the_parent_ends(_leave)
    if log is not None:
        try:
            file: Any = log.open("a", encoding="utf-8")
        except OSError:
            file = sys.stderr
        faulthandler.register(signal.SIGUSR2, file, chain=False)  # shows where it hangs
    os.environ.clear()
    os.environ.update(environment)
    take_surroundings(given)
    parent = ParentConnection(connection)
    try:
        with within():
            work(parent, *arguments)
    except ParentEndedError:
        pass
    except BaseException as error:
        with contextlib.suppress(ParentEndedError):
            parent.send(Failure(described(error), traceback.format_exc()))
        sys.exit(FAILED)


def _leave() -> None:
    time.sleep(1.0)  # the process may already be exiting
    os._exit(1)
