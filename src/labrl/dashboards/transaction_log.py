"""What W&B's own log of a run holds already: the file `run-<id>.wandb`, written like LevelDB's logs.

A file header of 7 bytes, then blocks of 32 KiB. In them records of a header (checksum of 4 bytes, length
of 2, kind of 1; little-endian) and content; a record that does not fit is cut into first, middle and last.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 32 * 1024
_FILE_HEADER = 7
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def last_step(log: Path) -> int | None:
    """The step of the last row of history in `log`, which is a frame; None without any."""
    # Here, because its import takes seconds and only W&B's process pays for it.
    from wandb.proto import wandb_internal_pb2

    steps = []
    for content in _records(log.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(content)  # type: ignore[attr-defined]
        if record.HasField("history"):
            steps.append(record.history.step.num)
    return max(steps, default=None)


def _records(content: bytes) -> Iterator[bytes]:
    """The whole records of a log; it ends where a kill tore it."""
    at, parts = _FILE_HEADER, b""
    while at + _HEADER.size <= len(content):
        if _BLOCK - at % _BLOCK < _HEADER.size:  # no header fits into the rest of the block
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = _HEADER.unpack_from(content, at)
        at += _HEADER.size
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or at + length > len(content):
            return
        part = content[at : at + length]
        at += length
        if kind == _FULL:
            yield part
        elif kind == _FIRST:
            parts = part
        else:
            parts += part
            if kind == _LAST:
                yield parts
