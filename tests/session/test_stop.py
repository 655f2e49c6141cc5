"""Tests of early stopping: a session stops at a return or for lack of progress, and resumes exactly."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from commands import run_ranks
from exact_cases import QUIET, differences, rows
from run_cases import rising, write_run, write_session

import labrl
from labrl.analysis.report.build import build
from labrl.analysis.statistics import trial_statistics
from labrl.cli import main
from labrl.errors import InputError
from labrl.experiment.search.objective import Objective
from labrl.run.find import load_run
from labrl.run.run import Run

SMALL = [*QUIET, "env=cartpole", "env.max_frame=2000", "meta.log_frequency=280", "meta.eval_frequency=240"]
SMALL += ["agent.horizon=16", "agent.batch_size=32", "agent.epochs=2", "agent.network.torso.mlp.hidden=[8]"]
SMALL += ["meta.episode_window=3"]  # short, so that the mean return fluctuates
SMALL += ["agent.lr.horizon=2000", "agent.clip_range.horizon=2000"]
LOW = 12.0
"""A return that CartPole always reaches."""


pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert main([*SMALL, f"hydra.run.dir={folder}"]) == 0
    return folder


def result(folder: Path | str, session: int = 0) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(folder) / f"session_{session}" / "result.json").read_text())
    return content


def test_session_stopped_at_a_return_is_finished_and_records_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SMALL, f"meta.stop_at_return={LOW}", "hydra.run.dir=run"]) == 0
    assert "meta.stop_at_return" in capsys.readouterr().out
    session, info = result("run"), json.loads(Path("run/run.json").read_text())
    first = rows(Path("run/session_0/eval.csv"))[0]
    assert (session["status"], info["status"]) == ("finished", "finished")
    assert session["frame"] == int(first["frame"]) == 240
    stop = session["stop"]
    assert stop == info["sessions"][0]["stop"]
    assert (stop["key"], stop["limit"]) == ("meta.stop_at_return", LOW)
    assert stop["value"] == pytest.approx(float(first["return_mean"]))
    assert stop["value"] >= LOW
    assert "meta.stop_at_return" in Path("run/session_0/session.log").read_text()
    assert json.loads(Path("run/session_0/progress.json").read_text())["status"] == "finished"


@pytest.mark.extended
@pytest.mark.parametrize("limit", [f"meta.stop_at_return={LOW}", "meta.patience=1"])
def test_session_resumed_without_the_limit_equals_an_uninterrupted_one(
    limit: str, uninterrupted: Path
) -> None:
    assert main([*SMALL, limit, "hydra.run.dir=run"]) == 0
    assert result("run")["frame"] < 2000
    assert main(["+resume=run", f"{limit.partition('=')[0]}=null"]) == 0
    assert differences(uninterrupted, Path("run")) == []
    assert result("run")["stop"] is None


@pytest.mark.extended
def test_larger_patience_of_a_resume_counts_earlier_evaluations(uninterrupted: Path) -> None:
    returns = [float(row["return_mean"]) for row in rows(uninterrupted / "session_0" / "eval.csv")]
    since_best = [index - returns.index(max(returns[: index + 1])) for index in range(len(returns))]
    assert max(since_best[:-1]) >= 2, "this seed has no two evaluations without a new best"
    assert main([*SMALL, "meta.patience=2", "hydra.run.dir=at_once"]) == 0
    assert main([*SMALL, "meta.patience=1", "hydra.run.dir=twice"]) == 0
    assert main(["+resume=twice", "meta.patience=2"]) == 0
    assert differences(Path("at_once"), Path("twice")) == []
    assert result("twice")["stop"] == result("at_once")["stop"]
    assert result("at_once")["stop"]["value"] == 2


@pytest.mark.extended
def test_resume_with_a_limit_already_reached_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    overrides = [f"meta.stop_at_return={LOW}", "hydra.run.dir=run"]
    assert main([*SMALL, *overrides]) == 0
    reached = result("run")["stop"]["value"]
    for edits in ([], ["meta.stop_at_return=10"], ["env.max_frame=4000"]):
        assert main(["+resume=run", *edits]) == 2
        assert "meta.stop_at_return" in capsys.readouterr().err
    assert main(["+resume=run", f"meta.stop_at_return={reached + 100}", "env.max_frame=600"]) == 0
    assert result("run")["frame"] >= 600


@pytest.mark.extended
def test_patience_ignores_the_last_evaluation_of_a_smaller_budget() -> None:
    """A resume removes the evaluation that took place only because the smaller budget ended."""
    assert main([*SMALL, "meta.patience=2", "hydra.run.dir=long"]) == 0
    end = result("long")["frame"]
    assert end < 2000, "with this seed the session does not stop early"
    assert main([*SMALL, "meta.patience=2", f"env.max_frame={end - 120}", "hydra.run.dir=short"]) == 0
    assert main(["+resume=short", "env.max_frame=2000"]) == 0
    assert differences(Path("long"), Path("short")) == []


def test_each_session_of_a_trial_stops_independently() -> None:
    overrides = [*SMALL, "meta.max_session=2", "meta.patience=1", "env.max_frame=2000", "hydra.run.dir=run"]
    trial = labrl.train(overrides)
    assert [session.status for session in trial.sessions] == ["finished", "finished"]
    ends = [(session.frame, session.stop) for session in trial.sessions]
    assert all(stop is not None and stop["key"] == "meta.patience" for frame, stop in ends if frame < 2000)
    assert trial.exit_code == 0


@pytest.mark.extended
def test_asynchronous_evaluation_stops_the_session() -> None:
    beside = ["meta.rigorous_eval=2", "meta.async_eval=true", f"meta.stop_at_return={LOW - 4}"]
    assert main([*SMALL, *beside, "env.max_frame=20000", "hydra.run.dir=run"]) == 0
    session = result("run")
    assert session["stop"]["key"] == "meta.stop_at_return"
    assert session["frame"] < 20_000
    assert main(["+resume=run", "meta.stop_at_return=null", f"env.max_frame={session['frame'] + 400}"]) == 0
    frames = [int(row["frame"]) for row in rows(Path("run/session_0/eval.csv"))]
    assert frames == sorted(set(frames))
    assert frames[-1] >= session["frame"] + 400


@pytest.mark.extended
def test_all_ranks_of_torchrun_stop_together(tmp_path: Path, uninterrupted: Path) -> None:
    limit = [*SMALL, "meta.num_cpus=2", f"meta.stop_at_return={LOW}", f"hydra.run.dir={tmp_path / 'run'}"]
    ended = run_ranks(*limit)
    assert [code for code, _ in ended] == [0, 0], ended
    session = result(tmp_path / "run")
    assert (session["status"], session["frame"]) == ("finished", 240)
    assert session["stop"]["key"] == "meta.stop_at_return"


def test_statistics_include_stopped_sessions_and_warn_about_their_number(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [rising(100.0), rising(90.0)])
    run = Run.open(path)
    stop = {"key": "meta.stop_at_return", "limit": 40, "value": 50, "why": "meta.stop_at_return=40"}
    (path / "session_2").mkdir()
    write_session(run, 2, rising(100.0)[:5], stop=stop)
    statistics = trial_statistics(load_run(path))
    assert statistics["counted"] == 3
    assert statistics["left_out"] == []
    frames, count = statistics["curve"]["frame"], statistics["curve"]["count"]
    assert {n for frame, n in zip(frames, count, strict=True) if frame <= 500} == {3}
    assert {n for frame, n in zip(frames, count, strict=True) if frame > 500} == {2}
    assert any("count" in warning for warning in statistics["warnings"])
    assert not any("missing" in warning for warning in statistics["warnings"])
    assert stop["why"] in build(path).path.read_text()
    assert [row["stop"] for row in csv.DictReader((path / "statistics.csv").open())] == ["", "", stop["why"]]


def test_stopped_session_keeps_its_last_value_in_a_search(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [rising(100.0)])
    run = Run.open(path)
    (path / "session_1").mkdir()
    write_session(
        run, 1, rising(100.0)[:5], stop={"key": "meta.patience", "limit": 1, "value": 1, "why": "x"}
    )
    objective = Objective("best_return", num_sessions=2)
    values = objective.reports(path, 1000)
    assert list(values) == list(range(100, 1001, 100))
    assert values[500] == pytest.approx(50)
    assert values[1000] == pytest.approx(75)
    write_session(Run.create(tmp_path / "other"), 0, rising(100.0))
    write_session(Run.open(tmp_path / "other"), 1, rising(100.0)[:5])
    assert list(objective.reports(tmp_path / "other", 1000)) == list(range(100, 501, 100))


@pytest.mark.parametrize("override", ["meta.patience=0", "meta.stop_at_return=high", "meta.patience=1.5"])
def test_wrong_limit_is_refused_with_its_key(override: str) -> None:
    with pytest.raises(InputError) as refused:
        labrl.train([*SMALL, override])
    assert refused.value.key == override.partition("=")[0]
