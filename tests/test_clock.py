"""Tests of the clock: every multiple of a frequency is due exactly once, also after a restore."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from labrl.clock import Clock


def play(clock: Clock, num_envs: int, frequency: int) -> list[int]:
    """Tick until the budget is spent. Return the frames at which `frequency` was due."""
    due = []
    while not clock.finished:
        clock.tick(num_envs)
        if clock.due(frequency):
            due.append(clock.frame)
    return due


@given(st.integers(1, 300), st.integers(1, 64), st.integers(1, 2000))
def test_each_multiple_is_due_exactly_once_and_the_end_once_it_is_told(
    frequency: int, num_envs: int, max_frame: int
) -> None:
    clock = Clock(max_frame)
    due = play(clock, num_envs, frequency)
    # The first tick at or beyond each multiple is due; several multiples in one tick count once.
    crossings = {
        -(-multiple // num_envs) * num_envs for multiple in range(frequency, clock.frame + 1, frequency)
    }
    assert due == sorted(crossings)
    clock.ended = True
    assert clock.due(frequency)
    assert max_frame <= clock.frame < max_frame + num_envs


@given(st.integers(1, 300), st.integers(1, 64), st.integers(2, 2000), st.data())
def test_restored_clock_is_due_at_the_frames_of_uninterrupted_clock(
    frequency: int, num_envs: int, max_frame: int, data: st.DataObject
) -> None:
    uninterrupted = play(Clock(max_frame), num_envs, frequency)
    first = Clock(max_frame)
    steps = data.draw(st.integers(0, -(-max_frame // num_envs)))
    before = []
    for _ in range(steps):
        first.tick(num_envs)
        if first.due(frequency):
            before.append(first.frame)
    second = Clock(max_frame)
    second.load_state_dict(first.state_dict())
    assert second.due(frequency) == first.due(frequency)
    assert before + play(second, num_envs, frequency) == uninterrupted


def test_counts_and_seconds_are_restored() -> None:
    clock = Clock(100)
    clock.start()
    clock.tick(8, episodes=3)
    clock.opt_step += 5
    clock.stop()
    stopped = clock.wall
    restored = Clock(1000)
    restored.load_state_dict(clock.state_dict())
    assert (restored.frame, restored.episode, restored.opt_step) == (8, 3, 5)
    assert restored.wall == clock.wall == stopped > 0
    assert restored.max_frame == 1000, "the budget was restored instead of taken from the configuration"
    restored.start()
    assert restored.wall >= stopped


@given(st.integers(1, 500), st.integers(1, 100), st.integers(1, 9))
def test_clock_finishes_with_the_budget_reached_first(frames: int, updates: int, per_tick: int) -> None:
    clock = Clock(frames, updates)
    while not clock.finished:
        before = (clock.frame, clock.opt_step)
        clock.opt_step += per_tick
        clock.tick(3)
    assert before[0] < frames
    assert before[1] < updates
    assert clock.frame >= frames or clock.opt_step >= updates


def test_wall_time_is_checked_and_frequencies_are_due_at_ticks_only() -> None:
    clock = Clock(10, max_wall=1e-9)
    clock.start()
    assert clock.wall > 1e-9
    assert not clock.finished
    assert not clock.due(1)
    clock.tick(1)
    assert clock.finished
    assert clock.due(1)
    assert not clock.due(1000)
