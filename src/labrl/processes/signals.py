"""Handling of signals in the processes of a run, and their exit codes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from types import FrameType, ModuleType
from typing import Any, NoReturn

from labrl.errors import INTERRUPTED, TERMINATED

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals that stop a run: Ctrl-C, `kill`, SLURM's warning before a time limit, and a closed terminal."""

SAVE = signal.SIGUSR2
"""Signal upon which a run saves a checkpoint and continues. Processes that cannot do this ignore it."""
_SAFE_PATH = "PYTHONSAFEPATH"


def exit_code_of(number: int | None) -> int:
    """Return INTERRUPTED for Ctrl-C and TERMINATED for every other signal."""
    return INTERRUPTED if number == signal.SIGINT else TERMINATED


class Stopped(KeyboardInterrupt):
    """Raised for SIGNALS except Ctrl-C, which raises KeyboardInterrupt itself."""

    exit_code = exit_code_of(None)


@contextlib.contextmanager
def signals_raise(name: str = "labrl") -> Iterator[None]:
    """Context manager: make those SIGNALS that have no handler from outside this module raise
    KeyboardInterrupt or Stopped.

    On a second Ctrl-C, the process ends at once. So it does during an import, in which raising an exception
    would not work, because C extensions swallow it (PyTorch would continue without NumPy). From then on, if
    SAVE has no handler, it has no effect on this process and the processes that it starts.

    name: name of the command in the line that is printed if the process ends at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if _is_importing(frame) or (came and number == signal.SIGINT):
            with contextlib.suppress(OSError):
                os.write(2, f"{name}: interrupted\n".encode())
            leave_at_once(number)
        if not came:
            came = True
            raise KeyboardInterrupt if number == signal.SIGINT else Stopped

    if signal.getsignal(SAVE) is signal.SIG_DFL:
        signal.signal(SAVE, signal.SIG_IGN)
    free = (signal.SIG_DFL, signal.default_int_handler, *_own_handlers)
    before = {number: found for number in SIGNALS if (found := signal.getsignal(number)) in free}
    _own_handlers.append(handle)
    try:
        for number in before:
            signal.signal(number, handle)
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)
        _own_handlers.remove(handle)


_own_handlers: list[Any] = []


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
        frame = frame.f_back
    return frame is not None


def leave_at_once(number: int) -> NoReturn:
    """End this process and its children at once, because of signal `number`."""
    for child in multiprocessing.active_children():  # environments, which may hang
        child.kill()
    os._exit(exit_code_of(number))


@contextlib.contextmanager
def signals_wait_in_children() -> Iterator[None]:
    """Context manager: start processes in which SIGNALS and SAVE are blocked until they call
    `take_signals` or `ignore_signals`.

    A terminal sends Ctrl-C to every process; a closed terminal, or a cluster that ends a job, may likewise
    send other signals to all. A process that is still importing would die with a traceback, and helper
    processes must live until the session has saved its state. Signals are blocked rather than ignored, so
    that a signal sent to this process in the meantime is not lost.

    The started processes do not import `__main__`, which may train when imported, so multiprocessing must not
    find its file. They do not search the working directory before the standard library either.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*SIGNALS, SAVE))
    resource_tracker.ensure_running()  # it unblocks some signals when it starts
    signal.pthread_sigmask(signal.SIG_BLOCK, (*SIGNALS, SAVE))
    main, safe = sys.modules["__main__"], os.environ.get(_SAFE_PATH)
    sys.modules["__main__"], os.environ[_SAFE_PATH] = ModuleType("__main__"), "1"
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        del os.environ[_SAFE_PATH]
        os.environ.update({} if safe is None else {_SAFE_PATH: safe})
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_signals() -> None:
    """Unblock signals in this process, which was started within `signals_wait_in_children`.

    Ctrl-C and SAVE are ignored until a handler is set; the other signals end the process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(SAVE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*SIGNALS, SAVE))


def ignore_signals() -> None:
    """Ignore SIGNALS and SAVE in this process. Programs that it starts react to these signals as usual."""
    for number in (*SIGNALS, SAVE):
        signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*SIGNALS, SAVE))


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass


def when_the_parent_ends(act: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM)) -> None:
    """Call `act` in a thread when the parent process ends. By default, this process receives SIGTERM, so that
    it saves its state and exits."""
    parent, before = multiprocessing.parent_process(), os.getppid()

    def watch() -> None:
        if parent is not None:
            parent.join()
        while parent is None and os.getppid() == before:
            time.sleep(1.0)
        act()

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def how_it_ended(code: int) -> str:
    """Describe the exit code of a process that ended too early, as a phrase that follows its name."""
    if code >= 0:
        return f"ended with code {code}"
    hints: dict[int, str] = {
        signal.SIGKILL: ", perhaps because memory ran out",
        signal.SIGBUS: ", perhaps because /dev/shm or a disk is full",
    }
    name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
    return f"was killed by {name}{hints.get(-code, '')}"
