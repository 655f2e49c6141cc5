"""Lock that a process holds on the folder in which it works."""

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
"""Name of the lock file in a folder. The file contains the name of the process that holds the lock."""

LOOK_SECONDS = 0.1
"""Time in seconds for which a process tries to take a lock. Another process may hold the lock briefly to
check it."""

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class FolderLock:
    """Context manager that holds the lock of a folder. The system releases the lock when the process ends,
    even after kill -9.

    On a file system without locks, nothing is locked, and a warning is logged.
    """

    def __init__(self, folder: Path, part_of: Path | None = None, patience: float = LOOK_SECONDS) -> None:
        """folder: the folder to lock; part_of: the folder that errors name, if `folder` is only a part of
        it; patience: time in seconds to wait for another process to release the lock."""
        self.path = folder / LOCK
        self._named = part_of or folder
        self._lock = FileLock(
            self.path, timeout=patience, poll_interval=0.005, thread_local=False, fallback_to_soft=False
        )

    def __enter__(self) -> FolderLock:
        """Take the lock. Raises BusyFolderError if another process or this process already holds the lock,
        and InputError if the folder cannot be written."""
        try:
            try:
                self._lock.acquire()
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                _log.warning(
                    "%s cannot be locked (%s): do not resume a run that is still running", self.path, error
                )
            self.path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        except OSError as error:
            self._lock.release()
            if isinstance(error, Timeout) and self.path.exists():
                why = f"it is in use ({self._written()})"
                fix = "Wait until that process ends, or stop it with Ctrl-C or kill; it can be resumed later"
                raise BusyFolderError.about(self._named, why, fix) from None
            why = f"it cannot be written ({error.strerror or error})"
            raise InputError.usage(self._named, why) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def holder(self) -> str | None:
        """Return the name of the process that holds the lock, without taking the lock or writing anything;
        None if no process holds it.

        Also returns None if the holder cannot be determined: without permission, or on a file system without
        locks.
        """
        try:
            with open(self.path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # readers do not exclude each other
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
