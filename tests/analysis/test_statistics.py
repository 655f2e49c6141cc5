"""Tests of the statistics of trials, groups and comparisons, including failed and unfinished sessions."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_cases import config_with, rising, rows_of, write_run, write_session

from labrl.analysis import intervals
from labrl.analysis.baselines import baseline_path
from labrl.analysis.groups import group_runs
from labrl.analysis.report.build import build
from labrl.analysis.statistics import compare, group_statistics, trial_statistics
from labrl.run.find import find_runs, load_run
from labrl.run.lock import FolderLock
from labrl.run.run import Run


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty cache, so that no baselines measured on this machine are found."""
    monkeypatch.setenv("LABRL_CACHE", str(tmp_path / "cache"))


def measured(config: dict[str, Any], mean: float) -> None:
    """Write the measured return of the random policy in the environment of `config`."""
    path = baseline_path(config["env"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mean": mean, "std": 1.0, "episodes": 100}))


def statistics_of(path: Path, sessions: list[list[dict[str, Any]]], **facts: Any) -> dict[str, Any]:
    """Write a run and return its statistics."""
    return trial_statistics(load_run(write_run(path, sessions, **facts)))


def reasons(statistics: dict[str, Any]) -> list[str]:
    return [entry["reason"] for entry in statistics["left_out"]]


def test_measures_of_a_trial_match_their_formulas(tmp_path: Path) -> None:
    config = config_with()
    measured(config, 1.0)
    path = write_run(
        tmp_path / "a",
        [rows_of([100, 200, 300], [2.0, 5.0, 4.0]), rows_of([100, 200, 300], [4.0, 7.0, 6.0])],
        config=config,
    )
    statistics = trial_statistics(load_run(path))
    first, _ = statistics["sessions"]
    # The strengths are 1, 4 and 3 at frames 100, 200 and 300 and at updates 10, 20 and 30.
    assert first["strength"] == pytest.approx(8 / 3)
    assert (first["max_strength"], first["final_strength"]) == (4, 3)
    assert first["sample_efficiency"] == pytest.approx((1 / 100 + 4 / 200 + 3 / 300) / 8)
    assert first["training_efficiency"] == pytest.approx((1 / 10 + 4 / 20 + 3 / 30) / 8)
    assert first["stability"] == pytest.approx(1 - 1 / 5)
    assert (first["final_return"], first["best_return"], first["best_frame"]) == (4, 5, 200)
    assert (first["frames"], first["opt_steps"], first["wall"], first["fps"]) == (300, 30, 3.0, 100.0)
    # The sessions differ by 2 at each checkpoint, a deviation of sqrt 2; the mean strengths are 2, 5 and 4.
    assert statistics["consistency"] == pytest.approx(1 - 2 * 3 * np.sqrt(2) / 11)
    assert statistics["measures"]["final_return"] == {"mean": 5, "std": pytest.approx(np.sqrt(2)), "n": 2}
    assert statistics["baseline"] == {"mean": 1.0, "std": 1.0, "episodes": 100, "source": "measured"}
    assert statistics["curve"]["mean"] == [3, 6, 5]


def test_measures_that_need_a_baseline_are_none_with_a_warning_without_one(tmp_path: Path) -> None:
    statistics = statistics_of(tmp_path / "a", [rising(10), rising(20)])
    assert statistics["baseline"] is None
    assert {statistics["sessions"][0][name] for name in ("strength", "sample_efficiency", "stability")} == {
        None
    }
    assert statistics["consistency"] is None
    config = config_with()
    measured(config, 1.0)
    known = statistics_of(tmp_path / "b", [rising(10), rising(20)], config=config)
    assert len(statistics["warnings"]) == len(known["warnings"]) + 1


def test_atari_game_is_compared_with_published_scores(tmp_path: Path) -> None:
    config = config_with(env__name="pong", env__game="pong")
    statistics = statistics_of(tmp_path / "a", [rows_of([100], [14.6])], config=config)
    assert statistics["baseline"]["source"] == "published"
    assert statistics["threshold"] == {"value": 14.6, "source": "human"}
    assert statistics["sessions"][0]["human_normalized"] == pytest.approx(1)
    assert statistics["estimates"]["human_normalized"]["optimality_gap"]["value"] == pytest.approx(0)


def test_one_seed_has_no_interval_and_few_seeds_get_a_warning(tmp_path: Path) -> None:
    statistics = statistics_of(tmp_path / "a", [rising(10)])
    assert statistics["estimates"]["final_return"]["iqm"] == {"value": 10.0, "low": None, "high": None}
    assert statistics["curve"]["iqm_low"] == [None] * 10
    three = statistics_of(tmp_path / "b", [rising(10)] * 3)
    twenty = statistics_of(tmp_path / "c", [rising(10)] * 20)
    assert len(statistics["warnings"]) == len(three["warnings"]) == len(twenty["warnings"]) + 1
    assert any("3" in text for text in three["warnings"]), "no warning names the number of seeds"


def test_rows_without_a_return_are_skipped(tmp_path: Path) -> None:
    nan = float("nan")
    rows = rows_of([100, 200, 300], [nan, 4.0, nan])
    statistics = statistics_of(tmp_path / "a", [rows, rows_of([100, 200, 300], [nan] * 3)])
    session = statistics["sessions"][0]
    assert (session["rows"], session["final_return"], session["frames"]) == (1, 4, 300)
    assert statistics["counted"] == 1
    assert reasons(statistics) == ["no episode has finished"]


def test_group_of_a_search_counts_only_confirmation_runs(tmp_path: Path) -> None:
    home = tmp_path / "search"
    for seed, (name, score) in enumerate((("3_ppo", 109.0), ("confirm_trial_3_0", 100.0), ("other", 90.0))):
        write_run(home / name, [rising(score)], config=config_with(seed=seed))
    statistics = group_statistics(find_runs([home]))
    assert [entry["run"] for entry in statistics["left_out"]] == ["3_ppo", "other"]
    assert statistics["measures"]["final_return"]["mean"] == 100.0
    assert group_statistics([load_run(home / "3_ppo")])["counted"] == 1


def test_nearly_finished_session_counts_and_the_curve_has_session_counts(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rising(10), rising(9, frames=900, rows=9)])
    statistics = trial_statistics(load_run(path))
    assert statistics["counted"] == 2
    assert statistics["curve"]["frame"] == list(range(100, 1001, 100))
    assert statistics["curve"]["count"] == [2] * 9 + [1]
    assert statistics["curve"]["iqm_low"][-1] is None


def test_running_session_is_left_out_and_the_run_marked_as_running(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rising(10)], status="running", session_status=None)
    write_session(Run(path), 1, rising(10, frames=500), None)
    with FolderLock(path):
        statistics = trial_statistics(load_run(path))
    assert statistics["status"] == "running"
    (reason,) = reasons(statistics)
    assert "1,000" in reason
    assert statistics["warnings"][0] not in trial_statistics(load_run(path))["warnings"], (
        "still called running"
    )


def test_sessions_of_several_runs_are_pooled_and_repetitions_count_once(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / str(seed), [rising(10), rising(20)], config=config_with(seed=seed))
    write_run(tmp_path / "again", [rising(10), rising(20)], config=config_with(seed=1))
    (group,) = group_runs(find_runs([tmp_path / name for name in ("1", "2", "again")]))
    statistics = group_statistics(group.runs)
    assert statistics["counted"] == 4
    assert reasons(statistics) == [f"the same seed and configuration as session {k} of 1" for k in (0, 1)]


def test_scores_use_evaluation_rows_but_the_slm_score_uses_training_rows(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rising(10)], config=config_with(meta__rigorous_eval=5))
    table = path / "session_0" / "eval.csv"
    table.write_text("frame,return_mean\n500,70\n1000,90\n")
    statistics = trial_statistics(load_run(path))
    assert statistics["scores_of"] == "evaluation"
    assert statistics["sessions"][0]["final_return"] == 90
    assert statistics["sessions"][0]["slm_final"] == pytest.approx(5.5)


def experiment(tmp_path: Path) -> Path:
    """Write runs of two agents on two Atari games and CartPole, with three seeds each."""
    for agent, level in (("ppo", 10.0), ("dqn", 6.0)):
        for env in ("pong", "breakout", "cartpole"):
            game = {"env__game": env} if env != "cartpole" else {}
            config = config_with(env__name=env, agent___target_=f"x.{agent}", **game)
            sessions = [rising(level + seed, noise=seed) for seed in range(3)]
            write_run(tmp_path / f"{agent}_{env}", sessions, config=config, agent=agent)
    return tmp_path


def test_environments_are_compared_separately_with_a_warning(tmp_path: Path) -> None:
    statistics = compare(group_runs(find_runs([experiment(tmp_path / "runs")])))
    assert {env["env"]: [group["name"] for group in env["groups"]] for env in statistics["envs"]} == {
        env: ["ppo", "dqn"] for env in ("pong", "breakout", "cartpole")
    }
    assert len(statistics["warnings"]) == 1
    (pair,) = statistics["envs"][0]["improvement"]
    assert (pair["x"], pair["y"], pair["value"]) == ("ppo", "dqn", 1.0)
    profile = statistics["envs"][0]["profile"]
    assert profile["groups"]["ppo"]["value"][0] == 1.0
    assert profile["groups"]["dqn"]["value"][-1] == 0.0
    json.dumps(statistics, allow_nan=False)


def test_atari_games_are_also_compared_by_human_normalized_score(tmp_path: Path) -> None:
    statistics = compare(group_runs(find_runs([experiment(tmp_path / "runs")])))
    across = statistics["across"]
    assert (across["envs"], across["left_out"]) == (["pong", "breakout"], ["cartpole"])
    scores = [
        [session["human_normalized"] for session in env["groups"][0]["sessions"]]
        for env in statistics["envs"]
        if env["env"] != "cartpole"
    ]
    by_hand = intervals.aggregates(scores, target=1.0)
    ppo = next(group for group in across["groups"] if group["name"] == "ppo")
    assert ppo["sessions"] == 6
    assert ppo["human_normalized"]["iqm"] == by_hand["iqm"]._asdict()
    assert compare(group_runs(find_runs([tmp_path / "runs" / "ppo_pong"])))["across"] is None


def test_groups_with_different_scores_or_budgets_get_a_warning(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [rising(10)], agent="ppo")
    config = config_with(meta__rigorous_eval=5, agent__lr=0.5)
    write_run(tmp_path / "b", [rising(10, frames=500)], agent="dqn", config=config)
    kinds, frames = compare(group_runs(find_runs([tmp_path])))["envs"][0]["warnings"]
    assert {"ppo", "dqn"} <= set(re.findall(r"\w+", kinds))
    assert "500 to 1,000" in frames


def test_comparison_lists_every_key_that_differs_and_names_those_that_nobody_typed(tmp_path: Path) -> None:
    def write(agent: str, typed: list[str], **changes: Any) -> None:
        run = Run(write_run(tmp_path / agent, [rising(10)], agent=agent, config=config_with(**changes)))
        provenance = {**json.loads(run.provenance_json.read_text()), "overrides": [f"agent={agent}", *typed]}
        run.provenance_json.write_text(json.dumps(provenance))

    write("ppo", ["agent.lr=0.1"], agent__lr=0.1)
    write("mine", ["agent.lr=0.2"], agent__lr=0.2, env__num_envs=8, agent__own=1)
    (env,) = compare(group_runs(find_runs([tmp_path])))["envs"]
    names = [group["name"] for group in env["groups"]]
    by_group = {key: dict(zip(names, values, strict=True)) for key, values in env["differing"].items()}
    assert by_group == {
        "agent": {"ppo": "ppo", "mine": "mine"},
        "agent.lr": {"ppo": 0.1, "mine": 0.2},
        "agent.own": {"ppo": None, "mine": 1},
        "env.num_envs": {"ppo": 4, "mine": 8},
    }
    assert env["not_compared"] == ["env.num_envs"]
    built = build(tmp_path, tmp_path / "out")
    assert [one for one in built.warnings if "agent.lr" in one or "agent.own" in one] == []
    assert len([one for one in built.warnings if "env.num_envs" in one]) == 1
    (row, _) = csv.DictReader((tmp_path / "out" / "statistics.csv").open())
    assert row.keys() >= by_group.keys()


def test_many_groups_are_compared_only_with_the_best(tmp_path: Path) -> None:
    for number in range(12):
        config = config_with(agent__lr=float(number))
        write_run(tmp_path / f"{number:02}", [rows_of([100], [float(number)])], config=config)
    pairs = compare(group_runs(find_runs([tmp_path])))["envs"][0]["improvement"]
    assert len(pairs) == 11
    assert {pair["x"] for pair in pairs} == {"ppo lr=11"}


def test_session_counts_if_it_completed_the_budget_of_its_own_run(tmp_path: Path) -> None:
    """Regression test: a run that finished its 20,000 frames was measured by another's budget of 24,000."""
    for frames in (20_000, 24_000):
        config = config_with(env__max_frame=frames, agent__lr=1.0 / frames)
        write_run(tmp_path / str(frames), [rising(10, frames=frames)], config=config)
    statistics = group_statistics(find_runs([tmp_path]))
    assert (statistics["counted"], statistics["left_out"]) == (2, [])
    config = config_with(env__max_frame=24_000)
    write_run(tmp_path / "cut", [rising(10, frames=20_000)], config=config, status="killed")
    (left_out,) = group_statistics(find_runs([tmp_path]))["left_out"]
    assert left_out["run"] == "cut"
    assert "24,000" in left_out["reason"]


@pytest.mark.parametrize(("seeds", "best"), [(4, "dqn"), (3, None)])
def test_group_is_best_only_if_it_differs_clearly_from_every_other(
    tmp_path: Path, seeds: int, best: str | None
) -> None:
    """Regression test: a report named a best group although the seeds were too few to distinguish them."""
    for agent, level in (("ppo", 10.0), ("dqn", 30.0)):
        sessions = [rising(level + seed) for seed in range(seeds)]
        config = config_with(agent___target_=f"x.{agent}")
        write_run(tmp_path / agent, sessions, config=config, agent=agent)
    (entry,) = compare(group_runs(find_runs([tmp_path])))["envs"]
    assert entry["best"] == best
    (pair,) = entry["improvement"]
    assert (pair["value"], pair["low"]) == (0.0, 0.0)
    assert 0.4 < pair["high"] < 0.5 or best is None
