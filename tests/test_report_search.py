"""A search's report shows its history, what mattered, and the best against the default."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_cases import rising, write_run

from labrl.analysis.files import write_statistics
from labrl.analysis.report.build import build
from labrl.analysis.report.render import render
from labrl.analysis.report.search import search_sections
from labrl.analysis.report.sections import (
    Block,
    Chart,
    Charts,
    Command,
    Note,
    Picture,
    Report,
    Section,
    Table,
)
from labrl.analysis.runs import Experiment
from labrl.analysis.search import read_search, verdict
from labrl.storage.atomic import write_json
from labrl.storage.experiment_folder import EXPERIMENT_MARKER

SPACE = {
    "agent.lr": {
        "name": "FloatDistribution",
        "attributes": {"low": 1e-4, "high": 1e-2, "log": True, "step": None},
    },
    "agent.kind": {"name": "CategoricalDistribution", "attributes": {"choices": ["a", "<b>"]}},
}


def trials() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    found = []
    for number in range(20):
        kind = ["a", "<b>"][number % 2]
        state = ["complete", "complete", "pruned", "fail"][number % 4]
        found.append(
            {
                "number": number,
                "params": {"agent.lr": 10 ** rng.uniform(-4, -2), "agent.kind": kind},
                "values": None if state == "fail" else [float(number)],
                "state": state,
                "intermediate": [[1000, 1.0]],
                "error": "out of <luck>" if state == "fail" else None,
            }
        )
    return found


def candidate(trial: int | None, mean: float) -> dict[str, Any]:
    searched = None if trial is None else [20.0]
    return {"trial": trial, "mean": mean, "searched": searched, "folders": ["gone"], "values": [[mean]]}


def experiment(objective: list[str] | None = None, **facts: Any) -> Experiment:
    objective = objective or ["final_return"]
    search = {
        "space": SPACE,
        "objective": objective,
        "directions": ["maximize", "minimize"][: len(objective)],
    }
    search |= {"sampler": "TPESampler", "pruner": {"kind": "asha"}, **facts}
    return Experiment(Path("/runs/e"), {"kind": "search", "search": search, "trials": trials()}, [], [])


def blocks(sections: list[Section], name: str) -> list[Block]:
    return next(list(section.blocks) for section in sections if section.name == name)


def test_a_grid_has_none_of_these_sections() -> None:
    assert search_sections(Experiment(Path("/runs/e"), {"kind": "grid", "trials": []}, [], [])) == []


def test_the_history_marks_finished_pruned_and_failed_trials() -> None:
    (chart,) = [one for one in blocks(search_sections(experiment()), "history") if isinstance(one, Chart)]
    counts = {line.name: len(line.views["trial"].x) for line in chart.lines}
    assert counts == {"finished": 10, "pruned, where it was stopped": 5, "failed": 5, "best so far": 10}
    failed = next(line for line in chart.lines if line.name == "failed")
    assert "out of <luck>" in failed.labels[0]


def test_hyperparameters_have_importance_parallel_coordinates_and_slices() -> None:
    found = blocks(search_sections(experiment()), "hyperparameters")
    (picture,) = [one for one in found if isinstance(one, Picture)]
    assert "agent.lr" in picture.svg
    (parallel,) = [one for one in found if isinstance(one, Chart)]
    assert parallel.axes["key"].ticks == ["lr", "kind"]
    assert len(parallel.lines) == 15
    (slices,) = [one for one in found if isinstance(one, Charts)]
    assert [chart.title for chart in slices.charts] == ["agent.lr", "agent.kind"]
    assert slices.charts[0].axes["place"].label == "log10 of agent.lr"


@pytest.mark.parametrize(("default", "overlaps"), [([60.0, 160.0, 200.0], True), ([10.0, 20.0, 30.0], False)])
def test_a_better_mean_whose_interval_overlaps_the_defaults_is_said_to_be_undecided(
    default: list[float], overlaps: bool
) -> None:
    won = {**candidate(3, 165.0), "values": [[150.0], [165.0], [180.0]]}
    usual = {**candidate(None, sum(default) / 3), "values": [[value] for value in default]}
    confirm = {"winner": 3, "held": True, "candidates": [won, usual]}
    found = read_search(experiment(confirm=confirm).info)
    assert found is not None
    text = " ".join(verdict(found))
    assert ("search.confirm.sessions" in text) == overlaps, "which tells what to raise"


def test_it_says_whether_the_winner_held_and_gives_the_command() -> None:
    confirm = {
        "winner": 3,
        "held": False,
        "candidates": [candidate(17, 5.0), candidate(3, 9.0), candidate(None, 10.0)],
    }
    found = blocks(search_sections(experiment(confirm=confirm, best={"command": "labrl agent.lr=1"})), "best")
    (note,) = [one for one in found if isinstance(one, Note)]
    told = re.findall(r"[Tt]rial (\d+)", note.text)
    assert told == ["3", "17"], "the winner, and the one that did not hold"
    assert re.findall(r"\b(\d+(?:\.\d+)?) on 1 fresh seed\b", note.text) == ["9", "10", "5"]
    assert next(one.text for one in found if isinstance(one, Command)) == "labrl agent.lr=1"
    (table,) = [one for one in found if isinstance(one, Table)]
    assert table.marked == {1}


def test_the_value_on_fresh_seeds_leads_and_the_one_of_the_search_is_called_lucky(tmp_path: Path) -> None:
    """A report had the lucky 109.4 of one seed above the 101.3 of three fresh ones, and lost their frames."""
    for name, to, seeds in (("0", 109.4, 1), ("1", 90.0, 1), ("confirm_trial_0_0", 101.3, 3)):
        write_run(tmp_path / name, [rising(to)] * seeds)
    write_run(tmp_path / "confirm_default_0", [rising(95.0)])
    searched = {"trial": 0, "searched": [109.4], "mean": 101.3, "values": [[100.3], [101.3], [102.3]]}
    default = {"trial": None, "searched": None, "mean": 95.0, "values": [[94.0], [95.0], [96.0]]}
    confirm = {
        "winner": 0,
        "held": True,
        "candidates": [
            {**searched, "folders": ["confirm_trial_0_0"]},
            {**default, "folders": ["confirm_default_0"]},
        ],
    }
    facts = experiment(confirm=confirm).info["search"]
    trials = [
        {
            "number": n,
            "folder": str(n),
            "status": "finished",
            "state": "complete",
            "params": {},
            "values": [v],
        }
        for n, v in enumerate((109.4, 90.0))
    ]
    write_json(tmp_path / EXPERIMENT_MARKER, {"kind": "search", "search": facts, "trials": trials})
    built = build(tmp_path)
    assert built.verdict.index("101.3") < built.verdict.index("95 on") < built.verdict.index("109.4")
    assert built.statistics["search"]["frames"] == {"search": 2000, "confirmation": 4000}
    best, other = built.statistics["search"]["confirmed"]
    assert (best["trial"], best["mean"], best["seeds"], best["searched"]) == (0, 101.3, 3, 109.4)
    assert best["low"] < 101.3 < best["high"]
    assert (other["trial"], other["mean"]) == (None, 95.0)
    page = built.path.read_text()
    assert page.index("101.3") < page.index("109.4")
    statistics = json.loads((tmp_path / "statistics.json").read_text())
    assert statistics["search"] == built.statistics["search"] == write_statistics(tmp_path)["search"]


def test_a_search_that_was_not_confirmed_calls_its_best_value_lucky() -> None:
    (note,) = [one for one in blocks(search_sections(experiment()), "best") if isinstance(one, Note)]
    assert re.search(r"\b15 trials\b", note.text), "of so many it is the best"


def test_a_report_with_these_sections_renders_and_escapes(tmp_path: Path) -> None:
    two = experiment(["final_return", "wall"])
    for trial in two.info["trials"]:
        trial["values"] = trial["values"] and [*trial["values"], 1.0]
    sections = search_sections(two)
    assert all(section.blocks for section in sections)
    page = render(Report("Search", "", "finished", "", [], [], sections), tmp_path)
    assert "out of &lt;luck&gt;" in page
    assert "<luck>" not in page
