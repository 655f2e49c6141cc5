"""Rows of metrics as arrays, from files that may be cut, doubled or still growing."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

SOURCES = {"training": 0.0, "evaluation": 1.0}
"""Numbers that stand for the episodes of which a score is, in the column `source`."""


@dataclass(frozen=True)
class Rows:
    """One table of one session."""

    columns: dict[str, Column] = field(default_factory=lambda: {"frame": np.empty(0)})
    """Column by name, all of one length, sorted by `frame`; nan where a cell is empty.

    `frame` is always there. Columns of text are not, except `source` as numbers of `SOURCES`.
    """
    warnings: list[str] = field(default_factory=list)
    """What was left out or looks wrong, in words."""
    cut: bool = False
    """Whether half a last line was left out: still being written, or its writer was killed."""


def read_rows(path: Path) -> Rows:
    """The table at `path`: each frame once, the row that was written last; none if there is no file.

    Left out are half a last line, and with a warning lines with another number of cells than the header
    and rows without a frame. Infinite values stay and are warned of.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Rows()
    except OSError as error:
        return Rows(warnings=[f"{path.name} cannot be read: {error.strerror or error}"])
    warnings: list[str] = []
    whole = content[: content.rfind(b"\n") + 1]
    cut = len(whole) < len(content)
    # NUL: what a loss of power leaves of a page that was never written
    lines = list(csv.reader(io.StringIO(whole.replace(b"\0", b"").decode(errors="replace"), newline="")))
    header, table = (lines[0], [line for line in lines[1:] if line]) if lines else ([], [])
    fitting = [line for line in table if len(line) == len(header)]
    if len(fitting) < len(table):
        warnings.append(f"{path.name}: {_rows(len(table) - len(fitting))} with missing cells left out")
    if "frame" not in header:
        return Rows(warnings=[f"{path.name} has no column `frame`"] if header else [], cut=cut)
    columns = {
        name: values
        for name, cells in zip(header, zip(*fitting, strict=True), strict=False)
        if (values := _numbers(cells)) is not None
    }
    columns.setdefault("frame", np.full(len(fitting), np.nan))
    return Rows(_in_order(columns, path.name, warnings), warnings, cut)


def of_one_source(scores: Rows, name: str) -> Rows:
    """The rows whose source is that of the last row, without this column; a warning if others are left out.

    Scores of the two sources do not compare: a resume may have switched `meta.rigorous_eval` on or off.
    """
    columns = {column: values for column, values in scores.columns.items() if column != "source"}
    source = scores.columns.get("source", np.empty(0))
    same = source == source[-1:]
    if same.all():
        return Rows(columns, scores.warnings, scores.cut)
    frame = columns["frame"]
    warning = (
        f"{name}: {_rows(int((~same).sum()))} up to frame {frame[~same][-1]:,.0f} left out, "
        "from before a resume changed meta.rigorous_eval: scores of the two kinds do not compare"
    )
    kept = {column: values[same] for column, values in columns.items()}
    return Rows(kept, [*scores.warnings, warning], scores.cut)


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number} rows"


def _numbers(cells: tuple[str, ...]) -> Column | None:
    """A column's cells as numbers, nan for anything else; None if they are text throughout."""
    try:
        return np.array([cell or "nan" for cell in cells], dtype=np.float64)
    except ValueError:
        values = np.array([_number(cell) for cell in cells])
        return None if np.isnan(values).all() else values


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return SOURCES.get(cell, np.nan)


def _in_order(columns: dict[str, Column], name: str, warnings: list[str]) -> dict[str, Column]:
    """Sorted by frame, the last of the rows with one frame kept."""
    frame = columns["frame"]
    known = np.isfinite(frame)
    if not known.all():
        warnings.append(f"{name}: {_rows(int((~known).sum()))} without a frame left out")
    order = np.flatnonzero(known)
    order = order[np.argsort(frame[order], kind="stable")]
    last = np.append(np.diff(frame[order]) > 0, True)[: len(order)]
    if not last.all():
        warnings.append(f"{name}: {_rows(int((~last).sum()))} doubled, the later ones count")
    kept = {column: values[order[last]] for column, values in columns.items()}
    infinite = [column for column, values in kept.items() if np.isinf(values).any()]
    if infinite:
        warnings.append(f"{name}: infinite values in {', '.join(infinite)}")
    return kept
