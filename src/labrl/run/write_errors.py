"""Tolerance of files that temporarily cannot be written, so that training continues."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_log = logging.getLogger(__name__)


class WriteErrors:
    """The files that a process could not write, for instance on a full or read-only disk.

    Each cause is reported when it first occurs, and its end is reported once all files have been written. The
    writer of a file must keep the missing content and try again.
    """

    def __init__(self) -> None:
        self.lacking: dict[Path, OSError] = {}
        """The first error of each incomplete file, by path, in the order in which the errors occurred."""
        self._reported: set[int | None] = set()

    @contextmanager
    def tolerated(self, path: Path) -> Iterator[None]:
        """Context manager: record an OSError from writing `path`, and continue after the context."""
        try:
            yield
        except OSError as error:
            self.failed(path, error)
        else:
            if self.lacking.pop(path, None) is not None and not self.lacking:
                self._reported.clear()
                _log.warning("all files in %s can be written again", path.parent)

    def failed(self, path: Path, error: OSError) -> None:
        """Record that `path` could not be written, and report the cause if it has not been reported yet."""
        self.lacking.setdefault(path, error)
        if error.errno not in self._reported:
            self._reported.add(error.errno)
            _log.warning(
                "%s cannot be written (%s). Training continues, and files are completed when possible",
                *(path, _reason(error)),
            )

    def summary(self, folder: Path) -> str | None:
        """Return a line that names the incomplete files and the cause; None if no file is incomplete.

        folder: the folder to which the paths in the line are relative.
        """
        if not self.lacking:
            return None
        files = [os.path.relpath(path, folder) for path in self.lacking]
        return f"could not write {', '.join(files)} ({self.cause})"

    @property
    def cause(self) -> str:
        """Text of the first error of the incomplete files; an empty string if no file is incomplete."""
        return next(map(_reason, self.lacking.values()), "")


def write_all(path: Path, pending: bytearray) -> None:
    """Append `pending` to a file. The bytes that were written are removed from `pending`, even if OSError is
    raised."""
    with open(path, "ab", buffering=0) as file:
        while pending:
            written = file.write(pending)
            del pending[:written]
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
