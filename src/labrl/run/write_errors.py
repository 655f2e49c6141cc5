"""Files that cannot be written for a while, without which training continues."""

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

    Each cause is reported when it first occurs, and its end when all files have been written. Whoever writes
    a file keeps what is missing and tries again.
    """

    def __init__(self) -> None:
        self.lacking: dict[Path, OSError] = {}
        """The first error of each file that is incomplete, in the order in which they occurred."""
        self._reported: set[int | None] = set()

    @contextmanager
    def tolerated(self, *paths: Path) -> Iterator[None]:
        """Context manager: continue after an OSError of writing these files or folders."""
        try:
            yield
        except OSError as error:
            for path in paths:
                self.failed(path, error)
        else:
            for path in paths:
                if self.lacking.pop(path, None) is not None and not self.lacking:
                    self._reported.clear()
                    _log.warning("all files in %s can be written again", path.parent)

    def failed(self, path: Path, error: OSError) -> None:
        """Record that `path` could not be written, and report the cause if it is new."""
        self.lacking.setdefault(path, error)
        if error.errno not in self._reported:
            self._reported.add(error.errno)
            _log.warning(
                "%s cannot be written (%s). This does not end training; files are completed when possible",
                *(path, _reason(error)),
            )

    def summary(self, folder: Path) -> str | None:
        """Return which files are incomplete and why, in one line; None if none is.

        folder: the folder that paths are relative to.
        """
        if not self.lacking:
            return None
        files = [os.path.relpath(path, folder) for path in self.lacking]
        return f"could not be written ({self.cause}): {', '.join(files)}"

    @property
    def cause(self) -> str:
        """The first error of the files that are incomplete; an empty string if none is."""
        return next(map(_reason, self.lacking.values()), "")


def write_all(path: Path, pending: bytearray) -> None:
    """Append `pending` to a file, and remove from it what was written, even if an OSError is raised."""
    with open(path, "ab", buffering=0) as file:
        while pending:
            written = file.write(pending)
            del pending[:written]
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
