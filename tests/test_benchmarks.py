"""`make bench`: sides take turns, ratios have intervals, and results are kept case by case."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks import solve
from benchmarks.alone import take_turns
from benchmarks.problems import PROBLEMS
from benchmarks.report import Ratio, Report, Results, Row
from labrl.config.compose import compose, resolve

SETTING = {
    "machine": {"processor": "Abacus", "cores": 2},
    "instructions": "beads",
    "versions": {"labrl": "1"},
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_words_of_each_problem_are_a_configuration(name: str) -> None:
    problem = PROBLEMS[name]
    config = resolve(compose([*problem.overrides(), "seed=0"]))
    assert config.env.config.num_envs == problem.num_envs


@pytest.mark.parametrize("name", solve.TASKS)
def test_the_default_of_each_task_fits_the_budget(name: str) -> None:
    task = solve.TASKS[name]
    config = resolve(compose([f"env={task.env}", "seed=0"]))
    assert config.env.config.id == task.gym_id
    assert config.env.config.max_frame <= task.budget


def test_a_task_is_solved_by_a_whole_window_of_episodes() -> None:
    assert solve.solved([200.0] * 100, 200)
    assert not solve.solved([200.0] * 99, 200)
    assert not solve.solved([200.0] * 99 + [199.0], 200)


def test_the_sides_take_turns_in_both_orders() -> None:
    order: list[str] = []

    def measured(name: str, round_: int) -> dict[str, float]:
        order.append(name)
        return {"round": round_}

    measures = {"a": lambda i: measured("a", i), "b": lambda i: measured("b", i)}
    results = take_turns(measures, 3, "test")
    assert "".join(order) == "abbaab"
    assert [m["round"] for m in results["b"]] == [0, 1, 2]


def test_a_paired_ratio_does_not_see_slow_rounds() -> None:
    fast, slow = [200.0, 20.0, 300.0], [100.0, 10.0, 150.0]
    ratio = Ratio.paired("", fast, slow)
    assert (ratio.value, ratio.low, ratio.high) == (2, 2, 2)


def test_an_interval_lies_around_its_ratio() -> None:
    ratio = Ratio.paired("", [2.0, 2.2, 1.9, 2.1, 2.4], [1.0] * 5)
    assert 1.9 <= ratio.low < ratio.value == 2.1 < ratio.high <= 2.4


def test_what_was_not_reached_in_most_runs_has_no_ratio() -> None:
    ratio = Ratio.of_medians("", [5.0, math.inf, math.inf], [4.0, 5.0, 6.0])
    assert math.isinf(ratio.value)
    assert ratio.low == pytest.approx(5 / 6) or math.isinf(ratio.low)
    assert math.isnan(Ratio.of_medians("", [math.inf] * 3, [math.inf] * 3).value)


def report(case: str, ours: list[float], theirs: list[float]) -> Report:
    sides = Row("ours", ours, "frames/s"), Row("theirs", theirs, "frames/s")
    shares = [Ratio(name, 0.5, 0.4, 0.6) for name in ("eager", "arithmetic")]
    return Report(case, case, [*sides], compared=(*sides, Ratio.paired("speed", ours, theirs)), shares=shares)


def test_results_are_kept_case_by_case_with_a_table_and_a_chart(tmp_path: Path) -> None:
    Results(tmp_path).add(report("one", [4.0, 4.0], [2.0, 2.0]), SETTING, 2)
    Results(tmp_path).add(report("two", [9.0, 9.0], [3.0, 3.0]), SETTING, 2)
    Results(tmp_path).add(Report("three", "three", [Row("alone", [1.0, math.inf], "s")]), SETTING, 2)
    Results(tmp_path).add(report("one", [8.0, 8.0], [2.0, 2.0]), SETTING, 2)
    found = json.loads((tmp_path / "results.json").read_text())
    assert {case: known["rounds"] for case, known in found.items()} == {"one": 2, "two": 2, "three": 2}
    assert found["one"]["compared"][2]["value"] == 4
    assert found["three"]["rows"][0]["values"] == [1.0, None]
    table = (tmp_path / "table.md").read_text()
    assert "Abacus" in table
    assert [line.split("|")[4].strip() for line in table.splitlines()[2:4]] == ["4 (4 to 4)", "3 (3 to 3)"]
    assert (tmp_path / "chart.png").stat().st_size > 0
    assert (tmp_path / "chart.svg").stat().st_size > 0


def test_a_chart_shows_one_kind_of_machine(tmp_path: Path) -> None:
    other = {**SETTING, "machine": {"processor": "Quipu", "cores": 1}}
    Results(tmp_path).add(report("one", [4.0], [2.0]), other, 1)
    Results(tmp_path).add(report("two", [9.0], [3.0]), SETTING, 1)
    table = (tmp_path / "table.md").read_text()
    assert "| two, frames/s |" in table
    assert "| one, frames/s |" not in table
