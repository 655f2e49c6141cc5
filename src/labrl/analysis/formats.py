"""Formatting of numbers, names, tables and interval methods for people, without loading NumPy."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from labrl.processes.secrets import redact

UNKNOWN = "–"

RUNS_FOR_IQM = 10
"""Minimum number of runs for the interquartile mean and the bootstrap; with fewer runs, the mean and
Student's t are used."""
BOOTSTRAP = "stratified bootstrap"
STUDENT = "Student's t"
METHODS = f"{STUDENT} for 3 to 9 seeds, {BOOTSTRAP} for 10 or more"
"""Text on the methods of all intervals except those of a probability of improvement."""


def number(value: Any, digits: int = 4) -> str:
    """Format a number with `digits` significant digits and thousands separators, such as 12,350 or 0.01235; a
    dash if the number is undefined."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return UNKNOWN if value is None or isinstance(value, float) else str(value)
    size = abs(value)
    if size >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    if size and size < 1e-3:
        return f"{value:.{digits - 2}e}"
    text = f"{value:.{digits}g}"
    return text if "e" in text else f"{float(text):,}".removesuffix(".0")


def alike(*values: Any) -> list[str]:
    """Format numbers with the same number of decimals, such as `163.0`, `159.5` and `172.6`.

    The largest number has at most four significant digits, or all digits of its integer part. If any number
    is undefined or all are tiny, `number` formats each of them.
    """
    sizes = [abs(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
    if len(sizes) < len(values) or not max(sizes) >= 1e-3:
        return [number(value) for value in values]
    most = max(3 - math.floor(math.log10(float(f"{max(sizes):.3e}"))), 0)
    decimals = max(len(f"{size:.{most}f}".partition(".")[2].rstrip("0")) for size in sizes)
    return [f"{round(value, decimals) + 0.0:,.{decimals}f}" for value in values]  # + 0.0: no -0.00


def short_number(value: float, digits: int = 4) -> str:
    """Format a number with `digits` significant digits and a suffix, such as 2M, 1.5k or 0.05; numbers of
    1e13 or more have an exponent."""
    if abs(value) >= 1e13:
        return f"{value:.{digits}g}"
    for letter, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 0.9999999:
            return f"{value / size:.{digits}g}{letter}"
    return f"{value:.{digits}g}"


def time_unit(longest: float) -> tuple[str, float]:
    """Return the name and the length in seconds of the largest time unit that fits at least twice into
    `longest` seconds, or of the second if no unit does."""
    for name, seconds in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if longest >= 2 * seconds:
            return name, seconds
    return "seconds", 1.0


def score(value: float | None, thousands: int = 0) -> str:
    """Format a return with one decimal, such as 234.5; below 1, with three significant digits, such as
    0.0123.

    thousands: number of decimals for values of 1,000 or more. Values of 1e12 or more have an exponent; None
    becomes `-`.
    """
    if value is None:
        return "-"
    size = abs(value)
    if size >= 1e12 or 0 < size < 0.95:
        return f"{value:.3g}"
    return f"{value:,.{1 if size < 1000 else thousands}f}"


def brackets(value: float | None, low: float | None, high: float | None) -> str:
    """Format a value with its interval, such as `12.5 [11.0, 14.0]`; only the value if there is no
    interval."""
    if low is None:
        return number(value)
    text, *ends = alike(value, low, high)
    return f"{text} [{', '.join(ends)}]"


def shorten(text: str, width: int) -> str:
    """Cut text in the middle to `width` characters, because the end usually distinguishes names."""
    if len(text) <= width:
        return text
    front = (width - 1) // 2
    return f"{text[:front]}…{text[len(text) - (width - 1 - front) :]}"


def join_names(names: Sequence[str], most: int = 3) -> str:
    """Join names, and write at most `most` of them: `a`, `a, b and c`, `a, b, c and 5 more`."""
    more = [f"{len(names) - most} more"] if len(names) > most else []
    *others, last = [*names[:most], *more]
    return f"{', '.join(others)} and {last}" if others else last


def align_columns(rows: Sequence[Sequence[str]], right: Collection[int] = (), indent: str = "") -> list[str]:
    """Return the lines of a table, each after `indent`, with two spaces between the columns.

    right: indices of the right-aligned columns.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.rjust if place in right else str.ljust for place in range(len(widths))]
    lines = (zip(sides, row, widths, strict=True) for row in rows)
    return [indent + "  ".join(pad(cell, width) for pad, cell, width in line).rstrip() for line in lines]


def widths_that_fit(
    cells: Sequence[Mapping[str, str]], columns: Sequence[str], dispensable: Sequence[str], width: int | None
) -> dict[str, int]:
    """Return the columns of a table that fit into `width` characters, with two spaces between columns, and
    their widths.

    dispensable: columns that may be dropped, in this order; all other columns are always kept.
    """
    widths = {name: max(len(name), *(len(row[name]) for row in cells)) for name in columns}
    for name in dispensable:
        if width is None or sum(widths.values()) + 2 * (len(widths) - 1) <= width:
            break
        del widths[name]
    return widths


def method_of(number_of_runs: int | None) -> str:
    """Return the name of the interval method for `number_of_runs` runs; for None, a text on the methods for
    all numbers of runs."""
    if number_of_runs is None:
        return METHODS
    return BOOTSTRAP if number_of_runs >= RUNS_FOR_IQM else STUDENT


def interval(low: float | None, high: float | None, value: float | None = None) -> str:
    """Format an interval, such as `335.0 to 358.2`, with the decimals of `value` if there is one; empty if
    there is no interval."""
    known = [end is not None and math.isfinite(end) for end in (low, high)]
    ends = alike(low, high) if value is None else alike(low, high, value)[:2]
    return " to ".join(ends) if all(known) else ""


def interval_heading(runs: int | None = None) -> str:
    """Return the heading of a column of intervals, with the method for `runs` runs; for None, with the
    methods for all numbers of runs."""
    return f"95 % interval ({method_of(runs)})"


def interval_by(low: float | None, high: float | None, value: float | None, runs: int) -> str:
    """Format an interval with its method, such as `95 % interval 335.0 to 358.2, Student's t`; see
    `interval`.

    runs: number of runs from which the interval was computed.
    """
    ends = interval(low, high, value)
    return f"95 % interval {ends}, {method_of(runs)}" if ends else ""


def duration(seconds: float | None) -> str:
    """Format a time span in its two largest units, such as `2 h 5 min` or `3 min 20 s`; below 10 seconds,
    with one decimal, such as `8.1 s`."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    whole = round(seconds)
    for unit, name, part, of_part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // part} {of_part}"
    return f"{whole if seconds >= 10 else number(round(seconds, 1))} s"


def typed(command: Any) -> str:
    """Return a recorded command line as one line without secrets; empty if none was recorded."""
    command = redact(command)
    return shlex.join(map(str, command)) if isinstance(command, list) else str(command or "")


def moment(text: Any) -> str:
    """Format an ISO 8601 time to the minute, in the time zone in which it was written."""
    try:
        return datetime.fromisoformat(str(text)).strftime("%Y-%m-%d %H:%M UTC%z").removesuffix("+0000")
    except ValueError:
        return str(text or UNKNOWN)
