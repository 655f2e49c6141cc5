"""Tests of tables of metrics: rows are written at once, read back as written, and survive kills."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from disk_limit import file_size_limit
from refusals import damaged

from labrl.run.tables import CsvTable, read_rows


def test_rows_read_back_as_written(tmp_path: Path) -> None:
    rows = [
        {"a,b": None, 'q"': 2**70, "é 'x'": 0.1, "/": "x,y"},
        {"a,b": float("-inf"), 'q"': -1, "é 'x'": 5e-324, "/": """x"y' é"""},
    ]
    table = CsvTable(tmp_path / "t.csv")
    for row in rows:
        table.append(row)
    assert read_rows(tmp_path / "t.csv") == rows


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
    assert (tmp_path / "t.csv").read_text() == "frame,loss,kl\n1,2.0,\n2,1.0,0.1\n3,,0.2\n"


@pytest.mark.parametrize(("cut", "kept"), [(0, 0), (2, 1), (3, 3), (99, 4), (100, 5), (110, 5)])
def test_table_is_truncated_after_a_frame(cut: int, kept: int, tmp_path: Path) -> None:
    path, frames = tmp_path / "t.csv", [1, 3, 3, 7, 100]
    table = CsvTable(path)
    for frame in frames:
        table.append({"frame": frame, "x": frame / 3})
    CsvTable(path).truncate_after(cut)
    assert [row["frame"] for row in read_rows(path)] == frames[:kept]
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
