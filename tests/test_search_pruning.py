"""Pruners stop what they are said to stop, decide the same when asked twice, and nothing at the end."""

from __future__ import annotations

from collections import Counter

import pytest
from search_cases import pruner

from labrl.experiment.search.options import HyperbandPruner, Pruner, Reports

BUDGET = 90


def stops(one: Pruner, number: int, *histories: dict[int, float], full: int = 99) -> bool:
    return one.stops(Reports(number, dict(enumerate(histories)), full, BUDGET, "study"))


def test_halving_lets_one_of_three_go_on_from_each_rung() -> None:
    asha = pruner("asha", grace_period=10, reduction_factor=3)
    others = [{10: 5.0}, {10: 1.0}, {10: 4.0}, {10: 3.0}, {10: 2.0}]
    assert not stops(asha, 5, *others, {10: 4.5})  # second of six
    assert stops(asha, 5, *others, {10: 3.5})  # third of six


def test_the_first_to_reach_a_rung_goes_on_and_a_worse_second_does_not() -> None:
    asha = pruner("asha", grace_period=10, reduction_factor=3)
    assert not stops(asha, 0, {10: 1.0})
    assert stops(asha, 1, {10: 1.0}, {10: 0.5})
    assert not stops(asha, 1, {10: 1.0}, {10: 1.5})


def test_nobody_is_stopped_before_the_grace_period_between_rungs_or_at_the_end() -> None:
    asha = pruner("asha", grace_period=10, reduction_factor=3)
    best = {9: 9.0, 10: 9.0, 20: 9.0, 30: 9.0, 90: 9.0}
    assert not stops(asha, 1, best, {9: 0.0})
    assert not stops(asha, 1, best, {10: 9.0, 20: 0.0})
    assert stops(asha, 1, best, {10: 9.0, 30: 0.0})
    assert not stops(asha, 1, best, {10: 9.0, 30: 9.0, 90: 0.0})


def test_a_rung_between_two_reports_counts_at_the_later_one() -> None:
    asha = pruner("asha", grace_period=10, reduction_factor=3)
    assert stops(asha, 1, {8: 1.0, 16: 5.0}, {8: 9.0, 16: 4.0})


@pytest.mark.parametrize(
    "one", [pruner("asha", grace_period=10), pruner("median"), pruner("hyperband", grace_period=10)]
)
def test_a_pruner_decides_the_same_when_it_is_asked_again(one: Pruner) -> None:
    histories = [{10: float(value)} for value in range(8)]
    first = [stops(one, number, *histories) for number in range(8)]
    assert first == [stops(one, number, *histories) for number in range(8)]
    assert any(first)
    assert not all(first)


def test_the_median_compares_the_best_so_far_at_the_same_frame() -> None:
    median = pruner("median", startup_trials=2, warmup=20)
    others = [{20: 1.0}, {20: 2.0}, {20: 3.0}]
    assert stops(median, 3, *others, {20: 1.9})
    assert not stops(median, 3, *others, {10: 2.5, 20: 0.0})
    assert not stops(median, 3, *others, {10: 0.0})  # still warming up
    assert not stops(median, 3, *others, {20: 0.0}, full=1)


def test_hyperband_has_an_eager_bracket_and_one_that_stops_nothing() -> None:
    hyperband = pruner("hyperband", grace_period=10, reduction_factor=3)
    assert isinstance(hyperband, HyperbandPruner)
    reports = Reports(0, {}, 0, BUDGET, "study")
    brackets = Counter(hyperband.bracket_of(reports, number) for number in range(300))
    assert set(brackets) == {0, 1, 2}
    assert brackets[0] > brackets[1] > brackets[2]


def test_no_pruner_stops_nothing_and_the_default_grace_leaves_two_rungs() -> None:
    assert not stops(pruner("none"), 1, {10: 9.0}, {10: 0.0})
    assert pruner("asha", grace_period=None).spares(BUDGET) == ("search.pruner.grace_period", 10)
