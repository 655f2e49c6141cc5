"""Tests of `labrl-runs`, which lists runs and experiments, one per line, and filters them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from report_cases import write_experiment
from run_cases import config_with, rising, write_run

from labrl.analysis.groups import group_runs
from labrl.analysis.listing import as_table, entries
from labrl.analysis.statistics import group_statistics
from labrl.cli import list_runs
from labrl.errors import FAILED, WRONG_INPUT
from labrl.run.find import find_runs

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "compare-runs.md").read_text()


Run = tuple[float, dict[str, Any]]


def ago(**time: float) -> str:
    return (datetime.now(UTC) - timedelta(**time)).isoformat()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create two runs and an experiment of three trials in the folder `runs` of a new working directory."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "runs"
    (home / "2026-01-01_000000_killed_before_its_start").mkdir(parents=True)
    write_run(home / "old_ppo", [rising(100), rising(200)], created=ago(days=3))
    pong = config_with(env__name="pong", agent__lr=1e-4)
    write_run(
        home / "new_dqn", [rising(-20)], status="failed", config=pong, agent="dqn", created=ago(minutes=5)
    )
    for number in range(3):
        config = config_with(agent__lr=float(number))
        path = home / "grid" / str(number)
        write_run(path, [rising(10.0 * number)], config=config, agent="sac", created=ago(hours=2.2))
    write_experiment(home / "grid", [(str(number), {}) for number in range(3)], created=ago(hours=2.3))
    return home


def test_run_with_damaged_tables_and_results_is_still_listed(runs: Path) -> None:
    session = runs / "new_dqn" / "session_0"
    (session / "train.csv").write_bytes(b"\xff\xfe\n1,2\n")
    (session / "eval.csv").write_text("frame,return_mean\nthree,4.0\n")
    (session / "result.json").write_text("{")
    marker = runs / "new_dqn" / "run.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "sessions": []}))
    assert [Path(entry["folder"]).name for entry in entries(runs)] == ["new_dqn", "grid", "old_ppo"]


def test_table_shows_the_newest_first_and_the_groups_of_experiments(runs: Path) -> None:
    head, *lines = (line.split() for line in as_table(entries(runs)).splitlines())
    assert head == ["status", "agent", "env", "frames", "final", "return", "seeds", "age", "folder"]
    assert lines[0] == ["failed", "dqn", "pong", "1k/1k", "-20.0", "1/1", "5", "min", "new_dqn"]
    assert lines[1][:4] == ["finished", "sac", "cartpole", "1k/1k"]
    assert lines[1][-1] == "grid"
    assert sorted(line[:4] for line in lines[2:5]) == [
        ["sac", "cartpole", score, "1"] for score in ("0.0", "10.0", "20.0")
    ]
    assert lines[5] == ["finished", "ppo", "cartpole", "1k/1k", "150.0", "2/2", "3", "d", "old_ppo"]


def entry_of(home: Path, runs: dict[str, Run], **facts: Any) -> dict[str, Any]:
    """Write an experiment and return its entry in the list.

    runs: for each folder, the final return and the changes of the configuration.
    """
    for folder, (score, changes) in runs.items():
        frames = changes.pop("frames", 1000)
        write_run(home / folder, [rising(score, frames=frames)], config=config_with(**changes))
    write_experiment(home, [(folder, {}) for folder in runs], **facts)
    (entry,) = entries(home.parent)
    return entry


def test_return_never_mixes_environments_or_settings(tmp_path: Path) -> None:
    names = ("cartpole", "acrobot")
    entry = entry_of(
        tmp_path / "runs" / "grid",
        {
            f"{env}{seed}": (score + seed, {"seed": seed, "env__name": env})
            for env, score in zip(names, (20.0, -80.0), strict=True)
            for seed in range(2)
        },
    )
    assert (entry["final_return"], entry["seeds"]) == (None, 0)
    found = {(group["env"], group["final_return"], group["seeds"]) for group in entry["groups"]}
    assert found == {("cartpole", 20.5, 2), ("acrobot", -79.5, 2)}
    (only,) = entries(tmp_path / "runs", ["env=acrobot"])
    assert (only["env"], only["final_return"], only["seeds"]) == ("acrobot", -79.5, 2)


def test_list_and_report_count_the_same_sessions(tmp_path: Path) -> None:
    """Regression test: `labrl-runs` left out seeds that stopped early, and counted a repeated seed twice."""
    home = tmp_path / "runs" / "seeds"
    runs = {"0": (10.0, {"seed": 0}), "1": (20.0, {"seed": 1, "frames": 500}), "2": (70.0, {"seed": 0})}
    entry_of(home, {**runs, "3": (90.0, {"seed": 3})})
    facts = [{"seed": 0}, {"stop": {"why": "solved"}, "seed": 1}, {"seed": 0}, {"status": "failed"}]
    for run, more in enumerate(facts):
        result = home / str(run) / "session_0" / "result.json"
        result.write_text(json.dumps({**json.loads(result.read_text()), **more}))
    (entry,) = entries(tmp_path / "runs")
    (group,) = group_runs(find_runs([home]))
    found = group_statistics(group.runs)
    assert (entry["final_return"], entry["seeds"]) == (15.0, 2)
    assert ([one["run"] for one in found["left_out"]], found["counted"]) == (["2", "3"], 2)


def test_search_shows_the_return_of_its_winner_on_fresh_seeds(tmp_path: Path) -> None:
    """Regression test: the lucky 109.4 of the best trial was shown, and confirmations counted as trials."""
    home = tmp_path / "runs" / "search"
    fresh = {f"confirm_trial_1_{seed}": (score, {}) for seed, score in enumerate((100.0, 102.0) * 2)}
    for seed, (folder, (score, _)) in enumerate(fresh.items()):
        write_run(home / folder, [rising(score)], config=config_with(seed=10 + seed))
    values = [[100.0], [102.0]]
    confirm = {
        "winner": 1,
        "held": True,
        "candidates": [
            {"trial": 1, "searched": [109.4], "folders": list(fresh), "values": values * 2, "mean": 101.0},
            {"trial": None, "searched": None, "folders": [], "values": [[95.0]] * 4, "mean": 95.0},
        ],
    }
    facts = {"space": {}, "objective": ["final_return"], "directions": ["maximize"], "confirm": confirm}
    trials = [
        {"number": n, "folder": str(n), "status": "finished", "state": "complete", "values": [value]}
        for n, value in enumerate((90.0, 109.4))
    ]
    runs = {str(n): (value, {"agent__lr": 0.1 + n}) for n, value in enumerate((90.0, 109.4))}
    entry = entry_of(home, runs, kind="search", search=facts, trials=trials)
    assert (entry["final_return"], entry["seeds"], entry["trials"]) == (101.0, 4, 2)
    assert entry["groups"][1]["name"] == "the default"
    assert entry["best_in_the_search"] == {"trial": 1, "objective": "final_return", "value": 109.4, "of": 2}
    (other,) = entries(tmp_path / "runs", ["agent.lr=0.1"])
    assert (other["final_return"], other["trials"]) == (None, 1), "the filter must exclude the winner"
    assert other["best_in_the_search"] is not None
    assert (other["best_in_the_search"]["value"], other["best_in_the_search"]["of"]) == (90.0, 1)
    assert "best of 1: 90.0" in as_table([other])


@pytest.mark.parametrize(
    ("filters", "folders"),
    [
        (["status=finished"], ["grid", "old_ppo"]),
        (["agent=*p*o"], ["old_ppo"]),
        (["agent.lr=1e-4"], ["new_dqn"]),
        (["status=finished", "grid/1"], ["grid"]),
        (["seed=1", "env=pong"], ["new_dqn"]),
    ],
)
def test_filters_select_runs_by_their_properties(runs: Path, filters: list[str], folders: list[str]) -> None:
    assert [entry["folder"] for entry in entries(runs, filters)] == folders


def test_narrow_table_drops_columns_and_then_shortens_names(runs: Path) -> None:
    write_run(runs / ("x" * 30 + "_end"), [rising(1)])
    for width in (200, 60, 30):
        lines = as_table(entries(runs), width).splitlines()
        assert max(map(len, lines)) <= width
        assert lines[0].split()[0] == "status"
        assert "_end" in lines[1]
    assert "…" in lines[1]
    assert "…" not in as_table(entries(runs))


def test_command_prints_a_table_or_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list_runs(["env=pong"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("failed  dqn    pong")
    assert list_runs(["--json", "--root", str(runs / "grid")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(entry["folder"], entry["final_return"]) for entry in found] == [("2", 20), ("1", 10), ("0", 0)]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_exit_code_distinguishes_no_match_from_a_wrong_filter(
    form: list[str], runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list_runs([*form, "env=nothing"]) == FAILED
    output = capsys.readouterr()
    assert "env=nothing" in output.err
    assert output.out == ("[]\n" if form else "")
    assert list_runs([*form, "nobody"]) == WRONG_INPUT
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--root", "nowhere"], ["nowhere", "--root"]),
        (["agent.lx=3"], ["agent.lx", "agent.lr?"]),
        (["=ppo"], ["=ppo"]),
    ],
)
def test_wrong_arguments_are_refused(
    runs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: list[str]
) -> None:
    assert list_runs(arguments) == WRONG_INPUT
    output = capsys.readouterr().err
    assert not [word for word in named if word not in output], output


@pytest.mark.extended
def test_listing_imports_nothing_heavy(runs: Path) -> None:
    code = (
        "import sys; from labrl.cli import list_runs; code = list_runs([]); "
        "heavy = {'torch', 'matplotlib', 'hydra', 'gymnasium', 'rich'} & set(sys.modules); "
        "sys.exit(code or ' '.join(sorted(heavy)) or 0)"
    )
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (listed.returncode, listed.stderr) == (0, "")


@pytest.mark.parametrize("line", re.findall(r"^    labrl-runs(.*?)(?:#.*)?$", PAGE, re.MULTILINE))
def test_commands_of_the_page_are_accepted(runs: Path, line: str) -> None:
    assert list_runs([word.replace("<experiment>", "grid") for word in shlex.split(line)]) == 0
