"""Gymnasium's worker processes, which ignore signals and are ended together when one of them dies."""

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
from labrl.processes import find_place_for_sockets, how_it_ended, ignore_signals, signals_wait_in_children
from labrl.script import Carried

LEAVE_SECONDS = 5.0
"""Seconds that workers have to finish their step and close their environments."""


class EnvironmentLostError(LostProcessError):
    """A worker process has died, and its environment with it."""


class InWorkerError(Exception):
    """The traceback of a worker process, used as the cause of the error raised here."""


class Workers(AsyncVectorEnv[Any, Any]):
    """Environments in one process each, none of which resets by itself.

    Gymnasium's class hangs if a worker was killed, or if others wait for a resource that it held.
    """

    _watch: _Watch | None = None  # still None if the constructor fails because spaces differ

    def __init__(self, makes: Sequence[MakeEnv], at_once: int) -> None:
        """at_once: largest number of environments that step at the same time."""
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
        """Reset as Gymnasium's method does. Raises EnvironmentLostError."""
        with self._naming_the_lost():
            return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        """Step as Gymnasium's method does. Raises EnvironmentLostError."""
        with self._naming_the_lost():
            return super().step(actions)

    @contextlib.contextmanager
    def _naming_the_lost(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError):
            if None in self.parent_pipes or self._watch is None:  # the environment has reported its own error
                raise
            raise self._watch.why() from None

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Raise the first error of a worker with its traceback, which Gymnasium would only print."""
        failed = list(successes).count(False)
        if not failed:
            return
        errors = [self.error_queue.get() for _ in range(failed)]
        for index, *_ in errors:
            self.parent_pipes[index].close()
            self.parent_pipes[index] = None  # type: ignore[call-overload]  # as Gymnasium does
        self._state = AsyncState.DEFAULT
        _, kind, value, trace = errors[0]
        try:
            error = value if isinstance(value, LabrlError) else kind(value)
        except Exception:  # its constructor needs other arguments
            error = RuntimeError(f"{kind.__name__}: {value}")
        raise error from InWorkerError(trace)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Ask the workers to exit, and kill them after LEAVE_SECONDS.

        timeout: replaces LEAVE_SECONDS; terminate: whether to kill them at once.
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
    """Thread that kills all workers when one of them dies, and remembers which one it was.

    Otherwise the death would go unnoticed while the session, or another worker, waits.
    """

    def __init__(self, processes: Sequence[BaseProcess]) -> None:
        super().__init__(name="environment watch", daemon=True)
        self._processes = list(processes)
        self._lost: tuple[int, int] | None = None
        self.start()

    def run(self) -> None:
        """Watch until no worker is left. A worker that reported an error exits with code 0."""
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
        """Return the error to raise if a worker does not answer."""
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
    """Make an environment in a worker process, which from then on ignores signals.

    Otherwise Ctrl-C would kill the workers during the step that the session finishes before it writes its
    checkpoint.
    """

    def __init__(self, make: MakeEnv, carried: Carried) -> None:
        self.carried = carried  # first, because it must be unpickled before `make`
        self.make = make
        self.owner = os.getpid()

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make an environment."""
        if os.getpid() != self.owner:
            ignore_signals()
        return self.make()


def _check_semaphores() -> None:
    """Raise InputError if this machine cannot create the semaphores that worker processes share."""
    try:
        context = multiprocessing.get_context("spawn")
        _ = [context.Lock() for _ in range(8)]  # a few more than Gymnasium makes
    except (OSError, ImportError) as error:
        raise InputError(
            "env.vectorization=async needs shared memory, which this machine does not provide "
            f"({error}). Mount /dev/shm writable and with free space, or set env.vectorization=sync.",
            code="resources",
            key="env.vectorization",
        ) from error


def _start_method() -> str:
    """Return the start method of workers, never `fork`, which would copy locks that no worker releases."""
    if "forkserver" not in multiprocessing.get_all_start_methods() or not find_place_for_sockets():
        return "spawn"
    # The server imports the modules that every worker needs once.
    multiprocessing.get_context("forkserver").set_forkserver_preload([EnvFactory.__module__])
    return "forkserver"
