"""Rows of metrics as CSV, with one header line and one line for each row."""

from __future__ import annotations

import csv
import errno
import io
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labrl.errors import DamagedFileError
from labrl.run.atomic import write_atomic
from labrl.run.write_errors import WriteErrors

Value = int | float | str | None


class CsvTable:
    """A CSV file to which rows are appended. The keys of the first row are its columns.

    None and nan are empty cells. Each row is flushed when it is appended; if a write fails, the row is kept
    and written with a later one. An incomplete last line, left by a killed process, is removed.

    If a row has a new key, the file is rewritten with this column added, so that no value is lost.
    """

    def __init__(self, path: Path, errors: WriteErrors | None = None) -> None:
        """errors: where it is recorded if rows cannot be written."""
        self.path, self._errors = path, errors or WriteErrors()
        self._columns: list[str] | None = None
        self._waiting: list[dict[str, str]] = []

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row. Missing columns stay empty."""
        cells = {key: _to_cell(value) for key, value in row.items()}
        self._waiting.append(cells)
        self.flush()

    def flush(self) -> None:
        """Write the rows that could not be written before, if this is possible now."""
        if not self._waiting:
            return
        with self._errors.tolerated(self.path):
            columns = self._header()
            unknown = dict.fromkeys(key for cells in self._waiting for key in cells if key not in columns)
            if unknown:
                self._rewrite([*columns, *unknown], [*_read_cells(self.path), *self._waiting])
            else:
                self._write_waiting(columns)
            self._waiting = []

    def truncate_after(self, frame: int) -> int:
        """Cut the table back to the rows whose `frame` is at most `frame`, as a resume from there needs.

        Returns the frame of the last remaining row, or 0 if there is none. Raises DamagedFileError if the
        file is not a table of metrics.
        """
        try:
            columns = self._header()
            if columns and "frame" not in columns:
                raise KeyError("frame")
            kept = [cells for cells in _read_cells(self.path) if float(cells["frame"]) <= frame]
        except (KeyError, ValueError, csv.Error) as error:
            raise DamagedFileError(
                f"{self.path} is not a table of metrics ({error}). Restore it from a copy, or move it away "
                "to resume without its rows.",
                key=str(self.path),
            ) from error
        self._waiting = [cells for cells in self._waiting if float(cells["frame"]) <= frame]
        if columns:
            self._rewrite(columns, kept)
        return int(float(kept[-1]["frame"])) if kept else 0

    def _header(self) -> list[str]:
        """Return the columns, which are read once if the file already exists."""
        if self._columns is None:
            lines = _whole_lines(self.path)
            if lines and len(lines) < len(self.path.read_bytes()):
                write_atomic(self.path, lines)  # without an incomplete line, left by a kill
            self._columns = next(csv.reader(io.StringIO(lines.decode())), [])
        return self._columns

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


def read_rows(path: Path) -> list[dict[str, Value]]:
    """Return the rows of a table that may still be growing, or an empty list if it cannot be read.

    Cells become integers, floats or text depending on their form; empty cells become None.
    """
    try:
        rows = _read_cells(path)
    except (OSError, ValueError):
        return []
    return [{column: _to_value(cell) for column, cell in cells.items()} for cells in rows]


def _whole_lines(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return b""
    return content[: content.rfind(b"\n") + 1]


def _read_cells(path: Path) -> list[dict[str, str]]:
    """Return the text of each cell by column. Raises ValueError if the file is not a table."""
    reader = csv.reader(io.StringIO(_whole_lines(path).decode(), newline=""))
    try:
        columns = next(reader, [])
        return [dict(zip(columns, cells, strict=True)) for cells in reader if len(cells) == len(columns)]
    except csv.Error as error:
        raise ValueError(str(error)) from error


def _lines(columns: list[str], rows: Iterable[dict[str, str]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writerows(rows)
    return text.getvalue()


def _to_cell(value: Any) -> str:
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
