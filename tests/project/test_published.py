"""Tests of the comparison with published scores: settings, verdicts, and the page of results."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from run_cases import config_with, rows_of, write_run

from benchmarks import results
from benchmarks.published import Cell, cells, from_rows, judged
from benchmarks.record import POINTS, Records, session_rows
from labrl.config.compose import compose, to_plain
from labrl.errors import INTERRUPTED, WRONG_INPUT
from labrl.run.find import load_run

CELL = Cell("CartPole-v1", "ppo", score=450.0, frames=1000, num_envs=4, log_frequency=100, random=20.0)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(results, "README", tmp_path / "README.md")


def run_with(path: Path, scores: list[float], session_status: str = "finished", **changes: Any) -> Any:
    """Write and load a run with one session per score, which has that return in every row."""
    config = config_with(env__id="CartPole-v1", **changes)
    sessions = [rows_of(range(100, 1001, 100), [score] * 10) for score in scores]
    return load_run(write_run(path, sessions, config=config, session_status=session_status))


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ([480, 490, 485, 495], "better"),
        ([400, 410, 405, 415], "worse"),
        ([400, 500, 430, 480], "undecided"),  # the published score lies in an interval beyond the margin
        ([447, 452, 444, 449], "equal"),  # the whole interval is within 21.5 of the published score
        ([455, 456, 457, 458], "equal"),  # higher, but by less than the margin
        ([480, 530, 440, 500], "undecided"),  # the mean is far higher, but the seeds differ widely
        ([400, 410, 405], "unfinished"),
    ],
)
def test_verdict_needs_four_finished_sessions(tmp_path: Path, scores: list[float], verdict: str) -> None:
    result = judged(CELL, run_with(tmp_path / "a", scores))
    assert (result.verdict, result.sessions) == (verdict, len(scores))
    assert result.score is not None
    assert result.score.value == pytest.approx(sum(scores) / len(scores))


def test_other_setting_interrupted_or_missing_run_is_not_compared(tmp_path: Path) -> None:
    scores = [480.0, 490, 485, 495]
    assert judged(CELL, run_with(tmp_path / "a", scores, env__num_envs=8)).verdict == "other setting"
    assert (
        judged(CELL, run_with(tmp_path / "b", scores, session_status="interrupted")).verdict == "unfinished"
    )
    assert judged(CELL, None).verdict == "not run"


def test_readme_has_the_recorded_results() -> None:
    records = Records(results.PAGE.with_suffix(""))
    found = [from_rows(cell, records.numbers[cell.name]) for cell in cells()]
    readme = (results.ROOT / "README.md").read_text()
    stated = readme.partition(results.BEGIN)[2].partition(results.END)[0].strip()
    assert stated == results.in_readme(found).strip()


def test_recipes_have_the_published_settings() -> None:
    composed = {
        overrides: to_plain(compose([overrides])) for overrides in {cell.overrides[0] for cell in cells()}
    }
    for cell in cells():
        plain = composed[cell.overrides[0]]
        assert (plain["env"]["name"], plain["env"]["num_envs"]) == (cell.env, cell.num_envs)
        assert plain["env"]["max_frame"] == cell.frames
        assert (plain["meta"]["log_frequency"], plain["meta"]["max_session"]) == (cell.log_frequency, 4)


def test_benchmark_starts_resumes_and_skips_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "PAGE", tmp_path / "results.md")
    cell = next(cell for cell in cells() if cell.name == "cartpole_ddqn_per")
    folder = tmp_path / "runs" / cell.name
    assert results.command(cell.overrides, folder)[:2] == ["experiment=slm_lab/cartpole", "agent=double_dqn"]
    run_with(folder, [240.0] * 4)
    assert results.command(cell.overrides, folder) == [f"+resume={folder}"]
    assert results.command(cell.overrides, folder, 8) == [f"+resume={folder}", "meta.max_session=8"]
    assert "meta.max_session=8" in results.command(cell.overrides, tmp_path / "new", 8)
    started: list[list[str]] = []
    monkeypatch.setattr(results, "_train", lambda overrides, seconds: started.append(overrides) or 0)
    overrides = ["cartpole_ddqn_per", "cartpole_ppo", "--root", str(tmp_path / "runs")]
    monkeypatch.setattr(results, "uncommitted", lambda: " M src/labrl/clock.py")
    with pytest.raises(SystemExit) as ended:
        results.main(overrides)
    assert (ended.value.code, started) == (WRONG_INPUT, [])
    assert "src/labrl/clock.py" in capsys.readouterr().err
    monkeypatch.setattr(results, "uncommitted", str)
    assert results.main(overrides) == 0
    assert [run[:2] for run in started] == [["experiment=slm_lab/cartpole", "agent=ppo"]]
    assert results.main([*overrides[:1], *overrides[2:], "--sessions", "8"]) == 0
    assert started.pop() == [f"+resume={folder}", "meta.max_session=8"]
    with monkeypatch.context() as patch:
        patch.setattr(results, "_train", lambda overrides, seconds: INTERRUPTED)
        written = results.PAGE.read_bytes()
        assert results.main(["cartpole_a2c", *overrides[2:]]) == INTERRUPTED
        assert results.PAGE.read_bytes() == written
    monkeypatch.setattr(results, "uncommitted", lambda: " M docs/results.md")
    assert results.main([*overrides, "--minutes", "0"]) == 0
    monkeypatch.setattr(results, "uncommitted", str)
    assert len(started) == 1
    page = (tmp_path / "results.md").read_text()
    assert "1 other setting" in page
    assert "27 not run" in page


def test_page_keeps_earlier_results_when_their_run_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PAGE", tmp_path / "results.md")
    sarsa = next(cell for cell in cells() if cell.name == "cartpole_sarsa")

    def page_after_run(root: str, score: float, **options: Any) -> str:
        changes = {"env__num_envs": sarsa.num_envs, "env__max_frame": sarsa.frames}
        scores = [score + change for change in (-1, 0, 0, 1)]
        changes |= {"meta__log_frequency": sarsa.log_frequency, **options}
        run_with(tmp_path / root / sarsa.name, scores, **changes)
        results.write_page(tmp_path / root)
        return (tmp_path / "results.md").read_text()

    page = page_after_run("first", 480.0)
    assert "| sarsa | 430.9 | 480.0 [" in page
    rows = Records(tmp_path / "results").numbers["cartpole_sarsa"]
    assert [float(row["score"]) for row in rows] == [479, 480, 480, 481]
    text = (tmp_path / "results" / "configs" / "cartpole_sarsa.yaml").read_text()
    assert yaml.safe_load(text) == load_run(tmp_path / "first" / sarsa.name).config
    results.write_page(tmp_path / "another machine")
    assert (tmp_path / "results.md").read_text() == page
    assert Records(tmp_path / "results").numbers == {"cartpole_sarsa": rows}
    assert page_after_run("interrupted", 460.0, session_status="interrupted") == page
    assert "| sarsa | 430.9 | 490.0 [" in page_after_run("run again", 490.0)


def test_recorded_curve_is_thinned_and_ends_with_the_last_row(tmp_path: Path) -> None:
    long = rows_of(range(10, 10 * 4 * POINTS + 1, 10), [math.nan, *range(4 * POINTS - 1)])
    run = load_run(write_run(tmp_path / "run", [long, rows_of([10, 20], [1.0, 2.0])]))
    records = Records(tmp_path)
    records.keep("a", session_rows(run), run)
    records.write(["a"])
    (frames, returns), short = Records(tmp_path).curve("a")
    assert POINTS / 2 < len(frames) <= POINTS
    assert (frames[-1], returns[-1]) == (40 * POINTS, 4 * POINTS - 2)
    assert np.isfinite(returns).all()
    assert [list(values) for values in short] == [[10, 20], [1, 2]]
    measured_with = {point["commit"] for point in Records(tmp_path).curves["a"]}
    assert measured_with == {row["commit"] for row in records.numbers["a"]} != {""}
    assert Records(tmp_path).curve("b") == []


def test_page_of_curves_has_a_picture_of_each_environment_and_keeps_those_of_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PAGE", tmp_path / "results.md")
    run_with(tmp_path / "runs" / "acrobot_ppo", [-90.0, -80])
    run_with(tmp_path / "runs" / "pong_ppo", [3.0])
    results.write_page(tmp_path / "runs")
    page = (tmp_path / "results" / "curves.md").read_text()
    pictures = re.findall(r"\]\(([^)]*\.png)\)", page)
    assert pictures == ["curves_acrobot.png", "curves_atari.png"]
    drawn = {name: (tmp_path / "results" / name).read_bytes() for name in pictures}
    results.write_page(tmp_path / "another machine")
    assert (tmp_path / "results" / "curves.md").read_text() == page
    assert {name: (tmp_path / "results" / name).read_bytes() for name in pictures} == drawn


def test_atari_recipes_v4_and_v5_differ_in_sticky_actions_only() -> None:
    overrides = ["agent=rainbow", "env=breakout"]
    v4, v5 = (to_plain(compose([f"experiment=atari/{name}", *overrides])) for name in ("v4", "v5"))
    assert (v4["env"].pop("sticky_actions"), v5["env"].pop("sticky_actions")) == (0.0, 0.25)
    assert v4 == v5
    assert v5["env"]["max_frame"] == 1e7
    assert v5["meta"]["max_session"] == 4


def test_recipe_of_fast_pong_has_the_protocol_without_sticky_actions() -> None:
    fast, v4 = (
        to_plain(compose(overrides))["env"]
        for overrides in (["experiment=atari/pong_fast"], ["experiment=atari/v4", "env=pong"])
    )
    assert fast["max_frame"] == 1.6e6
    assert fast | {"max_frame": v4["max_frame"], "num_envs": v4["num_envs"]} == v4
    sticky = to_plain(compose(["experiment=atari/pong_fast", "env.sticky_actions=0.25"]))["env"]
    assert sticky == fast | {"sticky_actions": 0.25}
