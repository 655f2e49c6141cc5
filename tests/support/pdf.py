"""Read the figures that labrl writes as PDF."""

from __future__ import annotations

import re
import zlib
from pathlib import Path


def texts(path: Path) -> list[str]:
    """Return the texts of the figure, with `…` for each character or ligature that is not in ASCII, because a
    PDF has other numbers for these."""
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", path.read_bytes(), re.DOTALL)
    inflated = (zlib.decompress(stream) for stream in streams)
    drawing = next(stream for stream in inflated if stream.startswith(b"/DeviceRGB")).decode("latin-1")
    shown = re.findall(r"^BT\n(.*?)\nET$", drawing, re.DOTALL | re.MULTILINE)
    parts = ("".join(re.findall(r"\(((?:\\.|[^\\)])*)\)", one, re.DOTALL)) for one in shown)
    plain = (re.sub(r"\\(.)", r"\1", one).encode("latin-1").decode("utf-16-be") for one in parts)
    return [re.sub(r"[^ -~]", "…", one) for one in plain]
