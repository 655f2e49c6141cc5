"""A schedule is a pure function of the frame, exact at its ends, and constant after its horizon."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labrl.schedules import (
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    PiecewiseSchedule,
    Schedule,
    StepSchedule,
    largest,
    smallest,
    value_at,
)

LINEAR = LinearSchedule(kind="linear", start=1.0, end=0.0, horizon=100, warmup=0)
COSINE = CosineSchedule(kind="cosine", start=1.0, end=0.0, horizon=100, warmup=0)
EXPONENTIAL = ExponentialSchedule(kind="exponential", start=1.0, end=0.01, horizon=100, warmup=0)
STEP = StepSchedule(kind="step", start=1.0, factor=0.1, steps=2, horizon=100, warmup=0)
PIECEWISE = PiecewiseSchedule(kind="piecewise", points=[(10, 1.0), (20, 3.0), (40, 0.0)])


def test_a_number_is_a_constant() -> None:
    assert value_at(0.25, 0) == value_at(0.25, 10**9) == 0.25


@pytest.mark.parametrize(
    ("schedule", "frame", "expected"),
    [
        (LINEAR, 0, 1.0),
        (LINEAR, 25, 0.75),
        (LINEAR, 100, 0.0),
        (COSINE, 0, 1.0),
        (COSINE, 50, 0.5),
        (COSINE, 25, 0.5 * (1 + math.sqrt(0.5))),
        (EXPONENTIAL, 50, 0.1),
        (EXPONENTIAL, 100, 0.01),
        (STEP, 49, 1.0),
        (STEP, 50, 0.1),
        (STEP, 100, 0.01),
        (PIECEWISE, 0, 1.0),
        (PIECEWISE, 10, 1.0),
        (PIECEWISE, 15, 2.0),
        (PIECEWISE, 30, 1.5),
        (PIECEWISE, 40, 0.0),
        (PIECEWISE, 99, 0.0),
    ],
)
def test_values_computed_by_hand(schedule: object, frame: int, expected: float) -> None:
    assert value_at(schedule, frame) == pytest.approx(expected)  # type: ignore[arg-type]


def test_an_end_of_zero_and_a_growing_value_are_reached() -> None:
    growing = LinearSchedule(kind="linear", start=0.0, end=2.0, horizon=10, warmup=0)
    assert [value_at(growing, frame) for frame in (0, 5, 10, 20)] == [0.0, 1.0, 2.0, 2.0]


def test_warm_up_rises_from_zero_and_then_the_shape_begins() -> None:
    schedule = LinearSchedule(kind="linear", start=1.0, end=0.0, horizon=110, warmup=10)
    assert [value_at(schedule, frame) for frame in (0, 5, 10, 60, 110)] == pytest.approx([0, 0.5, 1, 0.5, 0])


@pytest.mark.parametrize("schedule", [LINEAR, COSINE, EXPONENTIAL, STEP, PIECEWISE])
@given(frame=st.integers(min_value=100, max_value=10**10))
def test_nothing_changes_after_the_horizon(schedule: object, frame: int) -> None:
    assert value_at(schedule, frame) == value_at(schedule, 100)  # type: ignore[arg-type]


def test_a_warm_up_until_the_horizon_ends_there() -> None:
    schedule = LinearSchedule(kind="linear", start=1.0, end=0.5, horizon=10, warmup=10)
    assert [value_at(schedule, frame) for frame in (0, 9, 10, 11)] == [0.0, 0.9, 0.5, 0.5]


def test_a_warm_up_that_outlasts_the_schedule_is_refused() -> None:
    LinearSchedule(kind="linear", start=1, end=0, horizon=10, warmup=10)
    with pytest.raises(ValueError, match=r"warmup must not be longer than horizon 10.*got 11"):
        CosineSchedule(kind="cosine", start=1, end=0, horizon=10, warmup=11)


def test_points_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="must grow"):
        PiecewiseSchedule(kind="piecewise", points=[(10, 1.0), (10, 2.0)])


def test_what_is_beyond_all_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"start \* factor \*\* steps is beyond all numbers"):
        StepSchedule(kind="step", start=1e-3, factor=1e200, steps=3, horizon=2000, warmup=0)
    with pytest.raises(ValueError, match=r"start \* factor \*\* steps is beyond all numbers"):
        StepSchedule(kind="step", start=1.0, factor=1e20, steps=2, horizon=2000, warmup=0)
    with pytest.raises(ValueError, match="end / start is beyond all numbers"):
        ExponentialSchedule(kind="exponential", start=1e-300, end=1e300, horizon=1000, warmup=0)


def test_a_step_comes_at_its_frame_and_not_one_late() -> None:
    halved = StepSchedule(kind="step", start=1.0, factor=0.5, steps=100, horizon=1_000_000, warmup=0)
    for step in range(1, 101):
        assert value_at(halved, 10_000 * step) == 0.5**step
        assert value_at(halved, 10_000 * step - 1) == 0.5 ** (step - 1)


@pytest.mark.parametrize(
    ("factor", "ends"), [(0.5, (0.0, 1.0)), (-0.5, (-0.5, 1.0)), (-1.0, (-1.0, 1.0)), (1.0, (1.0, 1.0))]
)
def test_the_bounds_of_a_billion_steps_are_known_at_once(factor: float, ends: tuple[float, float]) -> None:
    schedule = StepSchedule(kind="step", start=1.0, factor=factor, steps=10**9, horizon=10**9, warmup=0)
    assert (smallest(schedule), largest(schedule)) == ends


@pytest.mark.parametrize(
    ("schedule", "lowest"),
    [
        (0.5, 0.5),
        (LinearSchedule(kind="linear", start=1, end=-1, horizon=10, warmup=0), -1),
        (CosineSchedule(kind="cosine", start=2, end=1, horizon=10, warmup=0), 1),
        (LinearSchedule(kind="linear", start=1, end=2, horizon=10, warmup=2), 0),
        (StepSchedule(kind="step", start=1, factor=-2, steps=3, horizon=9, warmup=0), -8),
        (PiecewiseSchedule(kind="piecewise", points=[(0, 1.0), (5, -3.0), (9, 0.0)]), -3),
    ],
    ids=str,
)
def test_smallest_is_what_the_coefficient_never_falls_below(schedule: Schedule, lowest: float) -> None:
    assert smallest(schedule) == lowest
    assert min(value_at(schedule, frame) for frame in range(12)) == pytest.approx(lowest)


@pytest.mark.parametrize(
    ("schedule", "highest"),
    [
        (0.5, 0.5),
        (LinearSchedule(kind="linear", start=0.25, end=1.0, horizon=10, warmup=0), 1.0),
        (LinearSchedule(kind="linear", start=-1.0, end=-2.0, horizon=10, warmup=5), 0.0),
        (StepSchedule(kind="step", start=1.0, factor=2.0, steps=3, horizon=9, warmup=0), 8.0),
        (PiecewiseSchedule(kind="piecewise", points=[(0, 0.0), (5, 3.0), (9, 1.0)]), 3.0),
    ],
    ids=str,
)
def test_largest_is_what_the_coefficient_never_exceeds(schedule: Schedule, highest: float) -> None:
    assert largest(schedule) == highest
    assert max(value_at(schedule, frame) for frame in range(12)) == pytest.approx(highest)
