"""Which living process works in a folder."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
import weakref
from pathlib import Path
from types import TracebackType

from labrl.errors import BusyFolderError, InputError

_log = logging.getLogger(__name__)

LOCK = ".lock"
"""In the folder: the file that is held, with who holds it."""

_LOOK_SECONDS = 0.1
"""How long one who merely looks whether a folder is held may keep one who wants to hold it waiting."""


class FolderLock:
    """Held while entered; the system takes it back when its process ends, by kill -9 too.

    On a file system without locks nothing is held, and that is said in the log.
    """

    def __init__(self, folder: Path, part_of: Path | None = None) -> None:
        """part_of: the folder that errors name, where `folder` is only a part of what is in use."""
        self.path = folder / LOCK
        self._named = part_of or folder
        self._descriptor: int | None = None

    def __enter__(self) -> FolderLock:
        """Raises BusyFolderError where another process, or this one, holds the folder, InputError where it
        cannot be written."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self._take(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise InputError(
                f"{self._named} cannot be written ({error.strerror or error})",
                code="usage",
                key=str(self._named),
            ) from error
        self._descriptor = descriptor
        _held.add(self)
        return self

    def _take(self, descriptor: int) -> None:
        """Lock the open file and write into it who has it."""
        try:
            _lock(descriptor)
        except BlockingIOError:
            raise BusyFolderError(
                f"{self._named} is in use ({_named_in(descriptor)}). Wait until that process ends, or "
                "interrupt it with Ctrl-C or kill <process>: it saves its state and can be resumed.",
                key=str(self._named),
            ) from None
        except OSError as error:
            _log.warning(
                "%s cannot be locked (%s): do not resume a run that is still alive", self.path, error
            )
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def holder(self) -> str | None:
        """Which living process holds the folder, without holding or writing anything; None: nobody.

        Also None where that cannot be found out: no permission, or a file system without locks.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # readers do not shut each other out
        except BlockingIOError:
            return _named_in(descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return None

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _lock(descriptor: int) -> None:
    """Take the lock. Raises BlockingIOError where another holds it for longer than a look."""
    patience = time.monotonic() + _LOOK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > patience:
                raise
            time.sleep(0.005)


def _named_in(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "unknown process"


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _let_go_of_copies() -> None:
    # A forked environment worker that outlives a killed session would keep the lock with its copy.
    for lock in list(_held):
        lock._close()


os.register_at_fork(after_in_child=_let_go_of_copies)
