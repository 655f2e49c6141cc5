"""Environments in worker processes, which ignore signals."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from labrl.envs.checked import CheckedEnv
from labrl.errors import LostProcessError
from labrl.processes import find_place_for_sockets, how_it_ended, ignore_signals, signals_wait_in_children
from labrl.script import Carried

_log = logging.getLogger(__name__)

LEAVE_SECONDS = 5.0
"""Seconds that workers have to finish their step and close their environments."""


class EnvironmentLostError(LostProcessError):
    """A worker process has died, and its environment with it."""


class InWorkerError(Exception):
    """The traceback of a worker process, used as the cause of the error raised here."""


class Workers:
    """Environments in one process each, which send their answers through pipes."""

    def __init__(self, makes: Sequence[Callable[[], CheckedEnv]], at_once: int) -> None:
        """Start the processes and wait until all have made their environment.

        at_once: largest number of environments that step at the same time.
        """
        self._makes, self._at_once = makes, at_once
        self._carried = Carried()
        self._workers = [self._start(make) for make in makes]
        try:
            for number in range(len(makes)):
                self._receive(number)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, given: Mapping[int, Any]) -> Iterator[Any]:
        """Call a method of the environments `given`, each with its argument. Yields their answers in order.

        Raises an error of an environment, and EnvironmentLostError if a process has died.
        """
        order = list(given)
        for number in order[: self._at_once]:
            self._send(number, method, given[number])
        for position, number in enumerate(order, self._at_once):
            answer = self._receive(number)
            if position < len(order):
                self._send(order[position], method, given[order[position]])
            yield answer

    def close(self) -> None:
        """Ask the workers to exit, and kill them after LEAVE_SECONDS."""
        for pipe, _ in self._workers:
            pipe.close()  # the worker reads its end
        left: dict[Any, Any] = {process.sentinel: process for _, process in self._workers}
        end = time.monotonic() + LEAVE_SECONDS
        while left and (seconds := end - time.monotonic()) > 0:
            for sentinel in wait(list(left), seconds):
                del left[sentinel]
        for process in left.values():
            process.kill()
        for _, process in self._workers:
            process.join()

    def _start(self, make: Callable[[], CheckedEnv]) -> tuple[Connection, Any]:
        context: Any = multiprocessing.get_context(_start_method())
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(self._carried, make, theirs), daemon=True)
        with signals_wait_in_children():
            process.start()
        theirs.close()  # so that reading fails as soon as the worker has died
        return ours, process

    def _send(self, number: int, method: str, given: Any) -> None:
        with suppress(OSError):  # the worker has died, which receiving reports
            self._workers[number][0].send((method, given))

    def _receive(self, number: int) -> Any:
        pipe, process = self._workers[number]
        try:
            answer, error, trace = pipe.recv()
        except (EOFError, OSError):
            process.join(LEAVE_SECONDS)
            code = process.exitcode
            ended = "no longer answers" if code is None else how_it_ended(code)
            what = f"the worker process of environment {number} {ended}"
            raise EnvironmentLostError(what, key="env") from None
        if error is not None:
            raise error from InWorkerError(trace)
        return answer


def _serve(carried: Carried, make: Callable[[], CheckedEnv], pipe: Connection) -> None:
    """Make an environment in a worker process, and call its methods until the pipe is closed.

    carried: comes first, because it must be unpickled before `make`.
    """
    # Otherwise Ctrl-C would kill workers during the step that the session finishes before its checkpoint.
    ignore_signals()
    env = None
    try:
        env = make()
        pipe.send((None, None, ""))
        while True:
            method, given = pipe.recv()
            pipe.send((env.reset(given) if method == "reset" else env.step(given), None, ""))
    except (EOFError, BrokenPipeError):  # the session has closed the pipe or has died
        pass
    except (Exception, SystemExit) as error:
        pipe.send((None, _picklable(error), traceback.format_exc()))
    if env is not None:
        env.close()


def _picklable(error: BaseException) -> BaseException:
    """Return the error, or one with the same text if the session's process could not read it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _start_method() -> str:
    """Return the start method of workers, never `fork`, which would copy locks that no worker releases."""
    if "forkserver" not in multiprocessing.get_all_start_methods() or not find_place_for_sockets():
        return "spawn"
    # The server imports the modules that every worker needs once.
    multiprocessing.get_context("forkserver").set_forkserver_preload([CheckedEnv.__module__])
    return "forkserver"
