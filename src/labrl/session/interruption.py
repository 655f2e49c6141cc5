"""Signals that ask a run to stop: it finishes the step it is in, saves, and leaves."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Ctrl-C, a polite kill, what SLURM sends before a time limit, and a terminal that was closed."""


def exit_code_of(number: int | None) -> int:
    """130 for Ctrl-C; 143, that of a polite kill, for every other signal that asks for a stop."""
    return 130 if number == signal.SIGINT else 143


class Interruption:
    """While entered, the first signal is noted for the loop to see; a second Ctrl-C leaves at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        """The first signal that asked for the stop, or None."""
        self.pruned = False
        """Whether a search has seen enough of the run."""
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether the run is to stop after the present step."""
        return self.signal is not None or self.pruned

    def give_up(self) -> None:
        """Stop after the present step because the run is not worth its time."""
        self.pruned = True

    def follow(self, number: int) -> None:
        """Stop because another rank was told to by signal `number`."""
        self.signal = self.signal or number

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program that this signal ended: 130 for Ctrl-C, 143 otherwise."""
        return exit_code_of(self.signal)

    def __enter__(self) -> Interruption:
        # Python lets only the main thread set handlers; in a notebook's worker Ctrl-C stays as it was.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # `nohup` has the terminal's end ignored, and so it stays.
                if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGINT:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            os._exit(exit_code_of(number))
        if self.signal is None:
            self.signal = number


@contextlib.contextmanager
def children_ignore_ctrl_c() -> Iterator[None]:
    """Processes that are started meanwhile ignore Ctrl-C until they say otherwise.

    A terminal sends it to every process. One that is still importing would die of it with a traceback;
    the process that started it tells it by SIGTERM instead.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def stop_with_the_parent() -> None:
    """When the process that started this one is killed, save and end as if it had said so."""
    when_the_parent_ends(lambda: os.kill(os.getpid(), signal.SIGTERM))


def when_the_parent_ends(act: Callable[[], None]) -> None:
    """Have a thread call `act` as soon as the process that started this one is gone, if there is one."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        assert parent is not None
        parent.join()
        act()

    if parent is not None:
        threading.Thread(target=watch, name="parent watch", daemon=True).start()


def how_it_ended(code: int) -> str:
    """What `code`, of a process that was to go on, says of its end; in words that follow its name."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", perhaps because memory ran out" if code == -signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
