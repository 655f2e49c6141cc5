"""Tests of making reports: at the end of a trial or experiment, and by `labrl-report`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from report_cases import write_experiment, write_long_run
from run_cases import config_with, rising, write_run

import labrl
from labrl.analysis.listing import entries
from labrl.analysis.report.build import build
from labrl.cli import report
from labrl.errors import DONE, WRONG_INPUT
from labrl.run.find import find_runs
from labrl.run.run import Run
from labrl.trial import reporting

QUICK = ["agent=random", "env.max_frame=64", "meta.progress=false", "meta.tensorboard=false", "seed=1"]


pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABRL_CACHE", str(tmp_path / "cache"))


@pytest.mark.extended
@pytest.mark.report
def test_trial_ends_with_a_report_and_a_list_of_changed_values() -> None:
    result = labrl.train([*QUICK, "env.max_frame=512"])
    assert result.report == result.folder / "report.html"
    assert result.report.exists()
    assert (result.folder / "plots" / "session_0.png").exists()
    changed = json.loads((result.folder / "changed.json").read_text())
    assert {"key": "env.max_frame", "default": 100000.0, "value": 512} in changed
    assert "seed" not in {entry["key"] for entry in changed}
    (session,) = json.loads((result.folder / "statistics.json").read_text())["sessions"]
    assert result.returns == [session["final_return"]], "result and statistics.json must show the same return"
    (entry,) = entries(result.folder.parent)
    assert entry["final_return"] == session["final_return"]


@pytest.mark.extended
@pytest.mark.report
def test_terminal_shows_the_verdict_of_the_report_of_an_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for noise, (agent, to) in enumerate({"ppo": 20.0, "dqn": 12.0}.items()):
        write_long_run(tmp_path / "several" / agent, 4, 40, to, noise, agent)
    several = write_experiment(tmp_path / "several", [("ppo", {}), ("dqn", {})])
    write_long_run(tmp_path / "single" / "ppo", 4, 40)
    single = write_experiment(tmp_path / "single", [("ppo", {})])
    for folder, is_shown in ((several, True), (single, False)):
        reporting.finish_experiment(folder, report=True)
        shown = capsys.readouterr().out
        verdict = build(folder).verdict
        assert "ppo" in verdict
        assert (verdict in shown) == is_shown
        assert str(folder / "report.html") in shown
        assert report([str(folder)]) == DONE
        assert (verdict in capsys.readouterr().out) == is_shown


@pytest.mark.extended
@pytest.mark.report
@pytest.mark.parametrize(
    ("error", "reason"), [(MemoryError("too much"), "too much"), (KeyboardInterrupt(), "interrupted")]
)
def test_failed_report_is_one_line_that_says_how_to_make_it(
    error: BaseException, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fails(folder: Path) -> None:
        raise error

    monkeypatch.setattr("labrl.analysis.report.build.build", fails)
    assert reporting.make_report(tmp_path / "a run") is None
    stdout = capsys.readouterr().out
    assert reason in stdout
    assert f"labrl-report '{tmp_path}/a run'" in stdout
    assert len(stdout.splitlines()) == 1


def test_labrl_report_rewrites_the_report_even_of_a_killed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path / "a", [rising(100)], status="running", session_status=None)
    assert report([str(path)]) == 0
    stdout = capsys.readouterr().out
    assert f"report: {path / 'report.html'}" in stdout
    assert "cartpole" in stdout
    assert "was killed" in stdout
    assert (path / "report.html").exists()
    assert Run.open(path).changed_json.exists()


def test_latest_is_the_newest_run_or_its_experiment(tmp_path: Path) -> None:
    assert report(["latest"]) == 2
    alone = write_run(tmp_path / "runs" / "a", [rising(10)], created="2026-01-01")
    assert report(["latest"]) == 0
    assert (alone / "report.html").exists()
    experiment = tmp_path / "runs" / "b"
    trial = write_run(experiment / "0_ppo_cartpole", [rising(10)], created="2026-01-02")
    write_experiment(experiment, [(trial.name, {"status": "finished"})])
    assert report(["latest"]) == 0
    assert (experiment / "report.html").exists()
    assert not (trial / "report.html").exists()


def test_several_runs_are_compared_in_the_given_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for index, lr in enumerate((1e-3, 1e-3, 1e-4)):
        config = config_with(agent__lr=lr, seed=index)
        write_run(tmp_path / "runs" / str(index), [rising(10 + index, noise=index)], config=config)
    assert report(["runs/*", "--out", "out", "--by", "agent.lr", "--format", "csv"]) == 0
    output = capsys.readouterr()
    header, *rows = output.out.splitlines()
    assert header.startswith("env,group,")
    assert [row.split(",")[1] for row in rows] == ["lr=0.001", "lr=0.0001"]
    assert output.err.startswith("report: ")
    assert (tmp_path / "out" / "report.html").exists()
    assert report(["runs/0", "runs/2", "--format", "csv"]) == 0
    assert (tmp_path / "comparison" / "report.html").exists()
    capsys.readouterr()
    assert report(["runs/0", "runs/2", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "comparison" / "statistics.json").read_text())
    assert {**written, "verdict": printed["verdict"], "warnings": printed["warnings"]} == printed


def test_folders_without_a_run_are_skipped_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Regression test: `labrl-report runs/*`, expanded by the shell, failed at the first empty folder."""
    write_run(tmp_path / "runs" / "b", [rising(10)])
    for name in ("a", "c"):
        (tmp_path / "runs" / name).mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("notes of the user")
    arguments = ["runs/a", "runs/b", "runs/c", "runs/notes.txt"]
    assert report(arguments) == 0
    assert (tmp_path / "comparison" / "report.html").exists()
    records = [entry for entry in caplog.records if entry.name == find_runs.__module__]
    (warning,) = (entry.getMessage() for entry in records)
    assert "runs/a, runs/c, runs/notes.txt" in warning
    capsys.readouterr()
    assert report(["runs/a", "runs/c"]) == WRONG_INPUT
    assert "runs/a, runs/c" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["empty"], "empty"),
        (["runs", "--by", "agent.lrr"], "--by agent.lrr"),
        (["runs/0", "--out", "file"], "file"),
        (["begun"], "begun"),
        (["runs/0", "runs/0/session_0"], "runs/0/session_0"),
    ],
)
def test_wrong_argument_is_refused_by_its_name(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("a file in place of a folder")
    write_run(tmp_path / "runs" / "0", [rising(1)])
    (tmp_path / "begun").mkdir()
    write_experiment(tmp_path / "begun", [("0", {"status": "waiting"})])
    assert report(arguments) == WRONG_INPUT
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("columns", [60, 120])
def test_table_fits_any_terminal_with_whole_numbers(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, agent in enumerate(["ppo", "an_agent_with_a_long_name_that_is_wrapped", "dqn"]):
        write_long_run(tmp_path / "runs" / agent, 3, 30, 20.0 + place, place, agent)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert report([str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == DONE
    rows = [line for line in capsys.readouterr().out.splitlines() if re.search(r" \[\S+, \S+\]", line)]
    assert len(rows) == 3, "a number or an interval is cut or wrapped"
    assert max(map(len, rows)) <= columns
    assert all(any(agent in line.split() for line in rows) for agent in ("ppo", "dqn"))
