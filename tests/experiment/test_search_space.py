"""Tests of search spaces: their syntax is that of Hydra's Optuna sweeper, and a wrong one is refused."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from refusals import refused

from labrl.errors import Code
from labrl.experiment.search.space import Space


def space(
    *overrides: str, ready: dict[str, str] | None = None, params: dict[str, Any] | None = None
) -> Space:
    return Space.of({**(ready or {}), **(params or {})}, overrides)


def test_syntax_is_that_of_hydras_sweeper() -> None:
    found = space(
        "a=tag(log, interval(1e-5, 1e-2))",
        "b=interval(0.0, 1.0)",
        "c=choice(1, x)",
        "d=range(2, 9, 3)",
        "e=4,5",
        "f=int(interval(1, 8))",
        "g=tag(log, int(interval(1, 8)))",
    ).distributions
    assert found["a"] == optuna.distributions.FloatDistribution(1e-5, 1e-2, log=True)
    assert found["b"] == optuna.distributions.FloatDistribution(0.0, 1.0)
    assert found["c"] == optuna.distributions.CategoricalDistribution((1, "x"))
    assert found["d"] == optuna.distributions.IntDistribution(2, 8, step=3)
    assert found["f"] == optuna.distributions.IntDistribution(1, 8)
    assert found["g"] == optuna.distributions.IntDistribution(1, 8, log=True)
    assert found["e"] == optuna.distributions.CategoricalDistribution((4, 5))


def test_command_line_wins_over_params_and_params_over_the_ready_space() -> None:
    ready = {"a": "interval(0, 1)", "b": "interval(0, 1)", "c": "interval(0, 1)"}
    found = space("a=7", "c=choice(1,2)", ready=ready, params={"b": "choice(3,4)"})
    assert set(found.distributions) == {"b", "c"}
    assert found.fixed == ["a=7"]
    assert found.distributions["b"] == optuna.distributions.CategoricalDistribution((3, 4))


def test_trial_gets_fixed_overrides_and_its_values_but_no_search_options() -> None:
    found = space(
        "env=pong",
        "x=choice('a b', true)",
        "~y",
        "+z=1",
        "search=ppo",
        "search/pruner=none",
        "meta.max_trial=3",
    )
    assert found.overrides({"x": "a b"}) == ["env=pong", "~y", "+z=1", "x=a b"]
    assert OverridesParser.create().parse_override("x=a b").value() == "a b"
    assert found.overrides({"x": True})[-1] == "x=true"


@pytest.mark.parametrize(
    ("override", "code", "key"),
    [
        ("a=interval(2, 1)", "range", "a"),
        ("a=range(5, 5)", "range", "a"),
        ("+a=tag(log, interval(0, 1))", "range", "a"),
        ("a=choice()", "syntax", "a"),
        ("a=interval(1", "syntax", "a"),
        ("seed=choice(1, 2)", "unsupported", "seed"),
        ("a=1", "missing", "search"),
    ],
)
def test_wrong_space_is_refused_with_its_key(override: str, code: Code, key: str) -> None:
    with refused(code, key):
        space(override)


def test_space_of_a_file_may_have_lists_and_quoted_text_as_choices() -> None:
    found = space(ready={"hidden": "choice([64,64],[32])"}, params={"rate": "choice('1/8','1/4')"})
    assert set(found.distributions) == {"hidden", "rate"}
    assert found.overrides({"hidden": "[64,64]", "rate": "'1/4'"}) == ["hidden=[64,64]", "rate='1/4'"]


def test_key_may_be_removed_and_added_again() -> None:
    piece = "+agent.lr={kind: piecewise, points: [[0, 1e-3]]}"
    assert space("~agent.lr", piece, "x=choice(1,2)").fixed == ["~agent.lr", piece]
    found = space("~agent.lr", "+agent.lr=choice(1,2)")
    assert found.overrides({"+agent.lr": 2}) == ["~agent.lr", "+agent.lr=2"]
