"""Tests of pruners: which trials they stop, and that asking again gives the same answer."""

from __future__ import annotations

from collections import Counter

import pytest
from search_cases import pruner

from labrl.experiment.search.pruners import HyperbandPruner, Pruner, Reports

BUDGET = 90


def stops(tested: Pruner, number: int, *histories: dict[int, float], full: int = 99) -> bool:
    """Return whether the pruner stops trial `number`; histories: value by frame, one for each trial."""
    return tested.stops(Reports(number, dict(enumerate(histories)), full, BUDGET, "study"))


def test_asha_continues_a_third_of_the_trials_at_each_rung() -> None:
    asha = pruner("asha", grace_period=10, reduction_factor=3)
    others = [{10: 5.0}, {10: 1.0}, {10: 4.0}, {10: 3.0}, {10: 2.0}]
    assert not stops(asha, 5, *others, {10: 4.5})  # the second best of six
    assert stops(asha, 5, *others, {10: 3.5})  # the third best of six


def test_asha_continues_the_first_trial_at_a_rung_and_stops_a_worse_second() -> None:
    asha = pruner("asha", grace_period=10, reduction_factor=3)
    assert not stops(asha, 0, {10: 1.0})
    assert stops(asha, 1, {10: 1.0}, {10: 0.5})
    assert not stops(asha, 1, {10: 1.0}, {10: 1.5})


def test_asha_stops_only_at_rungs_before_the_end() -> None:
    asha = pruner("asha", grace_period=10, reduction_factor=3)
    best = {9: 9.0, 10: 9.0, 20: 9.0, 30: 9.0, 90: 9.0}
    assert not stops(asha, 1, best, {9: 0.0})
    assert not stops(asha, 1, best, {10: 9.0, 20: 0.0})
    assert stops(asha, 1, best, {10: 9.0, 30: 0.0})
    assert not stops(asha, 1, best, {10: 9.0, 30: 9.0, 90: 0.0})


def test_asha_decides_at_the_first_report_after_a_rung() -> None:
    asha = pruner("asha", grace_period=10, reduction_factor=3)
    assert stops(asha, 1, {8: 1.0, 16: 5.0}, {8: 9.0, 16: 4.0})


@pytest.mark.parametrize(
    "tested", [pruner("asha", grace_period=10), pruner("median"), pruner("hyperband", grace_period=10)]
)
def test_pruner_gives_the_same_answer_when_asked_again(tested: Pruner) -> None:
    histories = [{10: float(value)} for value in range(8)]
    first = [stops(tested, number, *histories) for number in range(8)]
    assert first == [stops(tested, number, *histories) for number in range(8)]
    assert any(first)
    assert not all(first)


def test_median_pruner_compares_the_best_value_so_far_at_the_same_frame() -> None:
    median = pruner("median", startup_trials=2, warmup=20)
    others = [{20: 1.0}, {20: 2.0}, {20: 3.0}]
    assert stops(median, 3, *others, {20: 1.9})
    assert not stops(median, 3, *others, {10: 2.5, 20: 0.0})
    assert not stops(median, 3, *others, {10: 0.0})  # still in warmup
    assert not stops(median, 3, *others, {20: 0.0}, full=1)


def test_hyperband_puts_most_trials_in_the_brackets_that_stop_early() -> None:
    hyperband = pruner("hyperband", grace_period=10, reduction_factor=3)
    assert isinstance(hyperband, HyperbandPruner)
    reports = Reports(0, {}, 0, BUDGET, "study")
    brackets = Counter(hyperband.bracket_of(reports, number) for number in range(300))
    assert set(brackets) == {0, 1, 2}
    assert brackets[0] > brackets[1] > brackets[2]


def test_pruner_none_stops_no_trial_and_asha_has_a_default_grace_period() -> None:
    assert not stops(pruner("none"), 1, {10: 9.0}, {10: 0.0})
    assert pruner("asha", grace_period=None).spares(BUDGET) == ("search.pruner.grace_period", 10)
