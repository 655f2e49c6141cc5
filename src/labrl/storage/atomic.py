"""Writing files so that a reader, or a crash, never meets half of one."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def sync_file(path: Path) -> None:
    """Wait until what was written to a file, or the names in a folder, would survive a loss of power; nothing
    to do where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, content: bytes | memoryview) -> None:
    """Write a file and wait until it lies on the disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def copy_synced(source: Path, target: Path) -> None:
    """Copy a file and wait until it lies on the disk."""
    shutil.copyfile(source, target)
    sync_file(target)


class HashedFile:
    """A file to write from front to back, whose size and SHA-256 are known without reading it again.

    An error of the disk is kept until `finish`, because writers in C++ turn one that meets them on the
    way into something else.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 (closed by finish)
        self._hash = hashlib.sha256()
        self._size = 0
        self._error: OSError | None = None

    def write(self, content: bytes | memoryview) -> int:
        """Append; returns the number of bytes."""
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
        """Nothing before `finish`; part of what `torch.save` expects of a file."""

    def finish(self) -> dict[str, int | str]:
        """Wait until everything lies on the disk; returns `size` (bytes) and `sha256`. Raises OSError."""
        with self._file:
            if self._error is not None:
                raise self._error
            self._file.flush()
            os.fsync(self._file.fileno())
        return {"size": self._size, "sha256": self._hash.hexdigest()}


def write_atomic(path: Path, content: str | bytes, durable: bool = True) -> None:
    """Replace `path` by `content` at once: written beside, synced where `durable`, renamed.

    Without `durable` a reader still never sees half a file; only a loss of power may lose it.
    """
    # Without a UTF-8 locale, a path has surrogates, which stand for bytes.
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    # the process id keeps two processes that write the same file from sharing a temporary one
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
    """Replace `path` by `content` as indented JSON, at once; numbers that are not finite become null."""
    text = json.dumps(_known_to_json(content), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomic(path, text + "\n", durable)


def _known_to_json(content: Any) -> Any:
    """Without nan and infinity, which JSON has no word for."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {name: _known_to_json(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_known_to_json(value) for value in content]
    return content
