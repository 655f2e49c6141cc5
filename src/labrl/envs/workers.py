"""Gymnasium's worker processes, which outlast a signal to all, and fall together when one of them dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from labrl.envs.single import EnvFactory, MakeEnv
from labrl.errors import InputError, LabrlError, LostProcessError
from labrl.processes import find_place_for_sockets, heed_no_signals, how_it_ended, signals_wait_in_children
from labrl.script import Carried

LEAVE_SECONDS = 5.0
"""Seconds that workers have to end their step and close their environments."""


class EnvironmentLostError(LostProcessError):
    """A worker process is gone, and its environment with it."""


class InWorkerError(Exception):
    """Location of an error in a worker process: the cause of the same error here."""


class Workers(AsyncVectorEnv[Any, Any]):
    """One environment in each process; none resets by itself.

    Gymnasium's own waits for ever for a worker that was killed, or for those that wait for what it held.
    """

    _watch: _Watch | None = None  # none yet where environments turn out to disagree on their spaces

    def __init__(self, makes: Sequence[MakeEnv], at_once: int) -> None:
        """at_once: how many step at the same time, at most."""
        carried = Carried()
        with signals_wait_in_children():
            _check_semaphores()
            super().__init__(
                [_WorkerFactory(make, carried) for make in makes],
                copy=False,
                context=_start_method(),
                autoreset_mode=AutoresetMode.DISABLED,
                max_concurrency=at_once if at_once < len(makes) else None,
            )
        self._watch = _Watch(self.processes)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Do the same as Gymnasium's method. Raises EnvironmentLostError."""
        with self._telling():
            return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        """Do the same as Gymnasium's method. Raises EnvironmentLostError."""
        with self._telling():
            return super().step(actions)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError):
            if (
                None in self.parent_pipes or self._watch is None
            ):  # an error of the environment, which it has reported
                raise
            raise self._watch.why() from None

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Raise the errors of workers with their tracebacks, which Gymnasium writes to the terminal."""
        failed = list(successes).count(False)
        if not failed:
            return
        errors = [self.error_queue.get() for _ in range(failed)]
        for index, *_ in errors:
            self.parent_pipes[index].close()
            self.parent_pipes[index] = None  # type: ignore[call-overload]  # as Gymnasium has it
        self._state = AsyncState.DEFAULT
        _, kind, value, trace = errors[0]
        try:
            error = value if isinstance(value, LabrlError) else kind(value)
        except Exception:  # one that is made from more than what it says
            error = RuntimeError(f"{kind.__name__}: {value}")
        raise error from InWorkerError(trace)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Let the workers end what they do and leave, or end them after LEAVE_SECONDS.

        timeout: other seconds than these; terminate: whether to end them at once.
        """
        for pipe in self.parent_pipes:
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(OSError):
                    pipe.send(("close", None))
        watch = self._watch or _Watch(self.processes)
        patience = LEAVE_SECONDS if timeout is None else timeout
        watch.join(0.0 if terminate else patience)
        for process in self.processes if watch.is_alive() else ():
            process.kill()
        watch.join()
        for pipe in self.parent_pipes:
            if pipe is not None:
                pipe.close()


class _Watch(threading.Thread):
    """Ends all workers when one of them is killed, and knows which it was.

    Otherwise its death would go unnoticed while the session waits for another worker, or another worker for
    its turn.
    """

    def __init__(self, processes: Sequence[BaseProcess]) -> None:
        super().__init__(name="environment watch", daemon=True)
        self._processes = list(processes)
        self._lost: tuple[int, int] | None = None
        self.start()

    def run(self) -> None:
        """Watch until none is left. A worker that raised an error has reported it and ends with code 0."""
        left = {process.sentinel: number for number, process in enumerate(self._processes)}
        while left:
            for sentinel in wait(list(left)):
                assert isinstance(sentinel, int)
                number = left.pop(sentinel)
                process = self._processes[number]
                process.join()
                if process.exitcode and self._lost is None:
                    self._lost = number, process.exitcode
                    for other in left.values():
                        self._processes[other].kill()

    def why(self) -> EnvironmentLostError:
        """Return the error to raise where a worker does not answer."""
        self.join(LEAVE_SECONDS)
        if self._lost is None:
            return EnvironmentLostError(
                "the worker processes of the environments no longer answer", key="env"
            )
        number, code = self._lost
        return EnvironmentLostError(
            f"the worker process of environment {number} {how_it_ended(code)}", key="env"
        )


class _WorkerFactory:
    """A factory for worker processes, which leave signals to the process that owns them.

    Otherwise an interrupt would kill the workers in the middle of the step that the session wants to
    finish before it writes its checkpoint.
    """

    def __init__(self, make: MakeEnv, carried: Carried) -> None:
        self.carried = carried  # unpickled before the other
        self.make = make
        self.owner = os.getpid()

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """One new environment."""
        if os.getpid() != self.owner:
            heed_no_signals()
        return self.make()


def _check_semaphores() -> None:
    """Raise InputError where this machine has no room for what worker processes share."""
    try:
        context = multiprocessing.get_context("spawn")
        _ = [context.Lock() for _ in range(8)]  # a few more than Gymnasium makes
    except (OSError, ImportError) as error:
        raise InputError(
            "env.vectorization=async needs memory that processes share, and this machine does not provide it "
            f"({error}). Mount /dev/shm writable and with free space, or set env.vectorization=sync.",
            code="resources",
            key="env.vectorization",
        ) from error


def _start_method() -> str:
    """Return how workers start: never by forking, which would copy locks that no worker releases."""
    if "forkserver" not in multiprocessing.get_all_start_methods() or not find_place_for_sockets():
        return "spawn"
    # The server imports once what every worker needs.
    multiprocessing.get_context("forkserver").set_forkserver_preload([EnvFactory.__module__])
    return "forkserver"
