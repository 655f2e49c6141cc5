"""How a folder is claimed: by a JSON file in it, which only one process can make."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labrl.errors import InputError


def now() -> str:
    """The time as markers have it, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def place(value: Any, key: str) -> Path:
    """The folder that `key` names, absolute. Raises InputError where it names none."""
    if not str(value or "").strip():
        raise InputError(
            f"{key} is empty (perhaps a shell variable is not set): set {key}=<folder>",
            code="missing",
            key=key,
        )
    return Path(os.path.abspath(str(value)))


def check_free(folder: Path, written: Iterable[str], key: str) -> None:
    """Raises InputError where `folder` has files that would be written over.

    written: patterns of the names of all that is to be written there; key: what gives the folder.
    """
    there = sorted({path.name for pattern in written for path in folder.glob(pattern)})
    if there:
        raise InputError(
            f"{folder} contains files that labrl did not write and would overwrite: {', '.join(there)}. "
            f"Move them, or {another(key)}",
            code="range",
            key=key,
        )


def newer(path: Path, version: int, known: int) -> InputError:
    """The error for what a newer labrl wrote at `path`, in a format that this one does not know."""
    return InputError(
        f"{path} has format {version}, and this version of labrl reads formats up to {known}. Install the "
        "version of labrl that wrote it.",
        code="not-installed",
        key=str(path),
    )


def another(key: str) -> str:
    """What to type for another folder than the one that `key` gives."""
    return f"choose another folder with {key}=<folder>"


def claim(marker: Path, content: Mapping[str, Any]) -> None:
    """Make the folder of `marker` if need be, and the marker with `content` in it.

    Of several processes that try, exactly one succeeds; the others get FileExistsError. Raises OSError where
    the folder cannot be written.
    """
    marker.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    # Written elsewhere first: nobody may find it empty, nor a kill leave it so.
    whole = marker.with_name(f".{marker.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        _write_new(whole, text)
        try:
            os.link(whole, marker)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            _write_new(marker, text)
    finally:
        whole.unlink(missing_ok=True)


def _write_new(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
