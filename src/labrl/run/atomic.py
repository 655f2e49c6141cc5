"""Write files so that neither a reader nor a crash sees a partial one."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labrl.processes.secrets import redact


def sync_file(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, would survive a power failure. Does nothing
    if there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, content: bytes | memoryview) -> None:
    """Write a file and wait until it is on disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def copy_synced(source: Path, target: Path) -> None:
    """Copy a file and wait until the copy is on disk."""
    shutil.copyfile(source, target)
    sync_file(target)


class HashedFile:
    """A file that is written sequentially while its size and SHA-256 are computed.

    A disk error is kept until `finish`, because writers in C++ replace errors that occur during a write by
    others.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 (closed by finish)
        self._hash = hashlib.sha256()
        self._size = 0
        self._error: OSError | None = None

    def write(self, content: bytes | memoryview) -> int:
        """Append `content`, and return its number of bytes."""
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
        """Do nothing until `finish`. `torch.save` requires this method."""

    def finish(self) -> dict[str, int | str]:
        """Wait until everything is on disk, and return `size` (bytes) and `sha256`. Raises OSError."""
        with self._file:
            if self._error is not None:
                raise self._error
            self._file.flush()
            os.fsync(self._file.fileno())
        return {"size": self._size, "sha256": self._hash.hexdigest()}


def write_atomic(path: Path, content: str | bytes, durable: bool = True) -> None:
    """Replace `path` by `content` atomically: write a temporary file, sync it if `durable`, and rename it.

    Without `durable`, readers still never see a partial file, but a power failure may lose it.
    """
    # Without a UTF-8 locale, a path has surrogates, which stand for bytes.
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
    """Replace `path` by `content` as indented JSON without secrets, atomically. Numbers that are not finite
    become null."""
    text = json.dumps(as_known_to_json(redact(content)), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomic(path, text + "\n", durable)


def as_known_to_json(content: Any) -> Any:
    """Replace nan and infinity, which JSON does not have, by None."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {name: as_known_to_json(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [as_known_to_json(value) for value in content]
    return content
