"""Tests of targets and losses of action values: by hand, and against plain loops that follow the papers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from labrl.agents.parts.action_values import (
    CategoricalValue,
    CategoricalValueConfig,
    ExpectedValue,
    ExpectedValueConfig,
    QuantileValue,
    QuantileValueConfig,
    categorical_divergence,
    categorical_target,
    quantile_huber_loss,
)

CPU = torch.device("cpu")


def naive_projection(probability: Tensor, reward: float, discount: float, support: Tensor) -> list[float]:
    """Compute algorithm 1 of Bellemare et al. (2017) atom by atom.

    probability, support: [atoms].
    """
    atoms, low, high = len(support), float(support[0]), float(support[-1])
    spacing = (high - low) / (atoms - 1)
    projected = [0.0] * atoms
    for j in range(atoms):
        moved = min(max(reward + discount * float(support[j]), low), high)
        place = (moved - low) / spacing
        lower, upper = math.floor(place), math.ceil(place)
        if lower == upper:  # the published algorithm loses probability that falls exactly on an atom
            projected[lower] += float(probability[j])
        else:
            projected[lower] += float(probability[j]) * (upper - place)
            projected[upper] += float(probability[j]) * (place - lower)
    return projected


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    atoms=st.integers(2, 12),
    reward=st.floats(-5, 5, width=32),
    discount=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
)
def test_projection_matches_the_paper_and_preserves_probability(
    seed: int, atoms: int, reward: float, discount: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    probability = torch.softmax(torch.randn(1, atoms, generator=generator), dim=1)
    support = torch.linspace(-2, 3, atoms)
    projected = categorical_target(probability, torch.tensor([reward]), torch.tensor([discount]), support)
    expected = torch.tensor([naive_projection(probability[0], reward, discount, support)])
    torch.testing.assert_close(projected, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(projected.sum(1), torch.ones(1))


def test_divergence_is_the_kl_divergence_with_the_cross_entropy_gradient() -> None:
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    torch.testing.assert_close(
        categorical_divergence(logits, torch.softmax(logits, 1).detach()), torch.zeros(3), atol=1e-6, rtol=0
    )
    target = torch.tensor([[1.0, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0.2] * 5])
    loss = categorical_divergence(logits, target)
    reference = torch.distributions.kl_divergence(
        torch.distributions.Categorical(probs=target), torch.distributions.Categorical(logits=logits)
    )
    torch.testing.assert_close(loss, reference, rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    torch.testing.assert_close(gradient, torch.softmax(logits, 1) - target)


@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
def test_quantile_huber_loss_matches_the_paper_pair_by_pair(kappa: float) -> None:
    generator = torch.Generator().manual_seed(0)
    quantile, target = torch.randn(3, 4, generator=generator), torch.randn(3, 5, generator=generator) * 2
    fraction = (torch.arange(4) + 0.5) / 4
    expected = []
    for row in range(3):
        total = 0.0
        for i in range(4):
            for j in range(5):
                u = float(target[row, j] - quantile[row, i])
                if kappa == 0:
                    size = abs(u)
                else:
                    size = (0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)) / kappa
                total += abs(float(fraction[i]) - (u < 0)) * size / 5
        expected.append(total)
    torch.testing.assert_close(quantile_huber_loss(quantile, target, fraction, kappa), torch.tensor(expected))


@pytest.mark.parametrize(("loss", "expected"), [("huber", [0.125, 2.5]), ("squared", [0.125, 4.5])])
def test_losses_of_expected_values_match_values_computed_by_hand(loss: str, expected: list[float]) -> None:
    value = ExpectedValue(ExpectedValueConfig(loss=loss), CPU)  # type: ignore[arg-type]
    losses, errors = value.loss(torch.tensor([[1.0], [1.0]]), torch.tensor([[1.5], [-2.0]]))
    assert losses.tolist() == expected
    assert errors.tolist() == [0.5, 3.0]


def test_expected_values_are_means_of_the_distributions() -> None:
    categorical = CategoricalValue(CategoricalValueConfig(v_min=-1, v_max=1, atoms=3), CPU)
    logits = torch.log(torch.tensor([[[0.25, 0.25, 0.5], [1.0, 1e-30, 1e-30]]]))
    torch.testing.assert_close(categorical.expected(logits), torch.tensor([[0.25, -1.0]]))
    quantile = QuantileValue(QuantileValueConfig(quantiles=2, kappa=1.0), CPU)
    assert quantile.expected(torch.tensor([[[1.0, 3.0], [0.0, 0.0]]])).tolist() == [[2.0, 0.0]]
    expected = ExpectedValue(ExpectedValueConfig(loss="huber"), CPU)
    assert expected.expected(torch.tensor([[[1.0], [2.0]]])).shape == (1, 2)


def test_errors_are_the_divergence_or_the_difference_of_means() -> None:
    """Errors for priorities: the divergence of distributions, the difference of means of quantiles."""
    categorical = CategoricalValue(CategoricalValueConfig(v_min=-1, v_max=1, atoms=3), CPU)
    known = torch.tensor([[0.0, 1.0, 2.0]])
    losses, errors = categorical.loss(known, torch.softmax(known, 1))
    assert np.abs(errors.numpy()).max() < 1e-6
    assert torch.equal(losses, errors)
    quantile = QuantileValue(QuantileValueConfig(quantiles=3, kappa=1.0), CPU)
    assert quantile.loss(known, known + 0.5)[1].tolist() == pytest.approx([0.5])
