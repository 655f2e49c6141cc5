"""Tables of metrics as CSV files, with one header line and one line for each row.

The callbacks `LogTraining` and `Evaluate` of a session define the columns.
"""

from __future__ import annotations

import csv
import errno
import io
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labrl.errors import DamagedFileError
from labrl.run.atomic import write_atomic
from labrl.run.write_errors import WriteErrors
from labrl.types import INFO

if TYPE_CHECKING:  # It takes a while to import, and training does not need it.
    import polars as pl

Value = int | float | str | None

Column = NDArray[np.float64]

TEXT_COLUMNS = ("end", "source")
"""Columns with text: `end`, why a row was written at a frame that is not due, and `source`, the kind of
episodes."""

FINAL_SHARE = 0.1
"""Fraction of a session's frames, counted from its end, whose rows determine the final return."""


class CsvTable:
    """A CSV file to which rows are appended. The keys of the first row become the columns.

    None and nan become empty cells. Each row is flushed when it is appended. If writing fails, the row is
    kept and written together with a later row. An incomplete last line that a killed process left is removed.

    If a row has a new key, the file is rewritten with an additional column, so that no value is lost.
    """

    def __init__(self, path: Path, errors: WriteErrors | None = None) -> None:
        """path: the CSV file; errors: object that records the file while rows cannot be written."""
        self.path, self._errors = path, errors or WriteErrors()
        self._columns: list[str] | None = None
        self._waiting: list[dict[str, str]] = []

    def append(self, row: Mapping[str, Any]) -> None:
        """Append one row to the table. Columns that the row lacks stay empty."""
        cells = {key: _to_cell(value) for key, value in row.items()}
        self._waiting.append(cells)
        self.flush()

    def flush(self) -> None:
        """Write the rows that could not be written before, if the file can be written now."""
        if not self._waiting:
            return
        with self._errors.tolerated(self.path):
            columns = self._header()
            unknown = dict.fromkeys(key for cells in self._waiting for key in cells if key not in columns)
            if unknown:
                self._rewrite([*columns, *unknown], [*self._cells(), *self._waiting])
            else:
                self._write_waiting(columns)
            self._waiting = []

    def truncate_after(self, frame: int) -> int:
        """Remove the rows whose `frame` is larger than `frame`, as is necessary before a resume from `frame`.

        Returns the frame of the last remaining row, or 0 if there is none. Raises DamagedFileError if the
        file is not a table of metrics.
        """
        try:
            columns = self._header()
            if columns and "frame" not in columns:
                raise KeyError("frame")
            kept = [cells for cells in self._cells() if float(cells["frame"]) <= frame]
        except (KeyError, ValueError, csv.Error) as error:
            fix = "Restore it from a copy, or move it away to resume without its rows"
            why = f"it is not a table of metrics ({error})"
            raise DamagedFileError.about(self.path, why, fix) from error
        self._waiting = [cells for cells in self._waiting if float(cells["frame"]) <= frame]
        if columns:
            self._rewrite(columns, kept)
        return int(float(kept[-1]["frame"])) if kept else 0

    def _header(self) -> list[str]:
        """Return the names of the columns. If the file already exists, they are read from it once."""
        if self._columns is None:
            lines, cut = _whole_lines(self.path)
            if lines and cut:
                write_atomic(self.path, lines)  # without the incomplete line that a killed process left
            self._columns, _ = _split(lines.decode())
        return self._columns

    def _cells(self) -> list[dict[str, str]]:
        """Return the rows of the file, each with the text of its cells by column. Raises ValueError or
        csv.Error if the file is not a table."""
        columns, rows = _split(_whole_lines(self.path)[0].decode())
        return [dict(zip(columns, cells, strict=True)) for cells in rows if len(cells) == len(columns)]

    def _write_waiting(self, columns: list[str]) -> None:
        content = _lines(columns, self._waiting).encode()
        with open(self.path, "ab", buffering=0) as file:
            end = file.tell()
            try:
                if file.write(content) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(end)  # a partial row would corrupt the next one
                raise

    def _rewrite(self, columns: list[str], rows: list[dict[str, str]]) -> None:
        write_atomic(self.path, _lines(columns, [dict(zip(columns, columns, strict=True)), *rows]))
        self._columns = columns


class Table(NamedTuple):
    """The numbers in one table of a session."""

    columns: dict[str, Column]
    """Columns by name, of equal length, sorted by `frame`, which is always present; nan for empty cells and
    text."""
    warnings: list[str]
    """Messages about rows that were left out and values that are suspicious."""
    cut: bool
    """Whether an incomplete last line was left out because it is still being written or its writer was
    killed."""


def read_table(path: Path) -> Table:
    """Read the numbers of a table. If several rows have the same frame, the row written last is used. If the
    file does not exist, there are no rows.

    An incomplete last line is left out. The following are left out with a warning: lines whose number of
    cells differs from that of the header, rows without a frame, and rows whose `source` differs from that of
    the last row. The sources differ if a resume has changed `meta.rigorous_eval`, and scores of different
    sources are not comparable. Infinite values are kept, with a warning.
    """
    names, rows, warnings, cut = _read(path)
    if "frame" not in names:
        warnings += [f"{path.name} has no column `frame`"] if names else []
        return Table({"frame": np.empty(0)}, warnings, cut)
    place = names.index("frame")
    found = [(frame, cells) for cells in rows if math.isfinite(frame := _to_number(cells[place]))]
    latest = dict(found)
    faults = (
        (len(rows) - len(found), "without a frame left out"),
        (len(found) - len(latest), "duplicated, the later ones are used"),
    )
    warnings += [f"{path.name}: {_rows(count)} {what}" for count, what in faults if count]
    rows = [latest[frame] for frame in sorted(latest)]
    if "source" in names and rows:
        source = names.index("source")
        others = [row for row in rows if row[source] != rows[-1][source]]
        rows = [row for row in rows if row[source] == rows[-1][source]]
        if others:
            warnings.append(
                f"{path.name}: {_rows(len(others))} up to frame {float(others[-1][place]):,.0f} left out: a "
                "resume changed meta.rigorous_eval, and scores of the two kinds are not comparable"
            )
    cells = zip(*rows, strict=True) if rows else [()] * len(names)
    pairs = [pair for pair in zip(names, cells, strict=True) if pair[0] not in TEXT_COLUMNS]
    columns = {name: np.array([_to_number(text) for text in texts], np.float64) for name, texts in pairs}
    if infinite := [name for name, values in columns.items() if np.isinf(values).any()]:
        warnings.append(f"{path.name}: infinite values in {', '.join(infinite)}")
    return Table(columns, warnings, cut)


def read_frame(path: Path) -> pl.DataFrame:
    """Read a table with the rows of all sources as a data frame, sorted by `frame`, with one row for each
    frame.

    Columns have integers, floats or text; empty cells are null. If there are no rows, there are no columns
    either.
    """
    import polars as pl

    rows = read_rows(path)
    latest = {int(frame): row for row in rows if isinstance(frame := row.get("frame"), int | float)}
    found = [{**latest[frame], "frame": frame} for frame in sorted(latest)]
    return pl.DataFrame(found, infer_schema_length=None, strict=False)


def read_rows(path: Path) -> list[dict[str, Value]]:
    """Return the rows of a table, which may still be growing, in the order of the file; an empty list if the
    table cannot be read.

    Cells become integers, floats or text depending on their form; empty cells become None.
    """
    columns, rows, _, _ = _read(path)
    return [dict(zip(columns, map(_to_value, cells), strict=True)) for cells in rows]


def known(table: Mapping[str, Column], name: str) -> Column:
    """Return the finite values of a column; an empty array if there is no such column."""
    values = table.get(name, np.empty(0))
    return values[np.isfinite(values)]


def scores_in(train: Table, evaluation: Table) -> dict[str, Column]:
    """Return the evaluation rows of a session that have a return. If there are none, return the training rows
    that have a return.

    The columns are `frame`, `return_mean`, `wall`, `opt_step` and those of `env.info_keys`, [rows] each, in
    the order of the frames.
    """
    infos = [name for name in {**train.columns, **evaluation.columns} if name.startswith(INFO)]
    names = ("frame", "return_mean", "wall", "opt_step", *infos)
    for table in (evaluation.columns, train.columns):
        nothing = np.full(len(table["frame"]), np.nan)
        there = np.isfinite(table.get("return_mean", nothing))
        found = {name: table.get(name, nothing)[there] for name in names}
        if there.any():
            break
    return found


def final_return(frames: ArrayLike, returns: ArrayLike) -> float | None:
    """Return the mean return over the rows in the last tenth of the session: those with t_i > 0.9 t_N, and at
    least the last row.

    frames: the frames t_1, ..., t_N of the rows, in increasing order; returns: the return in each row.
    Returns None if there are no rows.
    """
    t, r = np.asarray(frames, dtype=np.float64), np.asarray(returns, dtype=np.float64)
    return float(r[(t > (1 - FINAL_SHARE) * t[-1]) | (t == t[-1])].mean()) if len(t) else None


def final_values(scores: Mapping[str, Column]) -> dict[str, Any]:
    """Return `final_return`, and under `info` the same mean of each number of `env.info_keys`, over the rows
    that have it. scores: result of `scores_in`."""
    info: dict[str, float | None] = {}
    for name, column in scores.items():
        if name.startswith(INFO) and (there := np.isfinite(column)).any():
            info[name.removeprefix(INFO)] = final_return(scores["frame"][there], column[there])
    return {"final_return": final_return(scores["frame"], scores["return_mean"]), "info": info}


def _read(path: Path) -> tuple[list[str], list[list[str]], list[str], bool]:
    """Return the columns of a table, the cells of each row as text, warnings about the file, and whether its
    last line is incomplete."""
    try:
        whole, cut = _whole_lines(path)
    except OSError as error:
        return [], [], [f"{path.name} cannot be read: {error.strerror or error}"], False
    try:
        # NUL bytes fill a page that was never written because of a power failure.
        columns, rows = _split(whole.replace(b"\0", b"").decode(errors="replace"))
    except csv.Error as error:
        return [], [], [f"{path.name} cannot be read: {error}"], cut
    fitting = [cells for cells in rows if len(cells) == len(columns)]
    lacking = len(rows) - len(fitting)
    warnings = [f"{path.name}: {_rows(lacking)} with missing cells left out"] if lacking else []
    return columns, fitting, warnings, cut


def _split(text: str) -> tuple[list[str], list[list[str]]]:
    """Split the text of a table into its columns and the cells of each further line. Raises csv.Error."""
    columns, *rows = [cells for cells in csv.reader(io.StringIO(text, newline="")) if cells] or [[]]
    return columns, rows


def _whole_lines(path: Path) -> tuple[bytes, bool]:
    """Return the complete lines of a file, which need not exist, and whether an incomplete one follows."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return b"", False
    end = content.rfind(b"\n") + 1
    return content[:end], end < len(content)


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number} rows"


def _lines(columns: list[str], rows: Iterable[dict[str, str]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writerows(rows)
    return text.getvalue()


def _to_cell(value: Any) -> str:
    if type(value) is float:  # most cells
        return "" if value != value else str(value)
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool | int | float | str):
        return str(value)  # for a float, the shortest text that reads back as the same float
    raise TypeError(f"a cell of a table must be a number, text or None, got {type(value).__qualname__}")


def _to_value(cell: str) -> Value:
    if cell == "":
        return None
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def _to_number(cell: str) -> float:
    """Return the number in a cell; nan if the cell is empty or contains text."""
    try:
        return float(cell)
    except ValueError:
        return math.nan
