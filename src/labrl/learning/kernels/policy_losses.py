"""Losses of policies and state values at the outputs of a network, with their derivatives by hand.

Every loss is a mean over the rows of a minibatch. Its derivatives follow from those of log pi(a|s) and of the
entropy H by the parameters of the policy's distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from labrl.networks.distributions import (
    ActionDistribution,
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    RescaledGaussian,
    SquashedGaussian,
    masked,
)


class Distributions(Protocol):
    """The distributions over actions in the rows of a minibatch, and the actions that were taken."""

    log_prob: NDArray
    """log pi(a|s) of each row. [rows]"""
    entropy: NDArray
    """H of each row. [rows]"""

    def gradient(self, log_prob: NDArray, entropy: float) -> NDArray:
        """Return the derivative of a loss by the parameters. [rows, num_parameters]

        log_prob: its derivative by log pi(a|s), [rows]; entropy: that by H, the same for all rows.
        """
        ...


def distributions(
    distribution: ActionDistribution, parameters: NDArray, action: Tensor, mask: Tensor | None
) -> Distributions:
    """Return log-probabilities, entropies and their derivatives.

    parameters: [rows, num_parameters]; action: [rows, *action_shape]; mask: which actions are valid, of the
    shape of the parameters; None: all.
    """
    if mask is not None:
        parameters = masked(parameters, mask.numpy())
    return _DISTRIBUTIONS[type(distribution)](distribution, parameters, action.numpy())


class _Categorical:
    """Derivatives with p = softmax(x): d log p_a / dx_i = [i = a] - p_i and dH / dx_i = -p_i (log p_i +
    H)."""

    def __init__(self, distribution: Any, parameters: NDArray, action: NDArray) -> None:
        # One row for each action: sums over few actions of many rows are then sums of long rows.
        self._log_p = log_p = parameters.T.copy()
        log_p -= np.maximum.reduce(log_p)
        self._p = np.exp(log_p)
        total = np.add.reduce(self._p)
        self._p /= total
        log_p -= np.log(total, out=total)
        self._taken = action == np.arange(len(log_p))[:, None]
        self.log_prob = np.add.reduce(log_p * self._taken)
        self.entropy = -np.add.reduce(self._p * log_p)

    def gradient(self, log_prob: NDArray, entropy: float) -> NDArray:
        gradient = self._taken - self._p
        gradient *= log_prob
        if entropy:
            change = self._log_p + self.entropy
            change *= self._p
            change *= np.float32(entropy)
            gradient -= change
        return gradient.T


class _MultiCategorical:
    """Independent choices, side by side: log pi and H are sums over them."""

    def __init__(self, distribution: MultiCategorical, parameters: NDArray, action: NDArray) -> None:
        parts = np.split(parameters, np.cumsum(distribution.sizes)[:-1], axis=1)
        columns = action.reshape(len(action), -1).T
        self._parts = [_Categorical(None, *each) for each in zip(parts, columns, strict=True)]
        self.log_prob: NDArray = np.sum([part.log_prob for part in self._parts], axis=0)
        self.entropy: NDArray = np.sum([part.entropy for part in self._parts], axis=0)

    def gradient(self, log_prob: NDArray, entropy: float) -> NDArray:
        return np.concatenate([part.gradient(log_prob, entropy) for part in self._parts], axis=1)


class _Bernoulli:
    """Derivatives with p = sigmoid(x): d log pi / dx = a - p and dH / dx = -x p (1 - p)."""

    def __init__(self, distribution: Any, parameters: NDArray, action: NDArray) -> None:
        self._logits, self._action = parameters, action.reshape(len(action), -1).astype(np.float32)
        log_on, log_off = -np.logaddexp(0, -parameters), -np.logaddexp(0, parameters)
        self._p = np.exp(log_on)
        self.log_prob = np.where(self._action > 0, log_on, log_off).sum(1)
        self.entropy = -(self._p * log_on + np.exp(log_off) * log_off).sum(1)

    def gradient(self, log_prob: NDArray, entropy: float) -> NDArray:
        gradient = (self._action - self._p) * log_prob[:, None]
        if entropy:
            gradient -= np.float32(entropy) * self._logits * self._p * (1 - self._p)
        return gradient


class _Gaussian:
    """Derivatives with z = (a - m) / s: d log pi / dm = z / s, d log pi / d log s = z^2 - 1 and dH / d log s
    = 1."""

    def __init__(self, distribution: Any, parameters: NDArray, action: NDArray) -> None:
        self.mean, self.log_std = np.split(parameters, 2, axis=1)
        self._inverse = np.exp(-self.log_std)
        self._z = (action.reshape(self.mean.shape) - self.mean) * self._inverse
        constant = np.float32(0.5 * math.log(2 * math.pi))
        self.log_prob = (np.float32(-0.5) * self._z * self._z - self.log_std - constant).sum(1)
        self.entropy = (self.log_std + (constant + np.float32(0.5))).sum(1)

    def gradient(self, log_prob: NDArray, entropy: float) -> NDArray:
        each = log_prob[:, None]
        log_std = each * (self._z * self._z - 1)
        if entropy:
            log_std += np.float32(entropy)
        return np.concatenate([each * self._z * self._inverse, log_std], axis=1)


class _SquashedGaussian(_Gaussian):
    """The entropy also has E log(1 - tanh^2(m + s x)), x standard normal; log pi a term of the action alone.

    The derivative of log(1 - tanh^2(u)) is -2 tanh(u), with du/dm = 1 and du / d log s = s x; the mean over x
    is a sum over the nodes of the quadrature.
    """

    def __init__(self, distribution: SquashedGaussian, parameters: NDArray, action: NDArray) -> None:
        super().__init__(distribution, parameters, action)
        self._nodes, self._weights = distribution.nodes.numpy(), distribution.weights.numpy()
        self._around = self.mean[:, :, None] + np.exp(self.log_std)[:, :, None] * self._nodes
        reach = np.float32(distribution.log_reach)
        self.log_prob -= _log_tanh_slope(action.reshape(self.mean.shape)).sum(1) + reach
        self.entropy += (_log_tanh_slope(self._around) @ self._weights).sum(1) + reach

    def gradient(self, log_prob: NDArray, entropy: float) -> NDArray:
        gradient, size = super().gradient(log_prob, entropy), self.mean.shape[1]
        if entropy:
            slope = np.tanh(self._around)
            slope *= np.float32(-2 * entropy)
            gradient[:, :size] += slope @ self._weights
            gradient[:, size:] += (slope @ (self._nodes * self._weights)) * np.exp(self.log_std)
        return gradient


def _log_tanh_slope(u: NDArray) -> NDArray:
    """log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))"""
    return np.float32(2) * (np.float32(math.log(2)) - u - np.logaddexp(np.float32(0), np.float32(-2) * u))


_DISTRIBUTIONS: dict[type, Callable[[Any, NDArray, NDArray], Distributions]] = {
    Categorical: _Categorical,
    MultiCategorical: _MultiCategorical,
    Bernoulli: _Bernoulli,
    DiagonalGaussian: _Gaussian,
    RescaledGaussian: _Gaussian,
    SquashedGaussian: _SquashedGaussian,
}


class OutputGradients(NamedTuple):
    """Derivatives of a loss by the outputs of a network."""

    parameters: NDArray
    """Gradient by the parameters of the distributions. [rows, num_parameters]"""
    value: NDArray
    """Gradient by the values. [rows]"""


def policy_gradient(
    policy: Distributions,
    value: NDArray,
    advantage: NDArray,
    value_target: NDArray,
    value_coef: float,
    entropy_coef: float,
) -> tuple[NDArray, OutputGradients]:
    """Differentiate the loss of A2C and REINFORCE, the mean of -log pi(a|s) A + c1 (R - V)^2 / 2 - c2 H.

    By log pi it is -A, by V it is c1 (V - R), by H it is -c2, each over the number of rows. All arrays are
    [rows]. Returns the means of the policy's loss, of the values' and of the entropy, [3], and the
    derivatives.
    """
    rows = np.float32(len(value))
    error = value - value_target
    means = -np.dot(policy.log_prob, advantage) / rows, 0.5 * np.dot(error, error) / rows
    parameters = policy.gradient(advantage / -rows, -entropy_coef / len(value))
    error *= np.float32(value_coef) / rows
    statistics = np.array([*means, policy.entropy.mean()], np.float32)
    return statistics, OutputGradients(parameters, error)


def clipped_policy_gradient(
    policy: Distributions,
    value: NDArray,
    advantage: NDArray,
    value_target: NDArray,
    old_log_prob: NDArray,
    old_value: NDArray,
    clip: float,
    value_clip: float | None,
    value_coef: float,
    entropy_coef: float,
) -> tuple[NDArray, OutputGradients]:
    """Differentiate the loss of PPO, the mean of -min(r A, clip(r) A) + c1 L - c2 H.

    With the ratio r = pi(a|s) / pi_old(a|s). By log pi the first term is -r A, and 0 where the clipped
    product is the smaller one: beyond 1 + clip for A > 0, below 1 - clip for A < 0. L is (V - R)^2 / 2, with
    value clipping the larger one of that and (V_clip - R)^2 / 2, V_clip = V_old + clip(V - V_old): its
    derivative by V is V - R, and 0 where V_clip is at its bound and the larger one. All arrays are [rows].
    Returns the means of the policy's loss, L, the entropy, the divergence and the share of clipped ratios,
    [5], and the derivatives.
    """
    rows = len(value)
    terms = np.empty((5, rows), np.float32)
    log_ratio = policy.log_prob - old_log_prob
    ratio = np.exp(log_ratio)
    gain = ratio * advantage
    bounded = np.minimum(np.maximum(ratio, np.float32(1 - clip)), np.float32(1 + clip))
    np.not_equal(bounded, ratio, out=terms[4])
    bounded *= advantage
    np.minimum(gain, bounded, out=terms[0])
    gain *= gain <= bounded
    gain *= np.float32(-1 / rows)
    error = value_error(value, value_target, old_value, value_clip, out=terms[1])
    error *= np.float32(value_coef / rows)
    terms[2] = policy.entropy
    ratio -= 1
    np.subtract(ratio, log_ratio, out=terms[3])
    statistics = np.add.reduce(terms, axis=1)
    statistics *= np.array([-1, 0.5, 1, 1, 1], np.float32) / np.float32(rows)
    return statistics, OutputGradients(policy.gradient(gain, -entropy_coef / rows), error)


def value_error(value: NDArray, target: NDArray, old: NDArray, clip: float | None, out: NDArray) -> NDArray:
    """Return half the derivative of the squared error of values, and write the squared error into `out`.

    old, clip: with value clipping, as in `clipped_policy_gradient`. [rows] each
    """
    error = value - target
    np.multiply(error, error, out=out)
    if clip is not None:
        change = value - old
        bounded = np.minimum(np.maximum(change, np.float32(-clip)), np.float32(clip))
        clipped = old + bounded
        clipped -= target
        clipped *= clipped
        error *= (bounded == change) | (out > clipped)
        np.maximum(out, clipped, out=out)
    return error


def imitation_gradient(
    policy: Distributions,
    value: NDArray,
    discounted_return: NDArray,
    weight: NDArray,
    policy_coef: float,
    value_coef: float,
) -> tuple[NDArray, OutputGradients]:
    """Differentiate the loss of self-imitation, the weighted mean of -c1 log pi(a|s) U + c2 U^2 / 2.

    With U = (R - V)+, a constant in the first term. By log pi it is -c1 U, by V it is -c2 U. All arrays are
    [rows]. Returns both losses of each row, U and whether it is above 0, [4, rows], and the derivatives.
    """
    underrated = np.maximum(discounted_return - value, 0)
    statistics = np.stack(
        [-policy.log_prob * underrated, 0.5 * underrated * underrated, underrated, underrated > 0]
    ).astype(np.float32, copy=False)
    slope = underrated * weight
    slope /= -np.float32(len(value))
    parameters = policy.gradient(np.float32(policy_coef) * slope, 0.0)
    return statistics, OutputGradients(parameters, np.float32(value_coef) * slope)
