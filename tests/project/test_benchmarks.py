"""Tests of the benchmarks: their problems, the order of measurements, ratios and the stored results."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import coverage, solve
from benchmarks.__main__ import CASES, GROUPS, main
from benchmarks.alone import take_turns
from benchmarks.problems import PROBLEMS
from benchmarks.report import Ratio, Report, Results, Row
from labrl.config.compose import compose, resolve
from labrl.errors import WRONG_INPUT

pytestmark = pytest.mark.extended

SETTING = {
    "machine": {"processor": "Abacus", "cores": 2},
    "instructions": "beads",
    "versions": {"labrl": "1"},
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_overrides_of_each_problem_are_valid(name: str) -> None:
    problem = PROBLEMS[name]
    config = resolve(compose([*problem.overrides(), "seed=0"]))
    assert config.env.config.num_envs == problem.num_envs


def test_task_is_solved_by_mean_of_a_full_window_of_episodes() -> None:
    assert solve.solved([200.0] * 100, 200)
    assert not solve.solved([200.0] * 99, 200)
    assert not solve.solved([200.0] * 99 + [199.0], 200)


def stored(case: str, rows: list[list[float]], folder: Path, **setting: object) -> None:
    report = Report(case, case, [Row("", values, "") for values in rows])
    Results(folder).add(report, {**SETTING, "commit": "0123456789", **setting}, len(rows[0]))


def cells_of(table: str, task: str) -> list[str]:
    (line,) = (line for line in table.splitlines() if line.startswith(f"| {solve.TASKS[task].gym_id} |"))
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_table_of_times_has_medians_of_what_was_measured(tmp_path: Path) -> None:
    stored(
        "solve-cartpole",
        [[60, 120, 90], [240, math.inf, 300], [3e4, 5e4, 4e4], [6e4, math.inf, 7e4]],
        tmp_path,
    )
    stored("solve-pong", [[90.0, math.inf, math.inf], [9e5, math.inf, math.inf]], tmp_path)
    table = solve.as_markdown(json.loads((tmp_path / "results.json").read_text()))
    assert cells_of(table, "cartpole") == [
        *("CartPole-v1", "475", "1.5", "40,000", "3", "5", "70,000 (2 of 3)"),
        *("`labrl env=cartpole`", "`01234567`", "Abacus (beads), 2 cores"),
    ]
    assert cells_of(table, "pong")[3].startswith("not reached")


def test_solve_is_all_tasks_and_an_unknown_case_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    measured: list[str] = []
    for name in GROUPS["solve"]:
        case = report(name, [4.0], [2.0])
        monkeypatch.setitem(CASES, name, lambda *_, case=case: measured.append(case.case) or case)
    monkeypatch.setattr("sys.argv", ["benchmarks", "solve", "--shared", "--out", str(tmp_path)])
    main()
    assert measured == [f"solve-{name}" for name in solve.TASKS]
    stored_cases = json.loads((tmp_path / "results.json").read_text())
    assert all(case["setting"]["shared"] for case in stored_cases.values())
    monkeypatch.setattr("sys.argv", ["benchmarks", "solve-chess", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == WRONG_INPUT
    assert "solve-chess" in capsys.readouterr().err


def test_recorded_times_are_kept_until_measured_again(tmp_path: Path) -> None:
    bench, record = tmp_path / "bench", tmp_path / "record"
    assert solve.keep(bench / "results.json", record) == {}
    stored("solve-acrobot", [[60.0], [90.0], [3e4], [4e4]], bench)
    stored("replay", [[1.0]], bench)
    assert list(solve.keep(bench / "results.json", record)) == ["solve-acrobot"]
    stored("solve-acrobot", [[30.0], [90.0], [2e4], [4e4]], bench)
    solve.keep(bench / "results.json", record)
    kept = solve.keep(tmp_path / "another machine" / "results.json", record)
    stored("solve-acrobot", [[1.0], [1.0], [1.0], [1.0]], tmp_path / "only tried", quick=True)
    assert solve.keep(tmp_path / "only tried" / "results.json", record) == kept
    assert kept["solve-acrobot"]["rows"][0]["values"] == [30.0]


def test_sides_take_turns_in_alternating_order() -> None:
    order: list[str] = []

    def measured(name: str, round_: int) -> dict[str, float]:
        order.append(name)
        return {"round": round_}

    measures = {"a": lambda i: measured("a", i), "b": lambda i: measured("b", i)}
    results = take_turns(measures, 3, "test")
    assert "".join(order) == "abbaab"
    assert [m["round"] for m in results["b"]] == [0, 1, 2]


def test_paired_ratio_is_not_affected_by_slow_rounds() -> None:
    fast, slow = [200.0, 20.0, 300.0], [100.0, 10.0, 150.0]
    ratio = Ratio.paired("", fast, slow)
    assert (ratio.value, ratio.low, ratio.high) == (2, 2, 2)


def report(case: str, ours: list[float], theirs: list[float]) -> Report:
    sides = Row("ours", ours, "frames/s"), Row("theirs", theirs, "frames/s")
    shares = [Ratio(name, 0.5, 0.4, 0.6) for name in ("eager", "arithmetic")]
    return Report(case, case, [*sides], compared=(*sides, Ratio.paired("speed", ours, theirs)), shares=shares)


def test_results_keep_the_latest_report_of_each_case(tmp_path: Path) -> None:
    Results(tmp_path).add(report("one", [4.0, 4.0], [2.0, 2.0]), SETTING, 2)
    Results(tmp_path).add(report("two", [9.0, 9.0], [3.0, 3.0]), SETTING, 2)
    Results(tmp_path).add(Report("three", "three", [Row("alone", [1.0, math.inf], "s")]), SETTING, 2)
    Results(tmp_path).add(report("one", [8.0, 8.0], [2.0, 2.0]), SETTING, 2)
    found = json.loads((tmp_path / "results.json").read_text())
    assert {case: stored["rounds"] for case, stored in found.items()} == {"one": 2, "two": 2, "three": 2}
    assert found["one"]["compared"][2]["value"] == 4
    assert found["three"]["rows"][0]["values"] == [1.0, None]
    table = (tmp_path / "table.md").read_text()
    assert "Abacus" in table
    assert [line.split("|")[4].strip() for line in table.splitlines()[2:4]] == ["4 (4 to 4)", "3 (3 to 3)"]
    assert (tmp_path / "chart.png").stat().st_size > 0
    assert (tmp_path / "chart.pdf").stat().st_size > 0


def test_simulated_coverage_of_few_normal_seeds_is_that_of_the_method() -> None:
    draw = coverage.RETURNS["normal"]
    own, mean, _, width = coverage.intervals_of(draw, 4, np.random.default_rng(0), samples=600)
    assert own == pytest.approx(0.95, abs=0.03)
    assert mean < 0.87
    assert 1.7 < width < 2.2
