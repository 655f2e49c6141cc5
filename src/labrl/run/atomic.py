"""Write files so that no reader sees a partial file, and no crash leaves one.

A checkpoint is a folder, which `CheckpointStore.write` makes appear as a whole.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from labrl.processes.secrets import redact

_log = logging.getLogger(__name__)


def sync_file(path: Path) -> None:
    """Wait until the content of a file, or the list of files in a folder, would survive a power failure. Do
    nothing if `path` does not exist. On a file system that cannot sync folders, a warning is logged once."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
        _warn_of_folders(os.strerror(error.errno))
    finally:
        os.close(descriptor)


@functools.cache
def _warn_of_folders(why: str) -> None:
    _log.warning("folders cannot be synced here (%s): a power failure may lose the newest files", why)


def write_synced(path: Path, content: bytes | memoryview) -> None:
    """Write a file, and wait until its content is on disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def copy_synced(source: Path, target: Path) -> None:
    """Copy a file and wait until the copy is on disk."""
    shutil.copyfile(source, target)
    sync_file(target)


class HashedFile:
    """A file whose size and SHA-256 are computed while it is written sequentially.

    A disk error is raised only by `finish`, because writers in C++ replace errors during a write with other
    errors.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 (closed by finish)
        self._hash = hashlib.sha256()
        self._size = 0
        self._error: OSError | None = None

    def write(self, content: bytes | memoryview) -> int:
        """Append `content` to the file, and return the size of `content` in bytes."""
        size = memoryview(content).nbytes
        if self._error is None:
            try:
                self._file.write(content)
                self._hash.update(content)
                self._size += size
            except OSError as error:
                self._error = error
        return size

    def flush(self) -> None:
        """Do nothing, because `finish` flushes the file. `torch.save` requires this method."""

    def finish(self) -> dict[str, int | str]:
        """Wait until the file is on disk, and return its `size` in bytes and its `sha256`. Raises OSError."""
        with self._file:
            if self._error is not None:
                raise self._error
            self._file.flush()
            os.fsync(self._file.fileno())
        return {"size": self._size, "sha256": self._hash.hexdigest()}


def write_atomic(path: Path, content: str | bytes, durable: bool = True) -> None:
    """Replace the file `path` with `content` atomically: write a temporary file, sync it if `durable`, and
    rename it.

    Without `durable`, readers still never see a partial file, but the file may be lost in a power failure.
    """
    # Without a UTF-8 locale, text that contains a path has surrogates, which represent bytes.
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    # With the process id, two processes that write the same file use different temporary ones.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if durable:
            write_synced(temporary, data)
        else:
            temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_file(path.parent)


def write_json(path: Path, content: Any, durable: bool = True) -> None:
    """Replace the file `path` atomically with `content` as indented JSON without secrets. Numbers that are
    not finite become null."""
    write_atomic(path, json.dumps(as_json(redact(content)), indent=2, ensure_ascii=False) + "\n", durable)


def as_json(content: Any) -> Any:
    """Return nested data as they are read back from JSON: with lists in place of tuples, text as keys, and
    None in place of nan and infinity, which JSON does not have."""
    return json.loads(json.dumps(content), parse_constant=lambda name: None)
