"""Tests of pruners: which trials they stop, and that asking again gives the same answer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from search_cases import pruner as made

from labrl.experiment.search.pruners import HyperbandPruner, Pruner, Reports, WilcoxonPruner

BUDGET = 90


def pruner(kind: str, **changed: Any) -> Pruner:
    """Return a pruner that stops trials from the first report on."""
    start = {} if kind == "none" else {"n_startup_trials": 0, "n_startup_rows": 1}
    return made(kind, **{**start, **changed})


def stops(tested: Pruner, number: int, *histories: dict[int, float], full: int = 99, total: int = 99) -> bool:
    """Return whether the pruner stops trial `number`; histories: value by frame, one for each trial."""
    return tested.stops(Reports(number, dict(enumerate(histories)), full, total, BUDGET, "study"))


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
    median = pruner("median", n_startup_trials=2)
    others = [{20: 1.0}, {20: 2.0}, {20: 3.0}]
    assert stops(median, 3, *others, {20: 1.9})
    assert not stops(median, 3, *others, {10: 2.5, 20: 0.0})
    assert not stops(median, 3, *others, {20: 0.0}, full=1)


def test_hyperband_puts_most_trials_in_the_brackets_that_stop_early() -> None:
    hyperband = pruner("hyperband", grace_period=10, reduction_factor=3)
    assert isinstance(hyperband, HyperbandPruner)
    reports = Reports(0, {}, 0, 300, BUDGET, "study")
    brackets = Counter(hyperband.bracket_of(reports, number) for number in range(300))
    assert set(brackets) == {0, 1, 2}
    assert brackets[0] > brackets[1] > brackets[2]


def test_pruner_none_stops_no_trial_and_asha_has_a_default_grace_period() -> None:
    assert not stops(pruner("none"), 1, {10: 9.0}, {10: 0.0})
    asha = pruner("asha", grace_period=None)
    assert not stops(asha, 1, {9: 9.0}, {9: 0.0})
    assert stops(asha, 1, {10: 9.0}, {10: 0.0})


def test_median_pruner_compares_trials_whose_reports_are_at_other_frames() -> None:
    """Frames of reports differ between trials with different numbers of environments."""
    assert stops(pruner("median"), 1, {12: 9.0, 24: 9.0}, {10: 1.0, 20: 1.0})


KINDS = [("asha", {"grace_period": 10}), ("hyperband", {"grace_period": 10}), ("median", {})]


@pytest.mark.parametrize(("kind", "changed"), KINDS)
@pytest.mark.parametrize(("total", "first_trials", "first_rows"), [(8, 5, 3), (30, 3, 2)])
def test_no_trial_is_stopped_before_some_have_finished_and_it_has_some_rows(
    kind: str, changed: dict[str, Any], total: int, first_trials: int, first_rows: int
) -> None:
    tested = made(kind, n_startup_trials=None, **changed)
    frames = [10, 20, 30]
    bad = dict.fromkeys(frames[:first_rows], 0.0)
    others = [dict.fromkeys([*frames, 90], float(value)) for value in range(9, 99)]
    # In the last bracket of hyperband, no trial is stopped.
    numbers = range(len(others)) if kind == "hyperband" else [0]
    for number in numbers:
        histories = [*others[:number], bad, *others[number:]]
        if stops(tested, number, *histories, full=first_trials, total=total):
            assert not stops(tested, number, *histories, full=first_trials - 1, total=total)
            fewer = [*others[:number], dict.fromkeys(frames[: first_rows - 1], 0.0), *others[number:]]
            assert not stops(tested, number, *fewer, full=first_trials, total=total)
            return
    raise AssertionError("no trial was stopped")


def test_large_search_stops_trials_before_any_has_finished() -> None:
    asha = made("asha", grace_period=10)
    assert stops(asha, 1, {10: 9.0}, {10: 0.0}, full=0, total=50)


def test_asha_compares_the_first_row_that_counts_at_all_rungs_so_far() -> None:
    asha = pruner("asha", grace_period=10, n_startup_rows=3)
    best = {10: 5.0, 20: 5.0, 30: 5.0}
    assert not stops(asha, 1, best, {10: 1.0, 20: 6.0})
    assert stops(asha, 1, best, {10: 1.0, 20: 6.0, 25: 6.0})
    assert not stops(asha, 1, best, {10: 6.0, 20: 1.0, 25: 1.0})


def stopped_by_seeds(own: list[dict[int, float]], best: list[dict[int, float]], **changed: Any) -> bool:
    """Return whether the Wilcoxon pruner stops a trial. own, best: histories of the sessions of both."""
    tested = pruner("wilcoxon", **changed)
    means = {frame: sum(one[frame] for one in own) / len(own) for frame in own[0]}
    return tested.stops(Reports(1, {0: {90: 9.0}, 1: means}, 1, 99, BUDGET, "study", own, best))


BEST = [{30: value, 60: value + 10, 90: value + 20} for value in (5.0, 6.0, 7.0, 8.0, 9.0)]


def test_wilcoxon_pruner_stops_a_trial_that_is_worse_on_nearly_every_seed() -> None:
    pytest.importorskip("scipy")
    worse = [{30: value} for value in (1.0, 2.5, 2.0, 3.1, 4.7)]
    assert stopped_by_seeds(worse, BEST)
    assert not stopped_by_seeds(worse, BEST, p_threshold=0.03)  # with five seeds, p >= 1/32
    assert not stopped_by_seeds([*worse[:3], {30: 9.9}, {30: 9.8}], BEST)
    assert not stopped_by_seeds(worse, BEST, n_startup_rows=2)
    assert not stopped_by_seeds(worse, BEST, n_startup_trials=2)
    assert not stopped_by_seeds(worse, [])


def test_wilcoxon_pruner_compares_each_seed_at_the_same_frame() -> None:
    pytest.importorskip("scipy")
    better = [{30: one[30] + 1 + 0.1 * index} for index, one in enumerate(BEST)]
    assert not stopped_by_seeds(better, BEST), "the final values of the best trial are larger"
    assert not stopped_by_seeds([dict.fromkeys((30, 60, 90), 0.1 * n) for n in range(5)], BEST)  # at the end
    early = [{30: one[30]} for one in BEST]
    assert stopped_by_seeds([{60: value[30] - 2 - 0.1 * n} for n, value in enumerate(BEST)], early)


def test_wilcoxon_pruner_needs_enough_sessions_for_its_threshold() -> None:
    for threshold, sessions in ((0.1, 4), (0.125, 4), (0.05, 5), (0.6, 2), (1.0, 2)):
        tested = pruner("wilcoxon", p_threshold=threshold)
        assert isinstance(tested, WilcoxonPruner)
        assert tested.fewest_sessions == sessions
