"""Tests of policy distributions: densities and entropies equal torch's, and actions fit their space."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from refusals import refused

from labrl.networks.actions import mask_logits
from labrl.networks.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    RescaledGaussian,
    ScaledBeta,
    SquashedGaussian,
    distribution_for,
)

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


def test_squashed_gaussian_ignores_components_with_a_single_value() -> None:
    """Regression test: equal bounds made the densities infinite and the first update non-finite."""
    fixed = gym.spaces.Box(np.array([-1, 3], np.float32), np.array([1, 3], np.float32))
    free = gym.spaces.Box(-1, 1, (2,))
    parameters, action = torch.randn(5, 4), torch.randn(5, 2)
    found = SquashedGaussian(fixed).log_prob_entropy(parameters, action)
    for one, other in zip(found, SquashedGaussian(free).log_prob_entropy(parameters, action), strict=True):
        torch.testing.assert_close(one, other)
    assert SquashedGaussian(fixed).to_env(action.numpy())[:, 1].tolist() == [3.0] * 5


def test_space_without_a_distribution_is_refused() -> None:
    with refused("unsupported", "agent", "PPO", "Discrete", "Text"):
        distribution_for(gym.spaces.Text(3), "PPO")


def test_multi_categorical_equals_torch() -> None:
    space = gym.spaces.MultiDiscrete([2, 3, 4], start=[0, 5, -1])
    policy = MultiCategorical(space)
    logits = torch.randn(24, 9, generator=torch.Generator().manual_seed(0))
    action = torch.stack([torch.arange(24) % n for n in (2, 3, 4)], dim=1)
    log_prob, entropy = policy.log_prob_entropy(logits, action)
    parts = [torch.distributions.Categorical(logits=part) for part in logits.split([2, 3, 4], dim=1)]
    torch.testing.assert_close(log_prob, sum(p.log_prob(a) for p, a in zip(parts, action.T, strict=True)))
    torch.testing.assert_close(entropy, sum(p.entropy() for p in parts))
    assert all(space.contains(row) for row in policy.to_env(action.numpy()))


def test_bernoulli_equals_torch_and_samples_follow_the_probabilities() -> None:
    space = gym.spaces.MultiBinary([2, 2])
    policy = Bernoulli(space)
    logits = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    sampled = policy.sample(np.tile(logits.numpy(), (4000, 1)), np.random.default_rng(0))
    assert space.contains(policy.to_env(sampled)[0])
    assert sampled.reshape(4000, 8, 4).mean(0) == pytest.approx(torch.sigmoid(logits).numpy(), abs=0.03)
    action = torch.from_numpy(sampled[:8])
    log_prob, entropy = policy.log_prob_entropy(logits, action)
    reference = torch.distributions.Bernoulli(logits=logits)
    torch.testing.assert_close(log_prob, reference.log_prob(action.flatten(1).float()).sum(1))
    torch.testing.assert_close(entropy, reference.entropy().sum(1))


def test_squashed_gaussian_equals_torch_and_the_sampled_entropy() -> None:
    policy = SquashedGaussian(BOX)
    mean, log_std = torch.tensor([[0.3, -1.0], [1.5, 0.0]]), torch.tensor([[-0.5, 0.3], [0.0, -2.0]])
    parameters = torch.cat([mean, log_std], dim=1)
    center, reach = torch.tensor([0.0, -0.75]), torch.tensor([1.0, 1.25])
    transforms = [torch.distributions.TanhTransform(), torch.distributions.AffineTransform(center, reach)]
    reference = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()), transforms
    )
    u = torch.tensor([[0.1, -0.9], [1.0, 0.1]])
    log_prob, entropy = policy.log_prob_entropy(parameters, u)
    action = torch.from_numpy(policy.to_env(u.numpy()))
    torch.testing.assert_close(log_prob, reference.log_prob(action).sum(1), rtol=1e-4, atol=1e-4)
    samples = torch.from_numpy(
        policy.sample(np.tile(parameters.numpy(), (50_000, 1)), np.random.default_rng(0))
    )
    many = policy.log_prob_entropy(parameters.repeat(50_000, 1), samples)[0].view(50_000, 2)
    torch.testing.assert_close(entropy, -many.mean(0), rtol=0, atol=0.02)


def integrated_entropy(mean: float, std: float) -> float:
    """Return the entropy of tanh(u) for a Gaussian u, by a Riemann sum of -p log p over u."""
    u = np.linspace(mean - 12 * std, mean + 12 * std, 4_000_001)
    log_p = -0.5 * ((u - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    log_slope = 2 * (np.log(2) - np.abs(u) - np.log1p(np.exp(-2 * np.abs(u))))
    return float(-(np.exp(log_p) * (log_p - log_slope)).sum() * (u[1] - u[0]))


@pytest.mark.parametrize("std", [1e-3, 0.3, 3.0, 12.0, 1000.0])
@pytest.mark.parametrize("mean", [0.0, 0.7, -4.0])
def test_entropy_of_squashed_gaussian_equals_the_integral(mean: float, std: float) -> None:
    policy = SquashedGaussian(gym.spaces.Box(-1, 1, (1,), np.float32))
    parameters, action = np.array([[mean, np.log(std)]], np.float32), np.zeros((1, 1), np.float32)
    exact = pytest.approx(integrated_entropy(mean, std), rel=1e-5, abs=2e-5)
    assert float(policy.log_prob_entropy(*map(torch.from_numpy, (parameters, action)))[1]) == exact


def test_entropy_gradient_of_wide_squashed_gaussian_equals_double_precision() -> None:
    policy, rows = SquashedGaussian(BOX), 500
    parameters = np.random.default_rng(0).uniform(-8, 8, (rows, 4)).astype(np.float32)
    action = np.zeros((rows, 2), np.float32)
    gradients = []
    for dtype in (np.float32, np.float64):
        tensor = torch.from_numpy(parameters.astype(dtype)).requires_grad_()
        policy.log_prob_entropy(tensor, torch.from_numpy(action))[1].sum().backward()
        assert tensor.grad is not None
        gradients.append(tensor.grad.numpy())
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-5)


def test_squashed_gaussian_densities_are_finite_far_from_zero() -> None:
    parameters = torch.tensor([[30.0, -30.0, 0.0, 0.0]])
    log_prob, entropy = SquashedGaussian(BOX).log_prob_entropy(parameters, torch.tensor([[31.0, -29.0]]))
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(entropy).all()


@pytest.mark.parametrize(
    ("policy", "sample", "expected"),
    [
        (DiagonalGaussian, [0.5, -9.0], [0.5, -2.0]),
        (RescaledGaussian, [0.5, -9.0], [0.5, -2.0]),
        (RescaledGaussian, [2.0, 0.2], [1.0, -0.5]),
        (SquashedGaussian, [0.5, -9.0], [np.tanh(0.5), -2.0]),
    ],
)
def test_samples_are_clipped_rescaled_or_squashed(policy: type, sample: list, expected: list) -> None:
    action = policy(BOX).to_env(np.array([sample], np.float32))
    assert action[0] == pytest.approx(expected, abs=1e-6)
    assert BOX.contains(action[0])


def raw(shapes: torch.Tensor) -> torch.Tensor:
    """Return the parameters of a Beta distribution with these a and b, each above 1."""
    return shapes - 1 + torch.log(-torch.expm1(1 - shapes))


def test_beta_equals_torch() -> None:
    policy = ScaledBeta(BOX)
    shapes = torch.tensor([[1.2, 30.0, 5.0, 2.0], [400.0, 1.0001, 900.0, 1.5]])
    expected = torch.distributions.Beta(*shapes.double().chunk(2, dim=1))
    sample = torch.tensor([[0.1, 0.9], [0.3, 0.5]])
    log_prob, entropy = policy.log_prob_entropy(raw(shapes), sample)
    width = float(np.log(BOX.high - BOX.low).sum())
    torch.testing.assert_close(log_prob, (expected.log_prob(sample).sum(1) - width).float())
    torch.testing.assert_close(entropy, (expected.entropy().sum(1) + width).float())
    numbers = policy.numbers(raw(shapes).numpy())
    np.testing.assert_allclose(numbers["mean"], 2 * expected.mean - 1, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(numbers["std"], 2 * expected.stddev, rtol=1e-3)
    assert policy.statistics(raw(shapes))["policy_std"] == pytest.approx(
        float(2 * expected.stddev.mean()), 1e-3
    )


@pytest.mark.parametrize("shapes", [(1.0, 1.0), (1.0, 8.0), (2.5, 1.2), (200.0, 50.0)])
@pytest.mark.parametrize("tensors", [False, True])
def test_beta_samples_follow_the_distribution(shapes: tuple[float, float], tensors: bool) -> None:
    policy = ScaledBeta(gym.spaces.Box(-1, 3, (1,), np.float32))
    parameters = raw(torch.tensor([shapes]).clamp(min=1 + 1e-7)).expand(40_000, 2)
    if tensors:
        torch.manual_seed(0)
        drawn = policy.sample_or_mode(parameters, policy.noise(parameters)).numpy()[:, 0]
    else:
        drawn = policy.sample(parameters.numpy().copy(), np.random.default_rng(0))[:, 0]
    ordered, a, b = np.sort(drawn.astype(np.float64)), *map(float, shapes)
    x = torch.linspace(0, 1, 20_001, dtype=torch.float64)
    beta = torch.distributions.Beta(*torch.tensor([a, b], dtype=torch.float64))
    density = beta.log_prob(x.clamp(1e-12, 1 - 1e-12)).exp()
    cumulative = [0.0, *torch.cumulative_trapezoid(density, x, dim=0).tolist()]
    expected = np.interp(ordered, x, cumulative)
    assert np.abs(expected - np.arange(1, 40_001) / 40_000).max() < 0.01  # Kolmogorov-Smirnov


def test_best_beta_action_is_the_mode_and_stays_finite_at_the_edges() -> None:
    policy = ScaledBeta(BOX)
    parameters = raw(torch.tensor([[3.0, 2.0, 5.0, 2.0]])).numpy()
    np.testing.assert_allclose(policy.mode(parameters), [[2 / 6, 0.5]], rtol=1e-4)
    far = torch.tensor([[200.0, -200.0, -200.0, -200.0]], requires_grad=True)
    best = policy.mode(far.detach().numpy())
    assert best[0] == pytest.approx([1, 0.5], abs=1e-5)
    for sample in (best, policy.sample(far.detach().numpy(), np.random.default_rng(0))):
        log_prob, entropy = policy.log_prob_entropy(far, torch.from_numpy(sample))
        (slope,) = torch.autograd.grad((log_prob + entropy).sum(), far)
        assert torch.isfinite(torch.cat([log_prob, entropy, slope[0]])).all()


@pytest.mark.parametrize("policy", [DiagonalGaussian, RescaledGaussian])
def test_actions_are_rounded_to_the_nearest_integer_in_an_integer_box(policy: type) -> None:
    space = gym.spaces.Box(-3, 3, (6,), np.int32)
    wanted = np.array([[-9, -1.9, -0.6, 0.4, 0.6, 2.7]], np.float32)
    action = policy(space).to_env(wanted if policy is DiagonalGaussian else wanted / 3)
    assert action.tolist() == [[-3, -2, -1, 0, 1, 3]]
    assert space.contains(action[0])


def test_policy_that_needs_bounds_refuses_an_unbounded_box() -> None:
    unbounded = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    assert isinstance(distribution_for(unbounded, "PPO"), DiagonalGaussian)
    for bounds in ("rescale", "squash", "beta"):
        with refused("unsupported", "agent.action_bounds", f"agent.action_bounds={bounds}"):
            distribution_for(unbounded, "PPO", bounds)  # type: ignore[arg-type]


def test_masked_action_has_probability_zero_and_no_gradient() -> None:
    policy = Categorical(gym.spaces.Discrete(3))
    logits = torch.tensor([[1.0, 5.0, 0.0]], requires_grad=True)
    mask = torch.tensor([[True, False, True]])
    log_prob, entropy = policy.log_prob_entropy(mask_logits(logits, mask), torch.tensor([0]))
    valid = torch.distributions.Categorical(logits=torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(log_prob[0], valid.log_prob(torch.tensor(0)))
    torch.testing.assert_close(entropy[0], valid.entropy())
    (log_prob + entropy).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 1] == 0
    many = mask_logits(np.tile(logits.detach().numpy(), (5000, 1)), np.tile(mask.numpy(), (5000, 1)))
    assert set(policy.sample(many, np.random.default_rng(0)).tolist()) == {0, 2}
