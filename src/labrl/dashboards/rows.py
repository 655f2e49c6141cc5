"""The rows of a session's tables, read while it writes them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from labrl.storage.run_folder import SessionFolder

Metrics = dict[str, float]


def rows_between(session: SessionFolder, after: int, upto: int) -> list[tuple[int, Metrics]]:
    """What both tables hold at the frames in (after, upto], in order: each frame once, with its metrics.

    Metrics are named `train/<column>` and `eval/<column>`; text and empty cells are left out.
    """
    merged: dict[int, Metrics] = {}
    for table, path in (("train", session.train_csv), ("eval", session.eval_csv)):
        for row in _whole_rows(path):
            frame = int(row.pop("frame"))
            if after < frame <= upto:
                found = merged.setdefault(frame, {})
                found.update({f"{table}/{column}": value for column, value in row.items()})
    return sorted(merged.items())


def last_frame(table: Path) -> int:
    """Of its rows; -1 where there is none."""
    return max((int(row["frame"]) for row in _whole_rows(table)), default=-1)


def _whole_rows(path: Path) -> Iterator[Metrics]:
    """The numbers of each line that has been written to its end. Unlike `CsvTable`, mends nothing."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    text = content[: content.rfind(b"\n") + 1].decode()
    for cells in csv.DictReader(io.StringIO(text, newline="")):
        numbers = {}
        for column, cell in cells.items():
            try:
                numbers[column] = float(cell)
            except (TypeError, ValueError):
                continue
        if "frame" in numbers:
            yield numbers
