"""Tests of prioritized replay: priorities and weights follow the paper and stay with their transitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_cases import NUMBER, STACK, VECTOR, NaiveReplay, World, everything, fill, load, prioritized, saved

from labrl.memory.prioritized import PrioritizedReplay
from labrl.schedules import LinearSchedule

ALPHA, EPS = 0.5, 0.01


def relative_priorities(memory: PrioritizedReplay) -> np.ndarray:
    """Return the priorities of all transitions, newest first, divided by the smallest. Requires beta = 1."""
    return 1 / everything(memory).weight


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_priority_is_that_of_the_last_error_of_a_transition(data: st.DataObject) -> None:
    num_envs, n_step = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    space, seed = data.draw(st.sampled_from([VECTOR, STACK])), data.draw(st.integers(0, 10_000))
    capacity = num_envs * (n_step + 1 + data.draw(st.integers(0, 12)))
    options = {"capacity": capacity, "alpha": ALPHA, "eps": EPS, "beta": 1.0, "newest_share": 1}
    memory = prioritized(space, num_envs, n_step, seed, **options)
    naive, rng = NaiveReplay(space, num_envs, capacity, n_step), np.random.default_rng(seed)
    priority: dict[tuple[int, int], float] = {}
    largest, past = 1.0, []
    for observation, action, step in World(space, num_envs, seed, ends=0.15).steps(70):
        memory.add(observation, action, step)
        naive.add(observation, action, step)
        pairs = naive.sampleable()
        priority = {pair: priority.get(pair, largest) for pair in pairs}
        if not pairs:
            continue
        if rng.random() < 0.5:
            sample = everything(memory)
            error = rng.normal(size=len(pairs)) * 3
            chosen = rng.random(len(pairs)) < 0.3
            new = dict(zip(pairs, (np.abs(error) + EPS) ** ALPHA, strict=True))
            new = {pair: new[pair] for pair, taken in zip(pairs, chosen, strict=True) if taken}
            memory.update_priorities(sample.index[chosen], error[chosen])
            priority.update(new)
            largest = max([largest, *new.values()])
            past.append((sample.index, pairs))
        if past and rng.random() < 0.3:
            # Errors may arrive when some of their transitions have already been overwritten.
            index, late = past[int(rng.integers(len(past)))]
            memory.update_priorities(index, np.full(len(index), 2.0))
            priority.update({pair: (2 + EPS) ** ALPHA for pair in late if pair in priority})
            largest = max(largest, (2 + EPS) ** ALPHA)
        expected = np.array([priority[pair] for pair in pairs])
        np.testing.assert_allclose(relative_priorities(memory), expected / expected.min(), rtol=1e-5)


def filled(seed: int = 0, steps: int = 50, **options: object) -> PrioritizedReplay:
    """Fill a buffer with 30 transitions, the last 10 steps of 3 environments, and give each its own error."""
    memory = prioritized(NUMBER, 3, seed=seed, **{"capacity": 30, "newest_share": 1, **options})
    fill(World(NUMBER, 3, 0), steps, memory)
    index = everything(memory).index
    memory.update_priorities(index, np.arange(1.0, len(index) + 1))
    return memory


def drawing_by_priority(memory: PrioritizedReplay, **options: object) -> PrioritizedReplay:
    """Copy a buffer into one that draws all its samples by priority, none because they are the newest."""
    other = prioritized(NUMBER, 3, **{"capacity": 30, "newest_share": 0, **options})
    load(other, saved(memory))
    return other


@pytest.mark.parametrize(
    ("alpha", "stratified", "expected"),
    [(1.0, True, np.arange(1, 31)), (1.0, False, np.arange(1, 31)), (0.0, True, np.full(30, 15.5))],
)
def test_draws_are_proportional_to_the_priorities(
    alpha: float, stratified: bool, expected: np.ndarray
) -> None:
    memory = filled(alpha=alpha, eps=1e-9)
    order = everything(memory).index
    other = drawing_by_priority(memory, alpha=alpha, stratified=stratified)
    index = other.sample(46_500, 0).index
    error = np.array([np.count_nonzero(index == one) for one in order]) - 100 * expected
    # A stratum has one draw, so that an error is at most one at either end.
    assert (np.abs(error) <= 2).all() == stratified
    assert (np.abs(error) < 5 * np.sqrt(100 * expected)).all()


@pytest.mark.parametrize(("frame", "share"), [(0, 0.0), (500, 0.5), (2000, 1.0)])
def test_alpha_and_beta_follow_their_schedules_and_the_largest_weight_is_one(
    frame: int, share: float
) -> None:
    beta = LinearSchedule(kind="linear", start=0.4, end=1.0, horizon=1000, warmup=0)
    weight = filled(alpha=1.0, eps=1e-9, beta=beta).sample(30, frame).weight
    np.testing.assert_allclose(weight, np.arange(1, 31) ** -(0.4 + 0.6 * share), rtol=1e-5)
    assert weight.max() == 1
    alpha = LinearSchedule(kind="linear", start=1.0, end=0.0, horizon=1000, warmup=0)
    memory = filled(alpha=alpha, eps=1e-9, beta=1.0)
    memory.update_priorities(memory.sample(30, frame).index, np.arange(1.0, 31.0))
    np.testing.assert_allclose(relative_priorities(memory), np.arange(1, 31) ** (1 - share), rtol=1e-5)


def test_non_finite_errors_are_refused() -> None:
    memory = filled()
    index = everything(memory).index[:2]
    with pytest.raises(ValueError, match="finite"):
        memory.update_priorities(index, np.array([1.0, np.nan]))
