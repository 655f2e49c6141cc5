"""Numbers as people read them."""

from __future__ import annotations

import math
import shlex
from datetime import datetime
from typing import Any

from labrl.analysis.intervals import METHOD

UNKNOWN = "–"

INTERVAL = f"95 % interval ({METHOD})"
"""Heading of a column of intervals."""


def number(value: Any, digits: int = 4) -> str:
    """`digits` significant digits, thousands parted: 12,350 and 0.01235; a dash for what is undefined."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return UNKNOWN if value is None or isinstance(value, float) else str(value)
    size = abs(value)
    if size >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    if size and size < 1e-3:
        return f"{value:.{digits - 2}e}"
    text = f"{value:.{digits}g}"
    return text if "e" in text else f"{float(text):,}".removesuffix(".0")


def interval(low: float | None, high: float | None) -> str:
    """`335 to 358`; nothing where there is none."""
    known = [end is not None and math.isfinite(end) for end in (low, high)]
    return f"{number(low)} to {number(high)}" if all(known) else ""


def interval_by(low: float | None, high: float | None) -> str:
    """`95 % interval 335 to 358, stratified bootstrap`; nothing where there is none."""
    ends = interval(low, high)
    return f"95 % interval {ends}, {METHOD}" if ends else ""


def duration(seconds: float | None) -> str:
    """`2 h 05 min`, `3 min 20 s`, `8.1 s`."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def typed(command: Any) -> str:
    """A command as it was typed, in one line; empty where that was not recorded."""
    return shlex.join(map(str, command)) if isinstance(command, list) else str(command or "")


def moment(text: Any) -> str:
    """An ISO 8601 time to the minute, as it was written."""
    try:
        return datetime.fromisoformat(str(text)).strftime("%Y-%m-%d %H:%M UTC%z").removesuffix("+0000")
    except ValueError:
        return str(text or UNKNOWN)
