"""Tests of statistics over few runs: they agree with the paper and rliable, and intervals are repeatable."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import rliable_numbers

from labrl.analysis import intervals
from labrl.analysis.intervals import align_curves, common_grid

CASES = rliable_numbers.arrays()
RLIABLE = json.loads(rliable_numbers.NUMBERS.read_text())


def value(statistic: str, scores: Any, target: float | None = None) -> float:
    return intervals.aggregates(scores, target)[statistic].value


@pytest.fixture
def always_resampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the bootstrap for any number of runs, as rliable does."""
    monkeypatch.setattr(intervals, "RUNS_FOR_IQM", 0)


@pytest.mark.usefixtures("always_resampled")
@pytest.mark.parametrize("case", CASES)
def test_estimates_and_intervals_agree_with_rliable(case: str) -> None:
    x, y = CASES[case]
    estimates = {**intervals.aggregates(x, target=1.0), "pair": intervals.probability_of_improvement(x, y)}
    for name, estimate in estimates.items():
        value, low, high = RLIABLE[case]["probability_of_improvement" if name == "pair" else name]
        if name == "median" and x.shape[1] == 1:
            value = np.median(x)  # rliable returns the mean of the runs of a single task
        else:
            # The ends come from other bootstrap draws, so they agree to a few percent of the interval.
            assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.06 * (high - low))
        assert estimate.value == pytest.approx(value, abs=1e-12)


@pytest.mark.usefixtures("always_resampled")
@pytest.mark.parametrize("case", CASES)
def test_performance_profiles_agree_with_rliable(case: str) -> None:
    value, low, high = intervals.performance_profile(CASES[case][0], rliable_numbers.TAU)
    expected, expected_low, expected_high = RLIABLE[case]["performance_profile"]
    np.testing.assert_allclose(value, expected, atol=1e-12)
    np.testing.assert_allclose(low, expected_low, atol=0.06)
    np.testing.assert_allclose(high, expected_high, atol=0.06)


def test_interquartile_mean_leaves_out_a_quarter_on_each_side() -> None:
    assert value("iqm", np.array([100.0, 1, 2, -50])) == 1.5
    assert value("iqm", np.array([1.0, 2, 9])) == 4
    assert value("iqm", [[0, 1, 2, 3], [4, 5, 6, 70]]) == np.mean([2, 3, 4, 5])


def test_tasks_with_different_numbers_of_runs_have_equal_weight() -> None:
    assert value("mean", [[1, 1, 1, 1], [3]]) == 2
    assert value("median", [[1, 2, 3], [10], [20, 20]]) == 10


def test_probability_of_improvement_counts_pairs_and_ties_half() -> None:
    # Of the 3 x 2 pairs, x wins 4 and ties 1.
    assert intervals.probability_of_improvement([[1, 2, 3]], [[2, 0]]).value == pytest.approx(4.5 / 6)
    assert intervals.probability_of_improvement([[1], [0]], [[0], [1]]).value == 0.5
    with pytest.raises(ValueError, match=r"\bx\b.*\by\b"):
        intervals.probability_of_improvement([[1]], [[1], [2]])


def test_single_run_has_no_interval() -> None:
    one = np.array([3.0])
    assert {(e.low, e.high) for e in intervals.aggregates(one).values()} == {(None, None)}
    assert intervals.probability_of_improvement(one, np.array([1.0, 2])) == (1.0, None, None)
    assert intervals.performance_profile(one, [0, 5])[1:] == (None, None)


def test_same_scores_always_have_the_same_interval() -> None:
    scores = np.random.default_rng(3).normal(size=6)
    assert intervals.aggregates(scores) == intervals.aggregates(scores)


def test_task_without_runs_or_with_nan_is_refused() -> None:
    for scores in ([], [[]], [[1.0, float("nan")]], np.empty((0, 3))):
        with pytest.raises(ValueError, match=r"\bscores\b"):
            intervals.aggregates(scores)


@pytest.mark.parametrize("runs", [3, 6, 9])
def test_interval_of_few_runs_covers_the_true_mean_as_often_as_stated(runs: int) -> None:
    """Regression test: the bootstrap interval of three runs covered the mean in 76 of 100 cases."""
    generator = np.random.default_rng(runs)
    found = [intervals.aggregates(generator.normal(size=runs))["mean"] for _ in range(1000)]
    inside = sum(one.low <= 0 <= one.high for one in found if one.low is not None and one.high is not None)
    assert 929 <= inside <= 971, "three standard errors around 950"


def test_interval_of_few_runs_is_students() -> None:
    four = intervals.aggregates(np.array([1.0, 2, 3, 6]), target=5.0)
    spread = np.sqrt(14 / 3 / 4)
    assert four["mean"] == pytest.approx((3, 3 - 3.182446 * spread, 3 + 3.182446 * spread), abs=1e-3)
    assert (four["iqm"], four["median"]) == ((2.5, None, None), (2.5, None, None))
    # Below the target of 5 are 4, 3, 2 and 0.
    spread = np.sqrt(8.75 / 3 / 4)
    assert four["optimality_gap"] == pytest.approx(
        (2.25, 2.25 - 3.18245 * spread, 2.25 + 3.18245 * spread), abs=1e-3
    )
    # Two tasks with three runs each and equal variances have four degrees of freedom.
    tasks = intervals.aggregates([[0, 1, 2], [10, 11, 12]])["mean"]
    spread = np.sqrt(2 / 3) / 2
    assert tasks == pytest.approx((6, 6 - 2.776445 * spread, 6 + 2.776445 * spread), abs=1e-3)
    assert intervals.aggregates([[0, 1, 2], [5]])["mean"] == (3, None, None)
    assert intervals.aggregates(np.array([1.0, 2]))["mean"] == (1.5, None, None)
    assert intervals.aggregates(np.full(4, 7.0))["mean"] == (7, 7, 7)


def test_band_of_few_runs_is_students_at_each_point() -> None:
    values = np.random.default_rng(1).normal(size=(9, 3))
    values[2:, 0] = values[4:, 1] = np.nan
    band = intervals.curve(values, "mean")
    assert np.isnan([band.low[0], band.high[0]]).all(), "two runs must have no interval"
    for point, runs in ((1, 4), (2, 9)):
        by_hand = intervals.aggregates(values[:runs, point])["mean"]
        assert (band.value[point], band.low[point], band.high[point]) == pytest.approx(by_hand)


def test_probability_of_few_runs_has_a_score_interval() -> None:
    x, y = np.array([1.0, 2, 3, 4]), np.array([0.0, 0, 0, 5])
    few = intervals.probability_of_improvement(x, y)
    assert few.value == 0.75
    # Solutions of (0.75 - p)^2 = z^2 var(p), equation of Newcombe's method 5 for m = n = 4.
    for p in (few.low, few.high):
        assert p is not None
        variance = p * (1 - p) * (1 + 3 * ((1 - p) / (2 - p) + p / (1 + p))) / 16
        assert abs(0.75 - p) == pytest.approx(1.959964 * np.sqrt(variance), abs=1e-3)


@pytest.mark.parametrize("statistic", ["iqm", "mean", "median"])
def test_point_of_a_curve_is_the_statistic_of_the_runs_that_reach_it(statistic: str) -> None:
    values = np.random.default_rng(1).normal(size=(15, 3))
    values[11:, 2] = np.nan
    values[1:, 0] = np.nan
    band = intervals.curve(values, statistic)
    assert band.count.tolist() == [1, 15, 11]
    by_hand = [values[0, 0], value(statistic, values[:, 1]), value(statistic, values[:11, 2])]
    np.testing.assert_allclose(band.value, by_hand)
    assert np.isnan([band.low[0], band.high[0]]).all(), "a single run must have no interval"
    assert (band.low[1:] < band.value[1:]).all()
    assert (band.value[1:] < band.high[1:]).all()


def test_curves_are_interpolated_linearly_and_never_extrapolated() -> None:
    grid, values = align_curves(
        [np.array([10.0, 30]), np.array([20.0, 40])], [np.array([1.0, 3]), np.array([10.0, 20])]
    )
    assert grid.tolist() == [10, 20, 30, 40]
    np.testing.assert_array_equal(values, [[1, 2, 3, np.nan], [np.nan, 10, 15, 20]])


def test_thinned_grid_keeps_its_ends() -> None:
    grid = common_grid([np.arange(0.0, 1000), np.arange(0.5, 2000)], max_points=50)
    assert (len(grid), grid[0], grid[-1]) == (50, 0, 1999.5)
    assert (np.diff(grid) > 0).all()
    assert common_grid([]).size == 0
