"""Rows of metrics as arrays, from files that may be incomplete, contain duplicates, or still grow."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

Column = NDArray[np.float64]


class Rows(NamedTuple):
    """One table of one session."""

    columns: dict[str, Column]
    """Columns by name, of equal length, sorted by `frame`, which is always present; nan for empty cells and
    text."""
    warnings: list[str]
    """Messages about what was left out or is suspicious."""
    cut: bool
    """Whether an incomplete last line was left out: it is still being written, or its writer was killed."""


def read_rows(path: Path) -> Rows:
    """Read the table at `path`. If a frame occurs twice, the row written last is used. Without a file there
    are no rows.

    An incomplete last line is left out. The following are left out with a warning: lines with another number
    of cells than the header, rows without a frame, and rows whose `source` is not that of the last row,
    because scores of the two sources are not comparable and a resume may have switched `meta.rigorous_eval`.
    Infinite values stay, with a warning.
    """
    cells, warnings, cut = _cells(path)
    if "source" in cells.columns:
        same = pl.col("source").eq_missing(pl.col("source").last())
        others, cells = cells.filter(~same), cells.filter(same).drop("source")
        if len(others):
            warnings.append(
                f"{path.name}: {_rows(len(others))} up to frame {others['frame'][-1]:,.0f} left out: a "
                "resume changed meta.rigorous_eval, and scores of the two kinds are not comparable"
            )
    numbers = cells.cast(pl.Float64, strict=False).fill_null(float("nan"))
    columns = {column: numbers[column].to_numpy() for column in numbers.columns}
    if infinite := [column for column, values in columns.items() if np.isinf(values).any()]:
        warnings.append(f"{path.name}: infinite values in {', '.join(infinite)}")
    return Rows(columns, warnings, cut)


def read_table(path: Path) -> pl.DataFrame:
    """Read the rows of all sources as a data frame. Columns are integers, real numbers or text; empty cells
    are null."""
    cells, _, _ = _cells(path)
    return cells.with_columns(pl.col("frame").cast(pl.Int64), *map(_typed, cells.drop("frame")))


def known(table: Mapping[str, Column], name: str) -> Column:
    """Return the finite values of a column, or none if there is no such column."""
    values = table.get(name, np.empty(0))
    return values[np.isfinite(values)]


def _typed(texts: pl.Series) -> pl.Series:
    """Convert a column of text to the type that all its cells have."""
    known = texts.drop_nulls()
    for kind in (pl.Int64, pl.Float64):
        if known.cast(kind, strict=False).null_count() == 0:
            return texts.cast(kind)
    return texts


def _cells(path: Path) -> tuple[pl.DataFrame, list[str], bool]:
    """Return the rows of a table in order, what is wrong with it, and whether its last line is incomplete.

    Cells are text, null if they are empty, except for `frame`, a real number. If there is no file, or nothing
    readable in it, `frame` is the only column.
    """
    nothing = pl.DataFrame(schema={"frame": pl.Float64})
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return nothing, [], False
    except OSError as error:
        return nothing, [f"{path.name} cannot be read: {error.strerror or error}"], False
    whole = content[: content.rfind(b"\n") + 1]
    cut = len(whole) < len(content)
    # NUL bytes fill a page that was never written because of a power failure.
    text = whole.replace(b"\0", b"").decode(errors="replace").replace("\r", "")
    header, *lines = [line for line in text.split("\n") if line] or [""]
    if "frame" not in header.split(","):
        return nothing, [f"{path.name} has no column `frame`"] if header else [], cut
    fitting = [line for line in lines if line.count(",") == header.count(",")]
    table = pl.read_csv(io.StringIO("\n".join([header, *fitting, ""])), infer_schema=False)
    table = table.with_columns(pl.col("frame").cast(pl.Float64, strict=False))
    known = table.filter(pl.col("frame").is_finite())
    once = known.unique("frame", keep="last", maintain_order=True).sort("frame")
    faults = (
        (len(lines) - len(fitting), "with missing cells left out"),
        (len(table) - len(known), "without a frame left out"),
        (len(known) - len(once), "duplicated, the later ones are used"),
    )
    return once, [f"{path.name}: {_rows(count)} {what}" for count, what in faults if count], cut


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number} rows"
