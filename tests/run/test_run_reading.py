"""Tests of reading run folders: complete, interrupted and damaged ones, with warnings about mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from refusals import damaged, refused
from report_cases import write_experiment
from run_cases import config_with, rising, rows_of, write_run

from labrl.run.experiment import Experiment
from labrl.run.find import find_runs, load_run
from labrl.run.folder import EXPERIMENT_MARKER
from labrl.run.lock import FolderLock


def test_finished_run_is_read_as_written(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "a", [rising(10), rising(20)], agent="rainbow"))
    facts = (run.status, run.agent, run.env, run.seed, run.max_frame)
    assert facts == ("finished", "rainbow", "cartpole", 1, 1000)
    sessions = [(session.index, session.seed, session.status) for session in run.sessions]
    assert sessions == [(0, 1000, "finished"), (1, 1001, "finished")]
    train = run.sessions[1].train
    assert train["frame"].tolist() == list(range(100, 1001, 100))
    assert train["return_mean"].tolist() == list(range(2, 21, 2))
    assert {values.dtype for values in train.values()} == {np.dtype(np.float64)}
    assert "source" not in run.sessions[0].eval, "a column of text was read as numbers"
    assert run.warnings == []


def test_empty_cells_are_nan_and_incomplete_last_line_is_omitted(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rows_of([100, 200], [float("nan"), 3.0])], status="interrupted")
    table = path / "session_0" / "train.csv"
    table.write_text(table.read_text() + "300,300,12,30,3.0,100.0,9")
    session = load_run(path).sessions[0]
    assert session.train["frame"].tolist() == [100, 200]
    np.testing.assert_array_equal(session.train["return_mean"], [np.nan, 3.0])
    assert session.warnings == ["an incomplete last line is left out"]


def test_scores_before_change_of_rigorous_eval_are_omitted(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rows_of([100, 200, 300, 400], [50.0, 90.0, 20.0, 30.0])])
    table = path / "session_0" / "eval.csv"
    header, *lines = table.read_text().splitlines()
    place = header.split(",").index("source")
    for line, source in enumerate(["evaluation", "evaluation", "training", "training"]):
        cells = lines[line].split(",")
        cells[place] = source
        lines[line] = ",".join(cells)
    table.write_text("\n".join([header, *lines, ""]))
    session = load_run(path).sessions[0]
    assert session.eval["return_mean"].tolist() == [20.0, 30.0]
    assert len(session.train["frame"]) == 4
    assert len(session.warnings) == 1
    assert "meta.rigorous_eval" in session.warnings[0]


def test_later_row_of_a_repeated_frame_is_used(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rows_of([100, 300, 200, 300], [1.0, 2.0, 3.0, 4.0])])
    session = load_run(path).sessions[0]
    assert session.train["frame"].tolist() == [100, 200, 300]
    assert session.train["return_mean"].tolist() == [1, 3, 4]
    assert "train.csv: 1 row duplicated, the later ones are used" in session.warnings


@pytest.mark.parametrize(
    ("content", "warnings"),
    [
        (b"", []),
        (b"step,reward\n1,2\n", ["train.csv has no column `frame`"]),
        (b"frame,return_mean\n100\n200,x,3\n", ["train.csv: 2 rows with missing cells left out"]),
        (b"frame,return_mean\n,2\n", ["train.csv: 1 row without a frame left out"]),
        (b"\xff\xfe\0\0\n\0\0\xff", ["train.csv has no column `frame`"]),
    ],
)
def test_damaged_table_has_an_empty_frame_column(tmp_path: Path, content: bytes, warnings: list[str]) -> None:
    path = write_run(tmp_path / "a", [rising(1)])
    (path / "session_0" / "train.csv").write_bytes(content)
    session = load_run(path).sessions[0]
    assert session.train["frame"].size == 0
    lost = "train.csv ends at frame 0 of 1,000: later rows are missing"
    assert [text for text in session.warnings if "incomplete last line" not in text] == [*warnings, lost]


def test_missing_later_rows_of_finished_session_give_warnings(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [rising(10), rising(10)])
    assert load_run(path).warnings == []
    table = path / "session_1" / "train.csv"
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(lines[:6]))
    (path / "session_1" / "eval.csv").write_text("")
    assert load_run(path).warnings == [
        "session 1: train.csv ends at frame 500 of 1,000: later rows are missing",
        "session 1: eval.csv ends at frame 0 of 1,000: later rows are missing",
    ]


def test_run_is_running_while_trial_or_session_process_lives_and_killed_without_one(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rising(1)], status="running", session_status=None)
    for place in ("", "session_0"):
        with FolderLock(path / place):
            run = load_run(path)
            assert (run.status, run.sessions[0].status) == ("running", "running")
            assert any("still running" in text for text in run.warnings)
    run = load_run(path)
    assert (run.status, run.sessions[0].status) == ("killed", "killed")
    assert any("killed" in text for text in run.warnings)


def test_failed_and_unstarted_sessions_give_warnings(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rising(1)], status="failed", config=config_with(meta__max_session=3))
    result = path / "session_0" / "result.json"
    failed = {**json.loads(result.read_text()), "status": "failed", "error": "loss is nan"}
    result.write_text(json.dumps(failed))
    told = ["sessions 1 and 2 have not started", "session 0: failed: loss is nan"]
    assert load_run(path).warnings == told


def test_run_killed_before_writing_its_config_is_read(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [], status="running")
    for name in ("config.yaml", "provenance.json"):
        (path / name).unlink()
    run = load_run(path)
    assert (run.status, run.agent, run.env, run.seed, run.sessions) == ("killed", "?", "?", None, [])
    with damaged(path / "provenance.json"):
        run.read_config()


def test_runs_are_found_once_by_folder_parent_or_glob(tmp_path: Path) -> None:
    for name, created in (("y/0", "2026-01-03"), ("y/1", "2026-01-02"), ("x", "2026-01-01")):
        write_run(tmp_path / name, [], created=created)

    def names(*places: str) -> list[str]:
        found = find_runs([tmp_path / place for place in places])
        return [str(run.path.relative_to(tmp_path)) for run in found]

    assert names("x") == ["x"]
    assert names("") == ["x", "y/1", "y/0"]
    assert names("y/*", "x", "y/1") == ["y/0", "y/1", "x"]
    (tmp_path / "notes").mkdir()
    assert names("*") == ["x", "y/1", "y/0"], "a folder that is not a run was not ignored"
    for pattern in ("z*", "note*"):
        with refused("not-found", tmp_path / pattern):
            names(pattern)


def test_damaged_run_among_others_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_run(tmp_path / "good", [])
    (write_run(tmp_path / "bad", []) / "run.json").write_text("{")
    assert [run.name for run in find_runs([tmp_path])] == ["good"]
    assert "bad" in caplog.text


def test_experiment_orders_its_trials_and_warns_of_missing_ones(tmp_path: Path) -> None:
    for number in (10, 2):
        write_run(tmp_path / str(number), [rising(1)])
    failed, waiting = {"status": "failed", "error": "no such game"}, {"status": "waiting"}
    trials = [("2", {}), ("3", {}), ("10", {}), ("11", failed), ("12", waiting)]
    write_experiment(tmp_path, trials, status="running")
    experiment = Experiment.load(tmp_path)
    assert [run.name for run in experiment.runs] == ["2", "10"]
    assert experiment.warnings == ["trial 1 has no run folder", "trial 3 has no run folder: no such game"]
    assert experiment.status == "killed"
    with FolderLock(tmp_path):
        assert experiment.status == "running"
    (tmp_path / EXPERIMENT_MARKER).write_text("[")
    with damaged(tmp_path / EXPERIMENT_MARKER):
        Experiment.load(tmp_path)
