"""Tests of formulas in single precision: results and gradients equal those in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from agent_cases import BOX, CHOICES, DISCRETE, SWITCHES
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from labrl.agents.parts.action_values import quantile_huber_loss
from labrl.agents.ppo import clipped_surrogate
from labrl.agents.sac import squashed_sample
from labrl.networks.actions import mask_logits
from labrl.networks.distributions import distribution_for

SPACES: dict[str, tuple[gym.Space, Any]] = {
    "categorical": (DISCRETE, None),
    "multi-categorical": (CHOICES, None),
    "switches": (SWITCHES, None),
    "gaussian": (BOX, "clip"),
    "rescaled": (BOX, "rescale"),
    "squashed": (BOX, "squash"),
    "beta": (BOX, "beta"),
}
ROWS, SEEDS = st.integers(1, 40), st.integers(0, 2**16)


def assert_same(formula: Callable[..., Any], first: Any, *others: Any, seed: int, unused: int = -1) -> None:
    """Assert that results and the gradient by the first argument equal those in double precision.

    unused: number of a result on which the loss does not depend.
    """
    rng = np.random.default_rng(seed)
    single = torch.from_numpy(first).requires_grad_()
    results = formula(single, *others)
    results = results if isinstance(results, tuple) else (results,)
    double = torch.from_numpy(first).double().requires_grad_()
    in_double = [
        each.double() if isinstance(each, Tensor) and each.is_floating_point() else each for each in others
    ]
    expected = formula(double, *in_double)
    expected = expected if isinstance(expected, tuple) else (expected,)
    totals: Any = [0, 0]
    for number, (mine, theirs) in enumerate(zip(results, expected, strict=True)):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-4)
        if number != unused:
            slope = torch.from_numpy(rng.standard_normal(mine.shape, np.float32))
            totals = [totals[0] + (mine * slope).sum(), totals[1] + (theirs * slope).sum()]
    (mine,), (theirs,) = torch.autograd.grad(totals[0], single), torch.autograd.grad(totals[1], double)
    assert mine.dtype == torch.float32
    assert float((mine - theirs).norm()) <= 1e-5 * max(float(theirs.norm()), 1.0)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(SPACES)), ROWS, SEEDS, st.booleans(), st.sampled_from([-1, 0, 1]))
def test_log_probabilities_and_entropies(
    name: str, rows: int, seed: int, with_mask: bool, unused: int
) -> None:
    space, bounds = SPACES[name]
    rng = np.random.default_rng(seed)
    distribution = distribution_for(space, "ppo", bounds)
    parameters = rng.standard_normal((rows, distribution.num_parameters), np.float32)
    if with_mask and name in ("categorical", "multi-categorical"):
        mask = rng.random(parameters.shape) < 0.6
        mask[:, [0, -1]] = True  # each choice needs at least one valid action
        parameters = mask_logits(parameters, mask)
    drawn = distribution.sample(parameters, rng)
    whole = name in ("categorical", "multi-categorical")
    action = torch.from_numpy(drawn.astype(np.int64 if whole else np.float32))
    assert_same(distribution.log_prob_entropy, parameters, action, seed=seed, unused=unused)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(1, 3), st.sampled_from([1.0, 12.0]), st.sampled_from([-1, 0, 1]), SEEDS)
def test_squashed_samples(rows: int, size: int, wide: float, unused: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parameters = rng.standard_normal((rows, 2 * size), np.float32)
    parameters[:, size:] *= np.float32(wide)  # also beyond both bounds of the log deviation
    noise = torch.from_numpy(rng.standard_normal((rows, size), np.float32))
    assert_same(squashed_sample, parameters, noise, seed=seed, unused=unused)


@settings(max_examples=60, deadline=None)
@given(
    ROWS, st.integers(1, 6), st.integers(1, 7), st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([0.3, 1.0, 30.0]), SEEDS,
)  # fmt: skip
def test_quantile_huber_losses(
    rows: int, quantiles: int, samples: int, kappa: float, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    quantile = np.float32(scale) * rng.standard_normal((rows, quantiles), np.float32)
    target = torch.from_numpy(np.float32(scale) * rng.standard_normal((rows, samples), np.float32))
    target[0] = float(quantile[0, 0])  # samples equal to a quantile, where the error is 0
    fraction = (torch.arange(quantiles) + 0.5) / quantiles
    assert_same(quantile_huber_loss, quantile, target, fraction, kappa, seed=seed)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([0.0, 0.1, 0.3]), SEEDS)
def test_clipped_surrogate(rows: int, clip: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ratio = np.exp(np.float32(0.3) * rng.standard_normal(rows, np.float32))
    advantage = torch.from_numpy(rng.standard_normal(rows, np.float32))
    assert_same(clipped_surrogate, ratio, advantage, clip, seed=seed)
