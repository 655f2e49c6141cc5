"""Tests of action noise: its standard deviation, its correlation in time and its restored state."""

from __future__ import annotations

import numpy as np
import pytest

from labrl.agents.parts.noise import (
    GaussianNoise,
    GaussianNoiseConfig,
    OrnsteinUhlenbeckNoise,
    OrnsteinUhlenbeckNoiseConfig,
)
from labrl.schedules import LinearSchedule


def test_gaussian_noise_has_scheduled_standard_deviation() -> None:
    falling = LinearSchedule(kind="linear", start=0.5, end=0.0, horizon=100, warmup=0)
    noise, rng = GaussianNoise(GaussianNoiseConfig(std=falling), 1000, 2), np.random.default_rng(0)
    assert noise.sample(0, rng).std() == pytest.approx(0.5, rel=0.05)
    assert noise.sample(50, rng).std() == pytest.approx(0.25, rel=0.05)
    assert not noise.sample(100, rng).any()
    assert noise.strength(50) == 0.25


def test_ornstein_uhlenbeck_noise_has_stationary_variance_and_correlation() -> None:
    config = OrnsteinUhlenbeckNoiseConfig(std=0.2, theta=0.1)
    noise, rng = OrnsteinUhlenbeckNoise(config, 4000, 1), np.random.default_rng(0)
    past = [noise.sample(0, rng) for _ in range(80)]
    variance = 0.2**2 / (1 - 0.9**2)
    assert past[-1].var() == pytest.approx(variance, rel=0.1)
    assert np.mean(past[-1] * past[-6]) == pytest.approx(0.9**5 * variance, rel=0.1)


def test_ornstein_uhlenbeck_noise_restarts_with_episode_and_is_restored() -> None:
    config = OrnsteinUhlenbeckNoiseConfig(std=0.2, theta=0.0)
    noise, rng = OrnsteinUhlenbeckNoise(config, 3, 2), np.random.default_rng(0)
    noise.sample(0, rng)
    state_before = noise.state_dict()
    noise.begin(np.array([True, False, False]))
    other = OrnsteinUhlenbeckNoise(config, 3, 2)
    other.load_state_dict(noise.state_dict())
    after = noise.sample(0, np.random.default_rng(1))
    np.testing.assert_array_equal(after, other.sample(0, np.random.default_rng(1)))
    step = np.random.default_rng(1).standard_normal((3, 2), np.float32) * np.float32(0.2)
    np.testing.assert_allclose(after[0], step[0], rtol=1e-6)
    np.testing.assert_allclose(after[1:], (state_before["x"] + step)[1:], rtol=1e-5)
