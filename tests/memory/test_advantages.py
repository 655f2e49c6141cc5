"""Tests of generalized advantages: bootstrapping at time limits only, and no leak between episodes."""

from __future__ import annotations

import numpy as np
import pytest

from labrl.memory.rollout import generalized_advantages

DISCOUNT = 0.9


def test_advantages_equal_hand_computed_values() -> None:
    reward = np.array([[1.0], [2.0]], np.float32)
    value = np.array([[0.5], [1.0]], np.float32)
    next_value = np.array([[1.0], [3.0]], np.float32)
    no = np.zeros((2, 1), bool)
    errors = [1 + 0.9 * 1.0 - 0.5, 2 + 0.9 * 3.0 - 1.0]
    advantage = generalized_advantages(reward, value, next_value, no, no, DISCOUNT, 0.8)
    assert advantage[:, 0] == pytest.approx([errors[0] + 0.9 * 0.8 * errors[1], errors[1]])


@pytest.mark.parametrize("gae_lambda", [0.0, 0.7, 1.0])
def test_exact_values_of_truncated_episodes_give_zero_advantages(gae_lambda: float) -> None:
    """Check a task with reward 1 that is truncated every 5 steps: each state is worth 1 / (1 - gamma)."""
    steps, exact = 23, 1 / (1 - DISCOUNT)
    reward = np.ones((steps, 3), np.float32)
    value = np.full((steps, 3), exact, np.float32)
    over = np.zeros((steps, 3), bool)
    for env in range(3):
        over[4 + env :: 5, env] = True
    never = np.zeros_like(over)
    advantage = generalized_advantages(reward, value, value, never, over, DISCOUNT, gae_lambda)
    assert np.abs(advantage).max() < 1e-5


@pytest.mark.parametrize("gae_lambda", [0.0, 0.7, 1.0])
def test_exact_values_of_terminating_episodes_give_zero_advantages(gae_lambda: float) -> None:
    """Check a task with reward 1 that terminates after 5 steps: a state is worth the discounted rest."""
    length, episodes = 5, 4
    to_go = np.tile(np.arange(length, 0, -1), episodes)
    exact = (1 - DISCOUNT**to_go) / (1 - DISCOUNT)
    value = exact.astype(np.float32)[:, None]
    # The row after an end belongs to the next episode, so its value must not leak into this one.
    next_value = np.roll(value, -1, axis=0)
    ended = (to_go == 1)[:, None]
    advantage = generalized_advantages(
        np.ones_like(value), value, next_value, ended, ended, DISCOUNT, gae_lambda
    )
    assert np.abs(advantage).max() < 1e-5


def test_lost_life_stops_bootstrapping_but_not_the_episode() -> None:
    reward = np.zeros((3, 1), np.float32)
    value = np.zeros((3, 1), np.float32)
    next_value = np.array([[0.0], [100.0], [7.0]], np.float32)
    lost_life = np.array([[False], [True], [False]])
    over = np.zeros((3, 1), bool)
    advantage = generalized_advantages(reward, value, next_value, lost_life, over, DISCOUNT, 0.9)
    assert advantage[:, 0] == pytest.approx([0.0, 0.0, 0.9 * 7.0])


def test_advantages_of_one_environment_ignore_the_others() -> None:
    rng = np.random.default_rng(0)
    reward, value, following = (rng.normal(size=(20, 4)).astype(np.float32) for _ in range(3))
    terminated, over = rng.random((20, 4)) < 0.1, rng.random((20, 4)) < 0.2
    together = generalized_advantages(reward, value, following, terminated, over, 0.97, 0.9)
    for env in range(4):
        columns = (a[:, [env]] for a in (reward, value, following, terminated, over))
        alone = generalized_advantages(*columns, 0.97, 0.9)  # type: ignore[misc]
        assert np.array_equal(alone[:, 0], together[:, env])
