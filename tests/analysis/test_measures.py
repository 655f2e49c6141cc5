"""Tests of measures: each equals its formula computed by hand, and is None where it is not defined."""

from __future__ import annotations

import numpy as np
import pytest

from labrl.analysis import measures
from labrl.run.tables import final_return


def test_strength_is_the_return_above_the_random_policy() -> None:
    assert measures.strength([10, 30, 20], 20).tolist() == [-10, 10, 0]


def test_efficiency_weights_strength_by_one_over_time() -> None:
    # (1/10 + 3/20 + 6/30) / (1 + 3 + 6)
    assert measures.efficiency([1, 3, 6], [10, 20, 30]) == pytest.approx(0.45 / 10)
    # The same strength is worth more if it comes earlier.
    assert measures.efficiency([6, 3, 1], [10, 20, 30]) == pytest.approx((0.6 + 0.15 + 1 / 30) / 10)


def test_efficiency_ignores_checkpoints_before_the_first_update() -> None:
    assert measures.efficiency([100, 3, 6], [0, 20, 30]) == pytest.approx((0.15 + 0.2) / 9)


@pytest.mark.parametrize("strengths", [[], [0, 0], [-1, 1], [-3, 1]])
def test_efficiency_is_not_defined_without_strength(strengths: list[float]) -> None:
    assert measures.efficiency(strengths, np.arange(1, len(strengths) + 1)) is None


def test_stability_is_one_minus_the_drops_over_the_strength() -> None:
    assert measures.stability([1, 2, 3]) == 1
    # The drops are 2 and 1; the strengths before the last are 4, 2 and 5.
    assert measures.stability([4, 2, 5, 4]) == pytest.approx(1 - 3 / 11)


@pytest.mark.parametrize("strengths", [[], [5], [-1, 1, 7], [0, 7]])
def test_stability_is_not_defined_without_strength_before_the_end(strengths: list[float]) -> None:
    assert measures.stability(strengths) is None


def test_consistency_is_one_minus_twice_the_deviation_over_the_mean() -> None:
    # (1, 2, 3) and (2, 4, 6) have sample standard deviations 1 and 2, and means 2 and 4.
    assert measures.consistency([[1, 2], [2, 4], [3, 6]]) == pytest.approx(1 - 2 * 3 / 6)
    assert measures.consistency([[1, 2], [1, 2]]) == 1


@pytest.mark.parametrize("strengths", [[[1, 2]], [[-1, 0], [0, -1]], [[], []]])
def test_consistency_is_not_defined_for_one_session_or_without_strength(strengths: list[list[float]]) -> None:
    assert measures.consistency(strengths) is None


def test_final_return_is_the_mean_of_the_last_tenth_of_the_frames() -> None:
    frames = np.arange(100, 2001, 100)  # the last tenth: above 1800
    assert final_return(frames, np.arange(20)) == 18.5
    assert final_return([10, 20, 30], [1, 2, 4]) == 4
    assert final_return([0], [7]) == 7
    assert final_return([], []) is None


def test_slm_final_is_the_mean_of_the_last_hundred_rows() -> None:
    assert measures.slm_final(np.arange(300)) == np.arange(200, 300).mean()
    assert measures.slm_final([1, 2]) == 1.5
    assert measures.slm_final([]) is None


def test_area_under_curve_is_the_average_return_over_frames() -> None:
    # The return averages 2 while it rises from 0 to 4 in 10 frames, and is 4 for another 30.
    assert measures.area_under_curve([10, 20, 50], [0, 4, 4]) == pytest.approx((2 * 10 + 4 * 30) / 40)
    assert measures.area_under_curve([10], [3]) == 3
    assert measures.area_under_curve([], []) is None


def test_time_to_a_threshold_is_that_of_the_first_row_to_reach_it() -> None:
    assert measures.time_to([10, 20, 30], [1, 5, 3], threshold=3) == 20
    assert measures.time_to([10, 20, 30], [1, 5, 3], threshold=5) == 20
    assert measures.time_to([10, 20, 30], [1, 5, 3], threshold=6) is None


def test_human_normalized_score_is_zero_for_random_and_one_for_human() -> None:
    assert measures.human_normalized(-20.7, random=-20.7, human=14.6) == 0
    assert measures.human_normalized(14.6, random=-20.7, human=14.6) == 1
