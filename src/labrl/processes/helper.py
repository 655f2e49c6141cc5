"""Helper processes of a session: workers with one environment each, an actor, an evaluator."""

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
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from labrl.errors import InputError, LostProcessError, described
from labrl.processes.script import surroundings, take_surroundings
from labrl.processes.signals import (
    find_place_for_sockets,
    how_it_ended,
    ignore_signals,
    signals_wait_in_children,
    when_the_parent_ends,
)

LEAVE_SECONDS = 5.0
"""Seconds between closing the connection to helper processes and killing those that have not exited."""

_GONE = (EOFError, OSError, pickle.UnpicklingError)


class HelperError(LostProcessError):
    """A helper process failed, died or hangs. The cause is the process's traceback, if it sent one."""


class RemoteError(Exception):
    """The traceback of another process, as text."""


class ParentEndedError(Exception):
    """Raised in a helper process when the session has closed the connection or has ended."""


class Failure(NamedTuple):
    """The last message from a process that failed."""

    message: str
    traceback: str


class HelperProcess:
    """The session's handle of a helper process. Messages can be any object that can be pickled.

    The process ignores the signals that stop a run, because the session first saves its state and then ends
    the process. On SIGUSR2, a process with a log writes its stack to the log.
    """

    def __init__(
        self,
        name: str,
        work: Callable[..., None],
        arguments: tuple[Any, ...],
        log: Path | None = None,
        within: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        """Start a process that runs `work(parent, *arguments)`, where `parent` is its `ParentConnection`.

        name: name of the process in messages; log: file for the process's stack; within: function that makes
        the context manager in which `work` runs. Raises InputError if this process cannot start others.
        """
        if multiprocessing.current_process().daemon:
            raise InputError(
                "this run needs further processes, but a daemonic process, such as a worker of "
                "multiprocessing.Pool, cannot start them. Call labrl from a "
                "concurrent.futures.ProcessPoolExecutor instead, or set meta.max_session=1 and "
                "env.vectorization=sync.",
                code="usage",
            )
        self.name = name
        self._log = log
        # A child forked from this process would inherit the threads of torch in an unusable state, and locks
        # that no thread releases. The server, from which it is forked instead, imports `work` once.
        method = "spawn"
        if "forkserver" in multiprocessing.get_all_start_methods() and find_place_for_sockets():
            method = "forkserver"
            multiprocessing.get_context("forkserver").set_forkserver_preload([work.__module__])
        context: Any = multiprocessing.get_context(method)
        self._connection, there = context.Pipe()
        arguments = (dict(os.environ), surroundings(), there, log, within, work, arguments)
        self._process = context.Process(target=_main, args=arguments, name=name)
        with signals_wait_in_children():
            self._process.start()
        there.close()  # so that this side notices when the process ends

    def send(self, message: Any) -> None:
        """Send the process a message. Raises HelperError if it has ended."""
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
        """Wait for the next message of the process. Raises HelperError if it failed or has ended."""
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
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def close(self) -> None:
        """End the process. Calling it again has no effect."""
        close_all([self])

    def _ended(self) -> HelperError:
        with contextlib.suppress(*_GONE):  # its last message may still be in the pipe
            while self._connection.poll():
                message = self._connection.recv()
                if isinstance(message, Failure):
                    return self._error(message)
        self._process.join(LEAVE_SECONDS)
        code = self._process.exitcode
        how = "no longer answers" if code is None else how_it_ended(code)
        return HelperError(f"{self.name} {how}")

    def _error(self, failure: Failure) -> HelperError:
        error = HelperError(f"{self.name} failed: {failure.message}")
        error.__cause__ = RemoteError(failure.traceback)
        return error


def close_all(helpers: Collection[HelperProcess]) -> None:
    """End several helper processes at the same time. Kill those that do not exit within LEAVE_SECONDS."""
    for helper in helpers:
        helper._connection.close()  # Its next message or `receive` fails.
    left = {helper._process.sentinel: helper._process for helper in helpers}
    end = time.monotonic() + LEAVE_SECONDS
    while left and (seconds := end - time.monotonic()) > 0:
        for sentinel in wait(list(left), seconds):
            del left[sentinel]
    for process in left.values():
        process.kill()
    for helper in helpers:
        helper._process.join()
        if (log := helper._log) is not None and log.exists() and not log.stat().st_size:
            log.unlink()


class ParentConnection:
    """The connection of a helper process to its session.

    Its methods raise ParentEndedError once the session has ended.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._next_look = 0.0

    def send(self, message: Any) -> None:
        """Send a message to the session. May be called from any thread."""
        try:
            with self._sending:
                _send(self._connection, message)
        except OSError:
            raise ParentEndedError from None

    def receive(self) -> Any:
        """Wait for the session's next message."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise ParentEndedError from None

    def has_message(self) -> bool:
        """Return whether the session has sent a message or has ended."""
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
    work: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    """Run the helper process. environment: variables, because a process that is forked from a server has
    those with which the server started; given: `surroundings` of the process of the session."""
    ignore_signals()
    # Ends this process however the session's process ends, and whatever this one is doing.
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
        message = described(error)
        with contextlib.suppress(ParentEndedError):
            parent.send(Failure(message, traceback.format_exc()))


def _leave() -> None:
    time.sleep(1.0)  # the process may already be exiting
    os._exit(1)
