"""Tests of reading a search from `experiment.json` for the report."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from labrl.analysis.search_result import importances, read_search

SPACE = {
    "agent.lr": {
        "name": "FloatDistribution",
        "attributes": {"low": 1e-4, "high": 1e-2, "log": True, "step": None},
    },
    "agent.kind": {"name": "CategoricalDistribution", "attributes": {"choices": ["a", "b"]}},
}


def info(*trials: dict[str, Any]) -> dict[str, Any]:
    facts = {"space": SPACE, "objective": ["final_return"], "directions": ["maximize"]}
    return {"kind": "search", "search": facts, "trials": list(trials)}


def trial(number: int, lr: float, kind: str, value: float | None, state: str = "complete") -> dict[str, Any]:
    values = None if value is None else [value]
    return {
        "number": number,
        "params": {"agent.lr": lr, "agent.kind": kind},
        "values": values,
        "state": state,
        "intermediate": [[100, 1.0]],
        "error": None,
    }


def test_read_search_returns_none_for_other_experiments() -> None:
    assert read_search({"kind": "grid", "trials": []}) is None
    assert read_search({}) is None


def test_only_complete_trials_are_ranked_by_value() -> None:
    search = read_search(
        info(
            trial(0, 1e-3, "a", 1.0),
            trial(1, 1e-3, "b", 5.0),
            trial(2, 1e-3, "b", 9.0, "pruned"),
            trial(3, 1e-3, "a", None, "fail"),
        )
    )
    assert search is not None
    assert [one.number for one in search.ranked()] == [1, 0]
    assert [one.number for one in search.valued] == [0, 1, 2]
    assert search.trials[0].intermediate == {100: 1.0}


def test_key_that_determines_the_value_is_most_important() -> None:
    rng = np.random.default_rng(0)
    trials = [
        trial(number, 10 ** rng.uniform(-4, -2), kind := str(rng.choice(["a", "b"])), float(kind == "b"))
        for number in range(40)
    ]
    trials = [{**one, "values": [one["values"][0] + 0.01 * rng.normal()]} for one in trials]
    search = read_search(info(*trials))
    assert search is not None
    found = importances(search)
    assert next(iter(found)) == "agent.kind"
    assert math.isclose(sum(found.values()), 1.0)


def test_keys_of_equal_importance_are_in_the_order_of_their_names() -> None:
    rng = np.random.default_rng(0)
    trials = []
    for number in range(20):
        one = trial(number, value := float(10 ** rng.uniform(-4, -2)), "a", value)
        one["params"] |= {f"agent.{name}": value for name in "dacb"}
        trials.append(one)
    facts = info(*trials)
    facts["search"]["space"] = {key: SPACE["agent.lr"] for key in trials[0]["params"] if key != "agent.kind"}
    search = read_search(facts)
    assert search is not None
    assert list(importances(search)) == ["agent.a", "agent.b", "agent.c", "agent.d", "agent.lr"]


def test_importances_are_empty_for_few_or_equal_trials() -> None:
    few = [trial(n, 1e-3, "a", float(n)) for n in range(9)]
    for trials in (few, [trial(n, 1e-3, "a", 1.0) for n in range(20)]):
        search = read_search(info(*trials))
        assert search is not None
        assert importances(search) == {}
