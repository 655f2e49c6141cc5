"""Tests of tables of metrics: rows are written at once, read back as written, and survive kills."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disk_limit import file_size_limit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import damaged

from labrl.run.tables import CsvTable, read_rows

# Text that looks like a number is read back as a number, and empty text as None; no metric has such values.
TEXT = st.text(min_size=1).filter(lambda text: not looks_like_number(text) and text.isprintable())
VALUES = st.none() | st.integers() | st.floats() | TEXT
COLUMNS = st.lists(st.text("abc_,\"'/ é", min_size=1), min_size=1, max_size=4, unique=True)


def looks_like_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def expected(value: Any) -> Any:
    """Return the value as it is read back: None for NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(COLUMNS, st.data())
def test_rows_read_back_as_written(tmp_path: Path, columns: list[str], data: st.DataObject) -> None:
    path = tmp_path / "t.csv"
    path.unlink(missing_ok=True)
    rows = data.draw(st.lists(st.fixed_dictionaries(dict.fromkeys(columns, VALUES)), min_size=1, max_size=4))
    table = CsvTable(path)
    for row in rows:
        table.append(row)
    expected_rows = [{column: expected(value) for column, value in row.items()} for row in rows]
    assert read_rows(path) == expected_rows


def test_table_is_plain_csv_with_one_header(tmp_path: Path) -> None:
    table = CsvTable(tmp_path / "train.csv")
    table.append(
        {"frame": 16, "loss": np.float32(0.5), "kl": math.nan, "lr": np.float64(3e-4), "n": np.int64(2)}
    )
    CsvTable(tmp_path / "train.csv").append({"frame": 32, "loss": None, "lr": 1e-4})
    assert (tmp_path / "train.csv").read_text() == "frame,loss,kl,lr,n\n16,0.5,,0.0003,2\n32,,,0.0001,\n"


def test_new_key_becomes_a_new_column(tmp_path: Path) -> None:
    table = CsvTable(tmp_path / "t.csv")
    table.append({"frame": 1, "loss": 2.0})
    table.append({"frame": 2, "loss": 1.0, "kl": 0.1})
    table.append({"frame": 3, "kl": 0.2})
    with open(tmp_path / "t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"frame": "1", "loss": "2.0", "kl": ""},
        {"frame": "2", "loss": "1.0", "kl": "0.1"},
        {"frame": "3", "loss": "", "kl": "0.2"},
    ]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=20).map(sorted), st.integers(0, 110))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_table_is_truncated_after_a_frame(tmp_path: Path, frames: list[int], cut: int) -> None:
    path = tmp_path / "t.csv"
    path.unlink(missing_ok=True)
    table = CsvTable(path)
    for frame in frames:
        table.append({"frame": frame, "x": frame / 3})
    CsvTable(path).truncate_after(cut)
    kept = [frame for frame in frames if frame <= cut]
    assert [row["frame"] for row in read_rows(path)] == kept
    truncated = path.read_text()
    CsvTable(path).append({"frame": 999, "x": 0.0})
    assert path.read_text() == truncated + "999,0.0\n", "the appended row has other columns"


LONG = b"x" * 200_000 + b"\n"  # longer than the csv module's limit for one cell


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\n1,2\n", b"a,b\n1,2\n", b"frame\nthree\n", b"a,b\n", b"frame\n" + LONG, LONG]
)
def test_file_that_is_not_a_table_is_refused_and_unchanged(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes(content)
    with damaged(path):
        CsvTable(path).truncate_after(100)
    assert path.read_bytes() == content
    if max(content) > 127 or LONG in content:
        assert read_rows(path) == []


def test_incomplete_row_left_by_a_kill_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    table = CsvTable(path)
    table.append({"frame": 1, "loss": 0.25})
    table.append({"frame": 2, "loss": 0.125})
    content = path.read_bytes()
    for end in range(len(content)):
        path.write_bytes(content[:end])
        again = CsvTable(path)
        again.append({"frame": 3, "loss": 0.5})
        rows = read_rows(path)
        assert rows[-1] == {"frame": 3, "loss": 0.5}
        assert [row["frame"] for row in rows[:-1]] == [1, 2][: len(rows) - 1]
        assert all(row["loss"] in (0.25, 0.125, 0.5) for row in rows)


def test_rows_that_do_not_fit_on_a_full_disk_are_written_later(tmp_path: Path) -> None:
    table = CsvTable(tmp_path / "t.csv")
    table.append({"frame": 1})

    with file_size_limit(9):  # room for half of the next row
        table.append({"frame": 2})
        table.append({"frame": 3})
    assert [row["frame"] for row in read_rows(tmp_path / "t.csv")] == [1], "a waiting row is in the file"
    table.append({"frame": 4})
    assert (tmp_path / "t.csv").read_text() == "frame\n1\n2\n3\n4\n"


def test_value_that_does_not_fit_a_cell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="list"):
        CsvTable(tmp_path / "t.csv").append({"frame": [1]})
