"""Tests of `report.html` of trials and experiments: results, warnings, charts, tables and provenance."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_cases import ReportPage, report_of, write_experiment, write_long_run
from run_cases import config_with, rising, rows_of, write_run, write_session

from labrl.analysis.charts import thin_curve
from labrl.analysis.report.build import build
from labrl.analysis.report.page import SMALL_VIDEO
from labrl.analysis.statistics import trial_statistics
from labrl.run.atomic import write_json
from labrl.run.find import load_run
from labrl.run.lock import FolderLock
from labrl.run.run import Run

HTML = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'"


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a trial with three finished sessions, a failed one and a resume; it has all that reports show."""
    path = tmp_path_factory.mktemp("trial") / "a"
    loss = [float("inf"), float("nan"), *([0.5] * 8)]
    first = [{**row, "loss": value} for row, value in zip(rising(100, noise=1), loss, strict=True)]
    write_run(path, [first, rising(110, noise=2), rising(120, noise=3)], created="2026-11-21T16:25:18+00:00")
    run = Run.open(path)
    write_session(run, 3, rising(5)[:2], "failed", error="NonFiniteError: loss_value is nan")
    write_json(run.changed_json, [{"key": "agent.lr", "default": 3e-4, "value": 1e-3}])
    typed = ["env.max_frame=1000", "agent.lr=0.1", "agent.lr=0.2", "env.max_frame=1000"]
    facts = json.loads(run.provenance_json.read_text())
    write_json(run.provenance_json, {**facts, "overrides": typed, "config_dir": "/own"})
    entry = {
        "time": "2026-11-20T10:00:00+00:00",
        "frames": {"0": 500},
        "changed": [{"key": "env.max_frame", "then": 500, "now": 1000}],
        "forced": False,
        "differs": ["torch 2.12 -> 2.13"],
        "command": ["labrl", "+resume=a", "env.max_frame=1000"],
    }
    run.set_status("failed", resumes=[entry])
    videos = path / "session_0" / "videos"
    videos.mkdir()
    (videos / "best.mp4").write_bytes(b"small")
    (videos / "last #1.mp4").write_bytes(bytes(SMALL_VIDEO + 1))
    build(path)
    return path


@pytest.fixture(scope="module")
def page(trial: Path) -> ReportPage:
    return ReportPage(trial / "report.html")


@pytest.fixture(scope="module")
def statistics(trial: Path) -> dict[str, Any]:
    return json.loads((trial / "statistics.json").read_text())


def test_report_shows_result_interval_date_and_warnings(page: ReportPage, statistics: dict[str, Any]) -> None:
    assert page.sections == ["curves", "episodes", "seeds", "statistics", "configuration", "origin"]
    assert ("a", {"href": "#seeds"}) in page.elements
    result = r"\b1[01]\d(\.\d)? \(\D*\b3\b\D*95 %\D*[\d.]+\D+1[1-6]\d"
    assert re.search(result, page.text)
    assert "2026-11-21 16:25 UTC" in page.text
    assert statistics["counted"] == 3
    assert any("loss" in warning for warning in statistics["warnings"]), "non-finite values need a warning"
    assert not [warning for warning in statistics["warnings"] if warning not in page.text]


def test_failed_session_is_shown_with_its_error_and_left_out(
    page: ReportPage, statistics: dict[str, Any]
) -> None:
    head, *seeds = page.table("seeds")
    assert [row[head.index("status")] for row in seeds] == ["finished"] * 3 + ["failed"]
    assert seeds[3][-1] == "NonFiniteError: loss_value is nan"
    assert ("tr", {"class": "marked"}) in page.elements
    assert "1 of 4" in page.text
    (left_out,) = statistics["left_out"]
    assert left_out["session"] == 3
    assert left_out["reason"] in page.text


def test_charts_have_each_session_and_their_middle_by_frame_and_wall_time(page: ReportPage) -> None:
    chart = page.chart("Return")
    names = [line["name"] for line in chart["lines"]]
    assert names == [*(f"session {i}" for i in range(4)), "mean of 4"]
    assert list(chart["axes"]) == ["frame", "wall"]
    assert chart["lines"][0]["views"]["frame"]["x"] == list(range(100, 1001, 100))
    loss = page.chart("Loss")["lines"][0]["views"]["frame"]["y"]
    assert loss == [None, None, *([0.5] * 8)], "non-finite values must be gaps"


def test_report_loads_nothing_from_elsewhere(page: ReportPage) -> None:
    for tag, attributes in page.elements:
        for name in ("src", "href"):
            address = attributes.get(name) or ""
            assert not re.match(r"(https?:)?//", address), f"<{tag} {name}={address}>"
    assert "default-src 'none'" in page.source


def test_report_shows_command_changed_values_and_resumes(page: ReportPage) -> None:
    command = "labrl --config-dir /own agent.lr=0.1 agent.lr=0.2 env.max_frame=1000 seed=1"
    assert command in page.text, (
        "the command must have the last value of each key, the seed and the folder of the user's groups"
    )
    assert page.table("configuration")[1:] == [["agent.lr", "0.001", "0.0003"]]
    for fact in ("2026-11-20T10:00:00", "torch 2.12 -> 2.13", "+resume=a"):
        assert fact in page.text


def test_small_videos_are_embedded_and_large_ones_linked(page: ReportPage) -> None:
    (video,) = (attributes for tag, attributes in page.elements if tag == "video")
    assert str(video["src"]).startswith("data:video/mp4;base64,c21hbGw")
    assert ("a", {"href": "session_0/videos/last%20%231.mp4"}) in page.elements


def test_html_in_names_and_overrides_is_shown_as_text(tmp_path: Path) -> None:
    config = config_with(env__name=HTML, agent__lr=HTML)
    path = write_long_run(tmp_path / "a", sessions=1, rows=10, agent=HTML, typed=[f"agent.lr={HTML}"])
    run = Run.open(path)
    write_json(run.provenance_json, {**json.loads(run.provenance_json.read_text()), "config": config})
    write_json(run.changed_json, [{"key": HTML, "default": HTML, "value": [HTML]}])
    write_session(run, 1, rows_of([100], [1.0]), "failed", error=HTML)
    write_experiment(tmp_path, [("a", {"error": HTML})], command=[HTML], overrides=[HTML])
    for page in (report_of(path), report_of(tmp_path)):
        assert len([tag for tag, _ in page.elements if tag == "script"]) == 2, (
            "only the data and the report's own script may be there"
        )
        assert "img" not in {tag for tag, _ in page.elements}
        assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
        assert HTML in page.text.replace("  ", " ")


@pytest.mark.extended
def test_running_killed_and_empty_runs_are_marked(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rising(100)], status="running", session_status=None)
    with FolderLock(path):
        running = report_of(path)
    assert ("span", {"class": "status warn"}) in running.elements
    assert "running" in running.words
    assert "100 % of its 1,000 frames" in running.text
    assert "killed" in report_of(path).words
    empty = build(write_run(tmp_path / "empty", [[]]))
    assert empty.verdict
    assert empty.verdict in ReportPage(empty.path).text


def test_interrupted_run_shows_its_last_frame_instead_of_its_last_row(
    tmp_path: Path,
) -> None:
    path = write_run(tmp_path / "a", [], status="interrupted", config=config_with(env__max_frame=300_000))
    rows = [{**row, "env_frames": 4 * row["frame"]} for row in rows_of([20_000, 40_000], [1.0, 2.0])]
    write_session(Run.open(path), 0, rows, "interrupted", frame=48_640, wall=500.0)
    page = report_of(path)
    assert "interrupted at 16 % of its 300,000 frames" in page.text
    assert "Frames 48,640 194,560 emulator frames Training time 8 min 20 s" in page.text
    killed = write_run(tmp_path / "b", [rows], status="running", session_status=None)
    write_json(killed / "session_0" / "progress.json", {"frame": 41_000, "wall": "of a damaged file"})
    (session,) = trial_statistics(load_run(killed))["sessions"]
    assert (session["frames"], session["wall"]) == (41_000, 400)


def test_experiment_ranks_groups_and_links_trials(tmp_path: Path) -> None:
    """Two seeds of two agents, a failed trial without a folder, and a waiting one."""
    trials: list[tuple[str, dict[str, Any]]] = []
    for index, (agent, to) in enumerate([("ppo", 100), ("ppo", 104), ("dqn", 50), ("dqn", 52)]):
        config = config_with(agent___target_=f"labrl.{agent}", seed=index)
        path = write_run(tmp_path / str(index), [rising(to, noise=index)], config=config, agent=agent)
        (path / "report.html").write_text("")
        trials.append((str(index), {}))
    trials += [("4", {"status": "failed", "error": "no memory"}), ("5", {"status": "waiting"})]
    resume = {"time": "2026-11-20T10:00:00+00:00", "command": ["labrl", "-m", "+resume=latest", "seed=0,1,2"]}
    write_experiment(tmp_path, trials, command=["labrl", "-m", "seed=0,1"], resumes=[resume])
    built = build(tmp_path)
    page = ReportPage(built.path)
    assert built.verdict.index("ppo has a final return") < built.verdict.index("dqn with")
    assert built.statistics["envs"][0]["best"] is None, "two seeds per group are too few for a best group"
    assert [row[0] for row in page.table("scores")[1:]] == ["ppo", "dqn"]
    assert ("a", {"href": "2/report.html"}) in page.elements
    head, *trials = page.table("trials")
    assert [row[0] for row in trials] == list("012345")
    assert [row[head.index("status")] for row in trials[3:]] == ["finished", "failed", "waiting"]
    assert trials[4][-1] == "no memory"
    (warning,) = (one for one in built.warnings if "folder" in one)
    assert re.findall(r"\d+", warning) == ["4"], "only trial 4 lacks a folder; trial 5 has not started"
    assert warning in page.text
    chart = page.chart("Return")
    centers = {line["name"]: line["color"] for line in chart["lines"] if line["role"] == "center"}
    assert centers == {"ppo": "#0072B2", "dqn": "#D55E00"}
    assert len([line for line in chart["lines"] if line["role"] == "seed"]) == 4
    assert "labrl -m seed=0,1" in page.text.partition("2026-11-20 10:00 UTC labrl -m +resume=latest")[0]


def test_environments_have_sections_and_figures_of_their_own(tmp_path: Path) -> None:
    for env, seeds in (("cartpole", 3), ("acrobot", 2)):
        config = config_with(env__name=env)
        write_run(tmp_path / env, [rising(100 + seed) for seed in range(seeds)], config=config)
    page = report_of(tmp_path)
    sections = {f"{name}_{env}" for name in ("curves", "scores") for env in ("cartpole", "acrobot")}
    assert sections <= set(page.sections)
    assert len({path.stem for path in (tmp_path / "plots").glob("scores_*.pdf")}) == 2


def test_long_curves_are_thinned_but_keep_spikes_and_gaps(tmp_path: Path) -> None:
    values = np.sin(np.arange(50_000) / 5000)
    values[[17, 31_000]] = 50, -50
    values[40_000] = np.nan
    index = thin_curve(values, 500)
    assert len(index) <= 3 * 250 + 2
    assert {0, 17, 31_000, 40_000, 49_999} <= set(index.tolist())
    assert (np.diff(index) > 0).all()
    path = write_long_run(tmp_path / "a", sessions=4, rows=2000)
    build(path)
    assert (path / "report.html").stat().st_size < 2_000_000


def test_trials_of_the_same_name_in_two_experiments_are_kept_apart(tmp_path: Path) -> None:
    for experiment, to in (("one", 500), ("two", 20)):
        config = config_with(agent__lr=to)
        write_run(tmp_path / experiment / "0_ppo_cartpole", [rising(to)], config=config)
    assert [row[5] for row in report_of(tmp_path).table("trials")[1:]] == ["500", "20"]
