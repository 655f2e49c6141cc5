"""Environments in worker processes, which ignore signals."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from labrl.envs.masks import KEY
from labrl.envs.subenv import SubEnv
from labrl.errors import LabrlError, LostProcessError, described
from labrl.processes.worker import (
    ParentConnection,
    ParentEndedError,
    RemoteError,
    Worker,
    WorkerError,
    close_all,
)
from labrl.spaces import same

_log = logging.getLogger(__name__)


class EnvironmentLostError(LostProcessError):
    """A worker process has died, so its environment is lost."""


@dataclass
class _Past:
    """The unfinished episode of an environment, from which a new process can restore the environment."""

    seed: int
    actions: list[Any] = field(default_factory=list)
    total: float = 0.0
    """Sum of the rewards."""
    latest: tuple[Any, ...] = ()
    """Latest values that the environment returned."""


class Workers:
    """Environments in one process each, which send their answers through pipes.

    An environment that has raised an error, or whose process has died, is made again, and its episode is
    repeated from its seed and its actions.
    """

    def __init__(
        self, makes: Sequence[Callable[[], SubEnv]], at_once: int, restarts: int = 0, name: str = ""
    ) -> None:
        """Start the processes and wait until all have made their environment.

        at_once: maximum number of environments that step at the same time; restarts: maximum number of times
        that each environment is made again; name: name of the environments in messages.
        """
        self._makes, self._at_once, self._name = makes, at_once, name
        self._left, self._restarts = [restarts] * len(makes), restarts
        self._past = [_Past(0) for _ in makes]
        self._workers = [self._start(number) for number in range(len(makes))]
        try:
            for number in range(len(makes)):
                self._receive(number)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, given: Mapping[int, Any]) -> Iterator[Any]:
        """Call a method of each environment in `given`, with its argument. Yields the answers in order.

        Raises the error of an environment that fails, and EnvironmentLostError if a process has died.
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
        """Have workers finish their step and close their environments. Kill workers that take too long."""
        close_all(self._workers)

    def _answer(self, number: int, method: str, given: Any) -> tuple[Any, ...]:
        """Return the answer of an environment. If the environment fails, it is made again."""
        attempt: Callable[[], tuple[Any, ...]] = partial(self._receive, number)
        while True:
            try:
                return attempt()
            except Exception as error:
                # labrl's own refusals would be repeated.
                final = isinstance(error, LabrlError) and not isinstance(error, EnvironmentLostError)
                if not (final or self._left[number]) and self._restarts:
                    error.add_note(f"env.restarts={self._restarts} is used up")
                if final or not self._left[number]:
                    raise
                self._left[number] -= 1
                _log.warning(
                    "%s: environment %d failed after step %d of its episode and is made again (restart %d of "
                    "%d, env.restarts): %s",
                    self._name,
                    number,
                    len(self._past[number].actions) if method == "step" else 0,
                    self._restarts - self._left[number],
                    self._restarts,
                    described(error),
                )
            attempt = partial(self._bring_back, number, method, given)

    def _bring_back(self, number: int, method: str, given: Any) -> tuple[Any, ...]:
        """Make an environment in a new process, repeat its episode, and call the method that has failed.

        If the repeated episode differs, it ends: the answer is a truncation at the latest observation.
        """
        self._workers[number].close()
        self._workers[number] = self._start(number)
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

    def _start(self, number: int) -> Worker:
        name = f"the worker process of environment {number}"
        return Worker(name, _serve, (self._makes[number],))

    def _send(self, number: int, method: str, given: Any) -> None:
        with suppress(WorkerError):  # the worker has died, which receiving reports
            self._workers[number].send((method, given))

    def _receive(self, number: int) -> Any:
        try:
            answer, error, trace = self._workers[number].receive()
        except WorkerError as lost:
            raise EnvironmentLostError(str(lost), key="env") from lost.__cause__
        if error is not None:
            raise error from RemoteError(trace)
        return answer


def _serve(session: ParentConnection, make: Callable[[], SubEnv]) -> None:
    """Make an environment in a worker process, and call its methods as the session asks."""
    env = None
    try:
        env = make()
        session.send((None, None, ""))
        while True:
            method, given = session.receive()
            session.send((env.reset(given) if method == "reset" else env.step(given), None, ""))
    except ParentEndedError:
        raise
    except (Exception, SystemExit) as error:
        sent: BaseException = error
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # it cannot be pickled
            sent = RuntimeError(f"{type(error).__name__}: {error}")
            for note in vars(error).get("__notes__", ()):
                sent.add_note(note)
        session.send((None, sent, traceback.format_exc()))
    finally:
        if env is not None:
            env.close()
