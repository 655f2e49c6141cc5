"""Densities and entropies equal torch's, samples follow them, and actions fit the environment."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from labrl.config.errors import ConfigError
from labrl.networks.distributions import Categorical, DiagonalGaussian, distribution_for

BOX = gym.spaces.Box(np.array([-1, -2], np.float32), np.array([1, 0.5], np.float32))


def test_categorical_equals_torch() -> None:
    logits = torch.randn(16, 5, generator=torch.Generator().manual_seed(0))
    action = torch.arange(16) % 5
    log_prob, entropy = Categorical(gym.spaces.Discrete(5)).log_prob_entropy(logits, action)
    reference = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(log_prob, reference.log_prob(action))
    torch.testing.assert_close(entropy, reference.entropy())


def test_gaussian_equals_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    parameters, action = torch.randn(16, 4, generator=generator), torch.randn(16, 2, generator=generator)
    log_prob, entropy = DiagonalGaussian(BOX).log_prob_entropy(parameters, action)
    reference = torch.distributions.Normal(parameters[:, :2], parameters[:, 2:].exp())
    torch.testing.assert_close(log_prob, reference.log_prob(action).sum(1))
    torch.testing.assert_close(entropy, reference.entropy().sum(1))


def test_categorical_samples_follow_the_probabilities() -> None:
    probabilities = np.array([0.1, 0.2, 0.7])
    logits = np.tile(np.log(probabilities), (20_000, 1)).astype(np.float32)
    sampled = Categorical(gym.spaces.Discrete(3)).sample(logits, np.random.default_rng(0))
    assert np.bincount(sampled) / 20_000 == pytest.approx(probabilities, abs=0.01)


def test_gaussian_samples_follow_mean_and_deviation() -> None:
    parameters = np.tile(np.array([1.0, -2.0, np.log(0.5), np.log(2.0)], np.float32), (20_000, 1))
    sampled = DiagonalGaussian(BOX).sample(parameters, np.random.default_rng(0))
    assert sampled.mean(0) == pytest.approx([1, -2], abs=0.05)
    assert sampled.std(0) == pytest.approx([0.5, 2], rel=0.03)


def test_actions_for_the_environment_lie_in_its_space() -> None:
    gaussian = DiagonalGaussian(BOX)
    wild = np.array([[9.0, -9.0], [0.0, 0.0]], np.float32)
    assert all(BOX.contains(action) for action in gaussian.to_env(wild))
    shifted = gym.spaces.Discrete(3, start=5)
    logits = np.array([[0.0, 9.0, 0.0]], np.float32)
    categorical = Categorical(shifted)
    assert categorical.to_env(categorical.mode(logits)).tolist() == [6]


def test_a_space_without_a_distribution_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"agent=ppo acts in Discrete and Box.*Text"):
        distribution_for(gym.spaces.Text(3), "agent=ppo")
