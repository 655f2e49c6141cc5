"""Environments in worker processes, which ignore signals."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from labrl.envs.checked import CheckedEnv
from labrl.envs.masks import KEY
from labrl.errors import LabrlError, LostProcessError
from labrl.processes.script import Carried
from labrl.processes.signals import (
    find_place_for_sockets,
    how_it_ended,
    ignore_signals,
    signals_wait_in_children,
)
from labrl.spaces import same

_log = logging.getLogger(__name__)

LEAVE_SECONDS = 5.0
"""Seconds that workers have to finish their step and close their environments."""


class EnvironmentLostError(LostProcessError):
    """A worker process has died, and its environment with it."""


class InWorkerError(Exception):
    """The traceback of a worker process, used as the cause of the error raised here."""


@dataclass
class _Past:
    """The unfinished episode of an environment, which brings it back in a new process."""

    seed: int
    actions: list[Any] = field(default_factory=list)
    total: float = 0.0
    """Sum of the rewards."""
    latest: tuple[Any, ...] = ()
    """Latest answer of the environment."""


class Workers:
    """Environments in one process each, which send their answers through pipes.

    An environment that has raised an error, or whose process has died, is made anew and brought back by its
    seed and its actions.
    """

    def __init__(
        self, makes: Sequence[Callable[[], CheckedEnv]], at_once: int, restarts: int = 0, name: str = ""
    ) -> None:
        """Start the processes and wait until all have made their environment.

        at_once: largest number of environments that step at the same time; restarts: largest number of times
        that each environment is made anew; name: name of the environments in messages.
        """
        self._makes, self._at_once, self._name = makes, at_once, name
        self._left, self._restarts = [restarts] * len(makes), restarts
        self._past = [_Past(0) for _ in makes]
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
            answer = self._answer(number, method, given[number])
            past = self._past[number] if method == "step" else _Past(given[number])
            if method == "step":
                past.actions.append(given[number])
                past.total += answer[1]
            past.latest, self._past[number] = answer, past
            if position < len(order):
                self._send(order[position], method, given[order[position]])
            yield answer

    def close(self) -> None:
        """Ask the workers to exit, and kill them after LEAVE_SECONDS."""
        self._end(self._workers)

    def _answer(self, number: int, method: str, given: Any) -> tuple[Any, ...]:
        """Return the answer of an environment, which is made anew if it fails."""
        attempt: Callable[[], tuple[Any, ...]] = partial(self._receive, number)
        while True:
            try:
                return attempt()
            except Exception as error:
                # Answers that do not fit would not fit again.
                final = isinstance(error, LabrlError) and not isinstance(error, EnvironmentLostError)
                if final or not self._left[number]:
                    raise
                self._left[number] -= 1
                _log.warning(
                    "%s: environment %d failed after step %d of its episode and is made anew (restart %d of "
                    "%d, env.restarts): %s: %s",
                    self._name,
                    number,
                    len(self._past[number].actions) if method == "step" else 0,
                    self._restarts - self._left[number],
                    self._restarts,
                    type(error).__name__,
                    error,
                )
            attempt = partial(self._bring_back, number, method, given)

    def _bring_back(self, number: int, method: str, given: Any) -> tuple[Any, ...]:
        """Make an environment in a new process, repeat its episode, and call the method that has failed.

        If the episode is not the same, it ends: the answer is a truncation at the latest observation.
        """
        self._end([self._workers[number]])
        self._workers[number] = self._start(self._makes[number])
        self._receive(number)
        past = self._past[number]
        if method == "step":
            self._send(number, "reset", past.seed)
            reached, total, over = self._receive(number), 0.0, False
            for action in past.actions:
                self._send(number, "step", action)
                reached = self._receive(number)
                total += reached[1]
                if over := reached[2] or reached[3]:
                    break
            if over or not same((reached[0], total), (past.latest[0], past.total)):
                _log.warning(
                    "%s: environment %d did not repeat its episode, which therefore ends as truncated",
                    self._name,
                    number,
                )
                masks = {name: value for name, value in past.latest[-1].items() if name == KEY}
                return past.latest[0], 0.0, False, True, masks
        self._send(number, method, given)
        return self._receive(number)

    def _end(self, workers: Sequence[tuple[Connection, Any]]) -> None:
        for pipe, _ in workers:
            pipe.close()  # the worker reads its end
        left: dict[Any, Any] = {process.sentinel: process for _, process in workers}
        end = time.monotonic() + LEAVE_SECONDS
        while left and (seconds := end - time.monotonic()) > 0:
            for sentinel in wait(list(left), seconds):
                del left[sentinel]
        for process in left.values():
            process.kill()
        for _, process in workers:
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
