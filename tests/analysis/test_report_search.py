"""Tests of the report of a search: history, hyperparameters, trials, and the best against the default."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_cases import ReportPage
from run_cases import rising, write_run

from labrl.analysis.report.build import build
from labrl.analysis.search_result import SearchResult, importances, read_search, verdict
from labrl.run.atomic import write_json
from labrl.run.folder import EXPERIMENT_MARKER

SPACE = {
    "agent.lr": {
        "name": "FloatDistribution",
        "attributes": {"low": 1e-4, "high": 1e-2, "log": True, "step": None},
    },
    "agent.kind": {"name": "CategoricalDistribution", "attributes": {"choices": ["a", "<b>"]}},
    "agent.epochs": {"name": "IntDistribution", "attributes": {"low": 1, "high": 4, "log": False}},
}


def trials() -> list[dict[str, Any]]:
    """Make 20 trials: 10 complete, 5 failed and 5 pruned, of which 2 have only intermediate values."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(20):
        state = ["complete", "complete", "pruned", "fail"][number % 4]
        params = {"agent.lr": 10 ** rng.uniform(-4, -2), "agent.kind": ["a", "<b>"][number % 2]}
        without_value = state == "fail" or number in (2, 6)
        made.append(
            {
                "number": number,
                "params": params | {"agent.epochs": 1 + number % 4},
                "values": None if without_value else [float(number)],
                "state": state,
                "intermediate": [[1000, 1.0], [2000, 1.5]],
                "error": "out of <luck>" if state == "fail" else None,
            }
        )
    return made


def info(**facts: Any) -> dict[str, Any]:
    search = {"space": SPACE, "objective": ["final_return"], "directions": ["maximize"]}
    search |= {"sampler": "TPESampler"}
    return {"kind": "search", "search": search | {"pruner": {"kind": "asha"}, **facts}, "trials": trials()}


def result(facts: dict[str, Any]) -> SearchResult:
    search = read_search(facts)
    assert search is not None
    return search


def candidate(trial: int | None, *values: float) -> dict[str, Any]:
    """Make a confirmed candidate with a value for each fresh seed; the default if `trial` is None."""
    searched = None if trial is None else [20.0]
    mean = float(np.mean(values))
    return {
        "trial": trial,
        "mean": mean,
        "searched": searched,
        "folders": ["gone"],
        "values": [[v] for v in values],
    }


def page_of(folder: Path, facts: dict[str, Any]) -> ReportPage:
    """Write and read the report of a search whose first trial has a run folder."""
    write_run(folder / "0", [rising(1.0)])
    facts["trials"][0]["folder"] = "0"
    write_json(folder / EXPERIMENT_MARKER, {"format_version": 3, "status": "finished", **facts})
    return ReportPage(build(folder).path)


def test_key_that_determines_the_value_is_most_important_and_few_or_equal_trials_tell_nothing() -> None:
    def importances_of(*values: float) -> dict[str, float]:
        facts = info()
        for trial, value in zip(facts["trials"], values, strict=False):
            trial |= {"state": "complete", "values": [value]}
        facts["trials"] = facts["trials"][: len(values)]
        return importances(result(facts))

    found = importances_of(*((number % 2) + 0.01 * (number % 3) for number in range(20)))
    assert next(iter(found)) == "agent.kind"
    assert sum(found.values()) == pytest.approx(1)
    assert importances_of(*range(9)) == importances_of(*[1.0] * 20) == {}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> ReportPage:
    return page_of(tmp_path_factory.mktemp("search"), info())


def test_history_has_a_point_for_every_ended_trial(page: ReportPage) -> None:
    """Regression test: pruned trials without a final value were missing from the chart."""
    chart = page.chart("Value of each trial")
    views = {line["key"]: line["views"]["trial"] for line in chart["lines"]}
    counts = {key: len(view["x"]) for key, view in views.items()}
    assert counts == {"search-complete": 10, "search-pruned": 5, "search-fail": 5, "search-best": 11}
    assert views["search-pruned"]["y"][:2] == [1.5, 1.5], "pruned trials need their last reported value"
    _, _, failed, best = chart["lines"]
    assert "out of <luck>" in failed["labels"][0]
    assert best["step"], "the best value so far must be drawn in steps"
    assert views["search-best"]["x"][-1] == 19, "the best value so far must reach the last trial"
    assert chart["axes"]["trial"]["whole"], "an axis of trial numbers must have whole ticks"


def test_hyperparameters_have_importances_parallel_plot_and_slices(page: ReportPage) -> None:
    assert {row[0] for row in page.table("hyperparameters")[1:]} == set(SPACE)
    parallel = next(chart for chart in page.charts if "key" in chart["axes"])
    assert parallel["axes"]["key"]["ticks"] == ["lr", "kind", "epochs"]
    assert len(parallel["lines"]) == 15
    assert {line["role"] for line in parallel["lines"]} == {"center", "reference"}, (
        "no line may be hidden behind a button"
    )
    slices = [chart for chart in page.charts if "place" in chart["axes"]]
    lr, kind, epochs = (chart["axes"]["place"] for chart in slices)
    assert (lr["log"], kind["ticks"], epochs["whole"]) == (True, ["a", "<b>"], True)
    assert [len(line["views"]["place"]["x"]) for line in slices[0]["lines"]] == [10, 5]


def test_table_has_all_trials_best_first_with_errors_as_text(page: ReportPage) -> None:
    head, *rows = page.table("search-trials")
    assert head == ["trial", "state", "final_return", *SPACE]
    assert [row[0] for row in rows][:2] == ["17", "16"]
    assert len(rows) == 20
    assert "out of &lt;luck&gt;" in page.source
    assert "<luck>" not in page.source


@pytest.mark.parametrize(
    ("default", "best"),
    [
        ([10.0, 20.0, 30.0, 40.0], 3),
        ([170.0, 175.0, 180.0, 200.0], None),
        ([10.0, 20.0, 30.0], None),  # three seeds decide nothing
        ([310.0, 320.0, 330.0, 340.0], None),
    ],
)
@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_trial_is_recommended_only_if_the_fresh_seeds_decide_for_it(
    default: list[float], best: int | None, direction: str
) -> None:
    """Regression test: a mean that was higher by chance replaced the default, or was said to be worse."""
    sign = 1.0 if direction == "maximize" else -1.0
    chosen = [candidate(3, *(sign * one for one in (150.0, 165.0, 180.0, 190.0)[: len(default)]))]
    chosen.append(candidate(None, *(sign * one for one in default)))
    facts = {"directions": [direction], "confirm": {"winner": 3, "held": True, "candidates": chosen}}
    search = result(info(**facts))
    assert search.confirmed_best is not None
    assert search.confirmed_best.trial == best
    x, y = np.array(chosen[0]["values"])[:, 0], np.array(default) * sign
    decided = len(default) > 3 and bool(min(x) > max(y) or max(x) < min(y))
    # An undecided verdict must name the key that gives more seeds.
    assert ("search.confirm.sessions" in " ".join(verdict(search))) is not decided


@pytest.mark.parametrize("confirmed", [True, False])
def test_equal_values_rank_nothing(confirmed: bool) -> None:
    """Regression test: trial 0 of twelve equal ones "won the confirmation" and the search."""
    facts = info()
    facts["trials"] = [
        {**one, "values": one["values"] and [-200.0], "intermediate": [[1000, -200.0]]}
        for one in facts["trials"]
    ]
    chosen = [candidate(trial, *[-200.0] * 4) for trial in (0, 1, 4, None)]
    if confirmed:
        facts["search"]["confirm"] = {"winner": 0, "held": True, "candidates": chosen}
    search = result(facts)
    assert search.is_flat
    assert search.confirmed_best is search.default
    (text,) = verdict(search)
    assert "env.max_frame" in text
    assert not re.search(r"trial \d", text, re.IGNORECASE), "no trial is better than another"


def verdict_of(page: ReportPage) -> str:
    """Return the verdict at the top of a report."""
    (found,) = re.findall(r'<p class="verdict">(.*?)</p>', page.source, re.DOTALL)
    return found


def test_default_is_marked_when_it_is_better_than_the_winner(tmp_path: Path) -> None:
    chosen = [candidate(17, 5.0), candidate(3, 9.0), candidate(None, 10.0)]
    confirm = {"winner": 3, "held": False, "candidates": chosen}
    page = page_of(tmp_path, info(confirm=confirm, best={"command": "labrl agent.lr=1"}))
    (best,) = re.findall(r'<section id="best">(.*?)</section>', page.source, re.DOTALL)
    assert re.findall(r"\b(?:9|10|5)\b", verdict_of(page)) == ["10", "9"]
    assert "<pre>labrl agent.lr=1</pre>" in best
    assert [row[0] for row in page.table("best")[1:]] == ["trial 17", "trial 3", "the default"]
    assert re.findall(r'<tr class="marked"><td[^>]*>(.*?)</td>', best) == ["the default"]
    assert page.text.index("Recommended: the default") < page.text.index("Trial 3 (")


def test_verdict_puts_fresh_seeds_before_the_value_of_the_search(tmp_path: Path) -> None:
    """Regression test: the lucky 109.4 of one seed came before the 101.3 of three fresh ones."""
    for name, to, seeds in (("0", 109.4, 1), ("1", 90.0, 1), ("confirm_trial_0_0", 101.3, 3)):
        write_run(tmp_path / name, [rising(to)] * seeds)
    write_run(tmp_path / "confirm_default_0", [rising(95.0)])
    searched = {**candidate(0, 100.3, 101.3, 102.3), "searched": [109.4], "folders": ["confirm_trial_0_0"]}
    default = {**candidate(None, 94.0, 95.0, 96.0), "folders": ["confirm_default_0"]}
    facts = info(confirm={"winner": 0, "held": True, "candidates": [searched, default]})["search"]
    entry = {"status": "finished", "state": "complete", "params": {}}
    ended = [{**entry, "number": n, "folder": str(n), "values": [v]} for n, v in enumerate((109.4, 90.0))]
    write_json(
        tmp_path / EXPERIMENT_MARKER,
        {"format_version": 3, "kind": "search", "search": facts, "trials": ended},
    )
    built = build(tmp_path)
    assert built.verdict.index("101.3") < built.verdict.index("95.00 on") < built.verdict.index("109.4")
    assert built.statistics["search"]["frames"] == {"search": 2000, "confirmation": 4000}
    assert not any(warning.startswith("every group") for warning in built.warnings), "three fresh seeds"
    best, other = built.statistics["search"]["confirmed"]
    assert best["mean"] == pytest.approx(101.3)
    assert (best["trial"], best["seeds"], best["searched"]) == (0, 3, 109.4)
    assert best["low"] < 101.3 < best["high"]
    assert (other["trial"], other["mean"]) == (None, 95.0)
    assert json.loads((tmp_path / "statistics.json").read_text())["search"] == built.statistics["search"]
    for row in ReportPage(built.path).table("best")[1:]:
        assert len({len(digits) for digits in re.findall(r"\d+\.?(\d*)", " ".join(row[1:3]))}) == 1, row


def test_verdict_of_an_unconfirmed_search_states_the_number_of_trials(page: ReportPage) -> None:
    assert re.search(r"\b15 trials\b", verdict_of(page)), (
        "the verdict must say out of how many trials the best was chosen"
    )
