"""A run can be repeated in a new folder, and one line says whether it came out the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from labrl.cli import main

QUICK = ["agent=random", "env.max_frame=512", "meta.log_frequency=128", "meta.progress=false"]
QUICK += ["meta.tensorboard=false"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def first(capsys: pytest.CaptureFixture[str]) -> Path:
    assert main([*QUICK, "hydra.run.dir=runs/first"]) == 0  # with a seed that nobody has chosen
    capsys.readouterr()
    return Path("runs/first")


def newest() -> Path:
    return max((path for path in Path("runs").iterdir() if path.name != "first"), key=lambda path: path.name)


def test_equal_in_every_row_and_said_so(first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["+rerun=runs/first"]) == 0
    assert str(first.absolute()) in capsys.readouterr().out
    info = json.loads((newest() / "run.json").read_text())
    assert (info["rerun_of"], info["equal"], info["status"]) == (str(first.absolute()), True, "finished")


def test_the_first_difference_is_named(first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = first / "session_0" / "train.csv"
    lines = table.read_text().splitlines()
    column = lines[0].split(",").index("return_mean")
    cells = lines[3].split(",")
    cells[column] = "12.5"
    table.write_text("\n".join([*lines[:3], ",".join(cells), *lines[4:]]) + "\n")
    assert main(["+rerun=runs/first", "hydra.run.dir=second"]) == 1
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if "session_0/train.csv" in line]
    assert all(override in line for override in ("384", "return_mean", "12.5"))
    assert not json.loads(Path("second/run.json").read_text())["equal"]


def test_a_missing_row_is_a_difference(first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(first / "session_0" / "eval.csv", "a") as table:
        table.write(
            (first / "session_0" / "eval.csv").read_text().splitlines()[1].replace("512", "640") + "\n"
        )
    assert main(["+rerun=runs/first"]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "session_0/eval.csv" in line]
    assert "640" in line


def test_a_run_that_was_left_is_compared_as_far_as_it_came(first: Path) -> None:
    table = first / "session_0" / "train.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:3]))
    assert main(["+rerun=latest", "meta.eval_frequency=512"]) == 0
    assert json.loads((newest() / "run.json").read_text())["equal"]


def test_what_would_not_be_the_same_run_is_refused(first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["+rerun=runs/first", "env.num_envs=4"]) == 2
    assert re.search(r"env\.num_envs +8 +4", capsys.readouterr().err)
    assert [path.name for path in Path("runs").iterdir()] == ["first"]
