"""How a folder is claimed: by a JSON file in it, which only one process can make."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def now() -> str:
    """The time as markers have it, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def claim(marker: Path, content: Mapping[str, Any]) -> None:
    """Make the folder of `marker` if need be, and the marker with `content` in it.

    Of several processes that try, exactly one succeeds; the others get FileExistsError. Raises OSError where
    the folder cannot be written.
    """
    marker.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
