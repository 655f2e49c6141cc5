"""Tests of exploration: every environment explores independently, with the probability of its schedule."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from refusals import refused

from labrl.agents.parts.exploration import (
    Boltzmann,
    BoltzmannConfig,
    EpsilonGreedy,
    EpsilonGreedyConfig,
    NetworkNoise,
    NetworkNoiseConfig,
    Values,
    exploration_class,
)
from labrl.component import Component
from labrl.config.validate import dataclass_of
from labrl.schedules import LinearSchedule

VALUES = np.array([[0.0, 1.0, 0.5]] * 4, np.float32)


def epsilon_greedy(epsilon: float) -> EpsilonGreedy:
    return EpsilonGreedy(EpsilonGreedyConfig(epsilon=epsilon))


def fail_if_called() -> NDArray:
    raise AssertionError("random actions must not compute action values")


values, unused = Values(lambda: VALUES, (4, 3)), Values(fail_if_called, (4, 3))


def test_environments_explore_independently() -> None:
    rng = np.random.default_rng(0)
    random = np.array([epsilon_greedy(0.3).choose(values, 0, rng) != 1 for _ in range(4000)])
    # A random action is the best one in a third of the cases, so 0.3 x 2/3 of the actions differ from it.
    assert random.mean(0) == pytest.approx([0.2] * 4, abs=0.03)
    assert np.abs(np.corrcoef(random.T) - np.eye(4)).max() < 0.06
    assert 0 < random.any(1).mean() - random.all(1).mean() < 1


def test_random_actions_are_uniform() -> None:
    rng = np.random.default_rng(0)
    actions = np.array([epsilon_greedy(1.0).choose(unused, 0, rng) for _ in range(3000)])
    assert np.bincount(actions.ravel(), minlength=3) / actions.size == pytest.approx([1 / 3] * 3, abs=0.02)


def test_epsilon_zero_is_greedy() -> None:
    assert epsilon_greedy(0.0).choose(values, 0, np.random.default_rng(0)).tolist() == [1] * 4


def test_epsilon_follows_its_schedule() -> None:
    falling = LinearSchedule(kind="linear", start=1.0, end=0.0, horizon=100, warmup=0)
    policy, rng = EpsilonGreedy(EpsilonGreedyConfig(epsilon=falling)), np.random.default_rng(0)
    assert [policy.strength(frame) for frame in (0, 25, 100)] == [1.0, 0.75, 0.0]
    policy.choose(unused, 0, rng)
    assert policy.choose(values, 100, rng).tolist() == [1] * 4


def test_boltzmann_actions_follow_the_softmax_of_the_values() -> None:
    policy, rng = Boltzmann(BoltzmannConfig(temperature=0.5)), np.random.default_rng(0)
    actions = np.array([policy.choose(values, 0, rng) for _ in range(3000)])
    weights = np.exp(VALUES[0] / 0.5)
    expected = pytest.approx(list(weights / weights.sum()), abs=0.02)
    assert np.bincount(actions.ravel(), minlength=3) / actions.size == expected


def test_boltzmann_is_greedy_at_temperature_zero_and_for_huge_values() -> None:
    rng = np.random.default_rng(0)
    cold = Boltzmann(BoltzmannConfig(temperature=0.0))
    assert cold.choose(values, 0, rng).tolist() == [1] * 4
    huge = Boltzmann(BoltzmannConfig(temperature=1e-6))
    assert huge.choose(Values(lambda: VALUES * 1e6, (4, 3)), 0, rng).tolist() == [1] * 4


def test_network_noise_takes_the_best_action_of_the_network() -> None:
    policy = NetworkNoise(NetworkNoiseConfig())
    assert policy.choose(values, 0, np.random.default_rng(0)).tolist() == [1] * 4
    assert policy.strength(10) == 0.0


def test_class_that_is_not_an_exploration_is_refused() -> None:
    component = dataclass_of(Component, {"_target_": "own_parts.NoAgent"}, "agent.exploration")
    with refused("target", "agent.exploration", "own_parts.NoAgent"):
        exploration_class(component)
