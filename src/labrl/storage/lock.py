"""Lock of a folder by the process that works in it."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from labrl.errors import BusyFolderError, InputError

_log = logging.getLogger(__name__)

LOCK = ".lock"
"""File in the folder that is locked, with the holder's name."""

_LOOK_SECONDS = 0.1
"""Seconds for which a check of the lock may delay a process that wants to take it."""

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class FolderLock:
    """Held while entered; the system takes it back when its process ends, by kill -9 too.

    On a file system without locks nothing is held, and the log says so.
    """

    def __init__(self, folder: Path, part_of: Path | None = None) -> None:
        """part_of: the folder that errors name, where `folder` is only a part of what is in use."""
        self.path = folder / LOCK
        self._named = part_of or folder
        self._lock = FileLock(
            self.path, timeout=_LOOK_SECONDS, poll_interval=0.005, thread_local=False, fallback_to_soft=False
        )

    def __enter__(self) -> FolderLock:
        """Raise BusyFolderError where another process, or this one, holds the folder, InputError where it
        cannot be written."""
        try:
            try:
                self._lock.acquire()
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                _log.warning(
                    "%s cannot be locked (%s): do not resume a run that is still alive", self.path, error
                )
            self.path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        except OSError as error:
            self._lock.release()
            if isinstance(error, Timeout) and self.path.exists():
                raise BusyFolderError(
                    f"{self._named} is in use ({self._written()}). Wait until that process ends, or "
                    "interrupt it with Ctrl-C or kill <process>: it saves its state and can be resumed.",
                    key=str(self._named),
                ) from None
            raise InputError(
                f"{self._named} cannot be written ({error.strerror or error})",
                code="usage",
                key=str(self._named),
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def holder(self) -> str | None:
        """Return which living process holds the folder, without holding or writing anything; None: nobody.

        Also None where that cannot be found out: no permission, or a file system without locks.
        """
        try:
            with open(self.path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # readers do not shut each other out
        except BlockingIOError:
            return self._written()
        except OSError:
            return None
        return None

    def _written(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8", errors="replace").strip() or "unknown process"
        except OSError:
            return "unknown process"
