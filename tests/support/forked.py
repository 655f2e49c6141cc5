"""Fork the processes that multiprocessing starts from one that has already imported their modules.

Processes of the contexts `spawn` and `forkserver` normally import PyTorch again, which takes three CPU
seconds. Here each process that may start others has a waiting process that has only imported labrl, and that
becomes its fork server when it starts the first one. Processes of `spawn` are forked from that server too,
with the signals, streams and working directory that a spawned process would inherit. Tests of the start
itself use a fresh Python (`sys.executable`), whose processes start as those of a user.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing import context, forkserver, popen_forkserver, util
from multiprocessing.context import get_spawning_popen
from types import ModuleType
from typing import Any, NoReturn

SERVER = "multiprocessing.forkserver"
"""Module that only the program of a fork server imports."""

FILES = "/proc/self/fd"
"""Folder of the open files of a process. On systems without it, processes start as those of a user."""


def keep_server() -> None:
    """Fork a process that waits to become the fork server of this one; it ends with this one."""
    if not os.path.isdir(FILES):
        return
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        wait_to_serve(theirs)
    theirs.close()
    take_server(lambda: (ours, pid))


def take_server(waiting: Callable[[], tuple[socket.socket, int]]) -> None:
    """Fork the processes of multiprocessing's contexts from a waiting process.

    waiting: returns the socket to a child of this process that is in `wait_to_serve`, and its process id.
    """
    if not os.path.isdir(FILES):
        return
    start_anew, taken = util.spawnv_passfds, False

    def start(path: bytes, arguments: list[str], files: list[int]) -> int:
        nonlocal taken
        if taken or SERVER not in arguments[-1]:
            return start_anew(path, arguments, files)
        taken = True
        door, pid = waiting()
        request = {
            "program": arguments[-1],
            "files": files,
            "environment": dict(os.environ),
            "signals": _signals(),
        }
        data = json.dumps(request).encode()
        try:
            socket.send_fds(door, [len(data).to_bytes(8, "big")], [1, 2, *files])
            door.sendall(data)
        except OSError:  # a signal to the process group has ended the waiting process
            return start_anew(path, arguments, files)
        door.close()
        return pid

    util.spawnv_passfds = start
    context._concrete_contexts["spawn"] = _Context()


def wait_to_serve(door: socket.socket) -> NoReturn:
    """Wait until the owner of `door` needs a fork server, then become it; exit if the owner has exited."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is signal.default_int_handler:
            signal.signal(number, signal.SIG_DFL)
    size, files, *_ = socket.recv_fds(door, 8, 64)
    if not size:
        os._exit(0)
    request = json.loads(door.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
    _place(files, [1, 2, *request["files"]])
    os.environ.clear()
    os.environ.update(request["environment"])
    _take_signals(*request["signals"])
    with open("/proc/self/comm", "w") as name:
        name.write("forkserver")
    sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = ["-c"]
    exec(request["program"], vars(sys.modules["__main__"]))
    os._exit(0)


def _place(files: list[int], numbers: list[int]) -> None:
    """Renumber the descriptors `files` as `numbers`, as in the other process, and close all other files."""
    beyond = max([*files, *numbers]) + 1
    for index, file in enumerate(files):
        os.dup2(file, beyond + index)
    for index, number in enumerate(numbers):
        os.dup2(beyond + index, number, inheritable=number in (1, 2))
    kept = {0, *numbers}
    for number in [int(name) for name in os.listdir(FILES)]:
        if number not in kept:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(number)


def _signals() -> tuple[list[int], list[int]]:
    """Return the signals that a process started now would ignore, and those that it would block."""
    ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]
    return ignored, [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])]


def _take_signals(ignored: list[int], waiting: list[int]) -> None:
    """Set up signals as in a new Python process whose parent has these `_signals`."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        if number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            continue  # Python ignores the first two itself; the server handles the last
        signal.signal(number, signal.SIG_IGN if number in ignored else usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, waiting)


class _Surroundings:
    """Streams and signals that a spawned process inherits, but not a process forked from a server."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        popen = get_spawning_popen()
        streams = [popen.DupFd(popen.duplicate_for_child(number)) for number in (1, 2)]
        return _inherit, (streams, *_signals())


def _inherit(streams: list[Any], ignored: list[int], waiting: list[int]) -> None:
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream.detach(), number)
        os.close(stream.detach())
    _take_signals(ignored, waiting)


class _Popen(popen_forkserver.Popen):
    def _launch(self, process: Any) -> None:
        if forkserver._forkserver._preload_modules == ["__main__"]:
            multiprocessing.set_forkserver_preload([])
        process._surroundings = _Surroundings()
        super()._launch(process)


class _Process(context.ForkServerProcess):
    _start_method = "spawn"

    @staticmethod
    def _Popen(process: Any) -> Any:  # noqa: N802  # multiprocessing's name
        return _Popen(process)


class _Context(context.ForkServerContext):
    """The context `spawn`, whose processes are forked from the server."""

    _name = "spawn"
    Process = _Process
