"""Signals, waiting threads and exit codes of the processes of a run."""

from __future__ import annotations

import contextlib
import gc
import getpass
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, resource_tracker, util
from types import FrameType, ModuleType
from typing import Any, NoReturn

from labrl.errors import INTERRUPTED, TERMINATED

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Ctrl-C, a polite kill, what SLURM sends before a time limit, and a terminal that was closed."""


SOCKET_FOLDER_BYTES = 70
"""Longest path of a folder in which multiprocessing can make its sockets: the system takes 104 bytes for the
path of a socket, of which multiprocessing needs 33."""


def exit_code_of(number: int | None) -> int:
    """INTERRUPTED for Ctrl-C, TERMINATED for every other signal that asks for a stop."""
    return INTERRUPTED if number == signal.SIGINT else TERMINATED


def let_threads_sleep() -> None:
    """Let the threads of a matrix product sleep soon while they wait; called before torch is loaded.

    They would count to 300,000 first: beside other busy processes, on a core that the thread they wait for
    could have had. With 10,000 SAC makes 2.6 times the frames there, and as many as before alone. Nothing
    is changed where the user has said how threads wait.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


SELDOM = 500_000
"""New objects after which a process that starts looks for unreachable ones."""

_usual = gc.get_threshold()


def collect_seldom() -> None:
    """Look for unreachable objects seldom, in a process that starts.

    PyTorch and what else is imported make 400,000 objects, and all of them last: to go through them again and
    again takes 0.3 of 3 seconds.
    """
    gc.set_threshold(SELDOM)


def collect_as_usual() -> None:
    """Look for unreachable objects as often as before `collect_seldom`, in a process that has started."""
    if gc.get_threshold()[0] == SELDOM:
        gc.set_threshold(*_usual)


def name_user_and_home() -> None:
    """Set USER and HOME where the system knows neither.

    That is so for a user of a container without an entry in /etc/passwd. Matplotlib, wandb and torch ask for
    them, and fail without an answer.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["USER"] = str(os.getuid())
    if os.path.expanduser("~") == "~":
        with contextlib.suppress(OSError):  # there is no folder for temporary files either
            home = os.path.join(tempfile.gettempdir(), f"labrl-{os.getuid()}")
            os.makedirs(home, mode=0o700, exist_ok=True)
            os.environ["HOME"] = home


class Stopped(KeyboardInterrupt):
    """Raised for the other SIGNALS, like KeyboardInterrupt for Ctrl-C."""

    exit_code = exit_code_of(None)


Handler = Callable[[int, FrameType | None], None]


@contextlib.contextmanager
def signals_leave(told: str = "") -> Iterator[None]:
    """Let each of SIGNALS end the process at once, where nobody else has set a handler.

    For the time before there is anything to save. An exception would not do: modules are being imported, and
    C extensions swallow it (PyTorch would go on without NumPy, pydantic reports a schema error).

    told: line for standard error.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        for clean_up in before_leaving:
            clean_up()
        with contextlib.suppress(OSError):
            os.write(2, told.encode())
        leave_at_once(number)

    with _handling(leave):
        yield


before_leaving: list[Callable[[], None]] = []
"""Functions that are called before `signals_leave` ends the process."""


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Let each of SIGNALS raise KeyboardInterrupt or Stopped, where nobody else has set a handler.

    An exception waits until the import that is under way is done. A second Ctrl-C ends the process at once.
    """
    came = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            if number == signal.SIGINT:
                leave_at_once(number)
            return
        came = True
        if _is_importing(frame):
            before = signal.signal(signal.SIGALRM, lambda *_: come_again(number, before))
            signal.setitimer(signal.ITIMER_REAL, 0.02)
        else:
            raise KeyboardInterrupt if number == signal.SIGINT else Stopped

    def come_again(number: int, before: Any) -> None:
        nonlocal came
        came = False
        signal.signal(signal.SIGALRM, before)
        signal.raise_signal(number)  # for its present handler

    with _handling(handle):
        yield


@contextlib.contextmanager
def _handling(handler: Handler) -> Iterator[None]:
    """Handle SIGNALS by `handler` where nobody has set another one than those that are set here."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    free = (signal.SIG_DFL, signal.default_int_handler, *_own_handlers)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    ours = [number for number in SIGNALS if before[number] in free]
    _own_handlers.append(handler)
    for number in ours:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
        _own_handlers.remove(handler)


_own_handlers: list[Handler] = []


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
        frame = frame.f_back
    return frame is not None


def leave_at_once(number: int) -> NoReturn:
    """End this process, which signal `number` has come to, and those that work for it."""
    for child in multiprocessing.active_children():  # an environment's, which may hang
        child.kill()
    os._exit(exit_code_of(number))


@contextlib.contextmanager
def signals_wait_in_children() -> Iterator[None]:
    """Processes that are started meanwhile, and their helpers, get none of SIGNALS until `take_signals` or
    `heed_no_signals`.

    A terminal sends Ctrl-C to every process, and so may a closed terminal, or a cluster that ends a job: one
    that is still importing would die of it with a traceback, and those that only work for another one have to
    last until it has saved. Blocked and not ignored, so that one which comes meanwhile to this process is not
    lost.

    Nor do they import `__main__`, which may train when it is imported. multiprocessing finds the file or
    module to import in two attributes. A copy lacks them, so that code of the module itself still sees them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    resource_tracker.ensure_running()  # which unblocks some where it begins
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    main = sys.modules["__main__"]
    copy = ModuleType("__main__")
    vars(copy).update(
        {name: value for name, value in vars(main).items() if name not in ("__file__", "__spec__")}
    )
    sys.modules["__main__"] = copy
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_fork_server(modules: Sequence[str]) -> bool:
    """Start the process that the processes of multiprocessing's context `forkserver` are forked from.

    It imports `modules`, once for all of them, while this process continues. It does nothing else, so that
    there are no threads that a forked process would lack, and no state of a run. Returns whether it runs.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods() or not find_place_for_sockets():
        return False
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))
    with signals_wait_in_children():
        forkserver.ensure_running()
    return True


def take_signals() -> None:
    """Let SIGNALS come to this process, which was started while they waited.

    Ctrl-C is ignored until somebody handles it, and the others end the process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def find_place_for_sockets() -> bool:
    """Let multiprocessing make its sockets in another folder than TMPDIR where that path is too long.

    Clusters set such paths. Returns whether there is a folder that does.
    """
    before = tempfile.tempdir
    try:
        for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
            if len(os.fsencode(folder)) <= SOCKET_FOLDER_BYTES and os.access(folder, os.W_OK | os.X_OK):
                tempfile.tempdir = folder
                # It keeps the folder that it makes at the first call, and removes it at the end.
                return os.path.dirname(util.get_temp_dir()) == folder
    except OSError:  # no folder for temporary files at all
        pass
    finally:
        tempfile.tempdir = before
    return False


def heed_no_signals() -> None:
    """Ignore SIGNALS in this process; programs that it starts react to them as usual."""
    for number in SIGNALS:
        signal.signal(number, _unheeded)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _unheeded(number: int, frame: FrameType | None) -> None:
    pass


def stop_with_the_parent() -> None:
    """Send SIGTERM to this process when its parent has ended, so that it saves its state and ends."""
    when_the_parent_ends(lambda: os.kill(os.getpid(), signal.SIGTERM))


def stop_when_orphaned() -> None:
    """Do the same as `stop_with_the_parent` for a process that a program other than labrl has started."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="orphan watch", daemon=True).start()


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
    """Describe the exit code of a process that ended too early, as a phrase that follows its name."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hints: dict[int, str] = {
        signal.SIGKILL: ", perhaps because memory ran out",
        signal.SIGBUS: ", perhaps because /dev/shm or a disk is full",
    }
    return f"was killed by {name}{hints.get(-code, '')}"
