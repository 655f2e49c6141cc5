"""Which living process works in a folder."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import weakref
from pathlib import Path
from types import TracebackType

_log = logging.getLogger(__name__)


class HeldError(Exception):
    """A living process works in the folder already; the message names it."""


class FolderLock:
    """Held while entered; the system takes it back when its process ends, by kill -9 too.

    On a file system without locks nothing is held, and that is said in the log.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        self._descriptor: int | None = None

    def __enter__(self) -> FolderLock:
        """Raises HeldError where another process, or this one, holds the folder."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise HeldError(holder or "unknown process") from None
        except OSError as error:
            _log.warning(
                "%s cannot be locked (%s): do not resume a run that is still alive", self.path, error
            )
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._descriptor = descriptor
        _held.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _let_go_of_copies() -> None:
    # A forked environment worker that outlives a killed session would keep the lock with its copy.
    for lock in list(_held):
        lock._close()


os.register_at_fork(after_in_child=_let_go_of_copies)
