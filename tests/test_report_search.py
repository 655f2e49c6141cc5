"""A search's report shows its history, what mattered, and the best against the default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

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


def test_it_says_whether_the_winner_held_and_gives_the_command() -> None:
    confirm = {
        "winner": 3,
        "held": False,
        "candidates": [candidate(17, 5.0), candidate(3, 9.0), candidate(None, 10.0)],
    }
    found = blocks(search_sections(experiment(confirm=confirm, best={"command": "labrl agent.lr=1"})), "best")
    (note,) = [one for one in found if isinstance(one, Note)]
    assert "did not hold" in note.text
    assert "no better than the default" in note.text
    assert next(one.text for one in found if isinstance(one, Command)) == "labrl agent.lr=1"
    (table,) = [one for one in found if isinstance(one, Table)]
    assert table.marked == {1}


def test_a_report_with_these_sections_renders_and_escapes(tmp_path: Path) -> None:
    two = experiment(["final_return", "wall"])
    for trial in two.info["trials"]:
        trial["values"] = trial["values"] and [*trial["values"], 1.0]
    sections = search_sections(two)
    assert all(section.blocks for section in sections)
    page = render(Report("Search", "", "finished", "", [], [], sections), tmp_path)
    assert "out of &lt;luck&gt;" in page
    assert "<luck>" not in page
