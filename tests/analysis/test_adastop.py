"""Tests of comparisons in stages: few false decisions, early true ones, and the seeds that are needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from run_cases import config_with, rows_of, write_run

from labrl.analysis.adastop import Stages, compare
from labrl.cli import report
from labrl.errors import DONE, WRONG_INPUT

STAGE, MOST = Stages().size, Stages().most
Draw = Callable[[np.random.Generator, int], np.ndarray]


def two_humped(generator: np.random.Generator, seeds: int) -> np.ndarray:
    return np.where(generator.random(seeds) < 0.7, 1.0, 0.0) + 0.1 * generator.normal(size=seeds)


def normal(generator: np.random.Generator, seeds: int) -> np.ndarray:
    return generator.normal(size=seeds)


@pytest.mark.extended
@pytest.mark.parametrize(("groups", "draw"), [(2, normal), (3, two_humped)])
def test_at_most_five_percent_of_experiments_without_difference_have_a_false_decision(
    groups: int, draw: Draw
) -> None:
    generator = np.random.default_rng(1)
    errors = 0
    for _ in range(1000):
        found = compare({str(group): draw(generator, MOST) for group in range(groups)}, draws=2016)
        errors += any(pair.better for pair in found.pairs)
    assert errors <= 64, "5 % and twice its binomial standard deviation"
    assert errors >= 20, "a test that never decides would have no error either"


def test_large_differences_are_decided_with_few_seeds() -> None:
    generator = np.random.default_rng(2)
    found = [
        compare({"a": normal(generator, MOST) + 2, "b": normal(generator, MOST)}, draws=2016).pairs[0]
        for _ in range(100)
    ]
    assert sum(pair.better == "a" for pair in found) >= 98
    assert np.mean([pair.seeds for pair in found]) < 12


def test_better_groups_leave_the_comparison_and_equal_ones_go_on() -> None:
    generator = np.random.default_rng(3)
    same = normal(generator, MOST)
    found = compare({"best": same + 50, "x": same, "y": same + 1e-3 * normal(generator, MOST)})
    better = {(pair.x, pair.y): pair for pair in found.pairs}
    assert list(better) == list(combinations(["best", "x", "y"], 2))
    assert better["best", "x"].better == better["best", "y"].better == "best"
    assert better["best", "x"].seeds <= 2 * STAGE
    assert (better["x", "y"].better, better["x", "y"].seeds) == (None, MOST)
    assert found.undecided == []


def test_decision_is_by_the_direction_of_the_difference_and_repeatable() -> None:
    low, high = np.arange(10.0), np.arange(10.0) + 100
    for groups in ({"low": low, "high": high}, {"high": high, "low": low}):
        (pair,) = compare(groups).pairs
        assert (pair.better, pair.seeds) == ("high", STAGE)
    assert compare({"a": low, "b": low + 1}) == compare({"a": low, "b": low + 1})


def test_missing_seeds_are_named_and_incomplete_stages_are_not_used() -> None:
    rng = np.random.default_rng(4)
    base = normal(rng, MOST)
    found = compare({"a": base[:12], "b": base[:9] + 0.1, "c": base[:9] + 100})
    assert {pair.better for pair in found.pairs} == {None, "c"}
    (pair,) = found.undecided
    assert (pair.x, pair.y, pair.seeds) == ("a", "b", 5)
    assert found.next_stage() == {"a": 10, "b": 10}
    assert compare({"a": base[:4], "b": base[:4] + 100}).pairs[0].seeds == 0
    assert compare({"a": base[:10], "b": base[:10]}, Stages(most=10)).undecided == []
    with pytest.raises(ValueError, match="returns"):
        compare({"a": base})


def test_command_says_what_is_decided_and_how_many_seeds_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LABRL_CACHE", str(tmp_path / "cache"))
    generator = np.random.default_rng(5)
    for name, lr, level in (("a", 1e-3, 100.0), ("b", 2e-3, 100.5), ("c", 3e-3, 400.0)):
        for seed in range(5):
            config = config_with(agent__lr=lr, seed=seed)
            rows = rows_of([500, 1000], [level + generator.normal()] * 2)
            write_run(tmp_path / name / str(seed), [rows], config=config)
    assert report([str(tmp_path), "--adaptive"]) == DONE
    shown = capsys.readouterr().out
    *pairs, next_stage, limitation = shown.splitlines()
    named = [re.findall(r"lr=(0.00[123])", line) for line in pairs if "lr=" in line]
    assert named == [["0.001", "0.002"], ["0.001", "0.003", "0.003"], ["0.002", "0.003", "0.003"]]
    facts = re.findall(r"\b5\b|0.00[123]|10,000|\b10\b", next_stage)
    assert facts == ["5", "0.001", "5", "0.002", "10", "10,000"]
    assert "seed=auto" in limitation, "these seeds were not planned in stages"
    assert not (tmp_path / "report.html").exists()
    assert report([str(tmp_path / "a"), "--adaptive"]) == WRONG_INPUT
    assert "--adaptive" in capsys.readouterr().err
