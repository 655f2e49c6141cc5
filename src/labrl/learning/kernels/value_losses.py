"""Losses of action values at the outputs of a network, with their derivatives by hand.

The outputs for an action are the mean of its return, the logits of the return's distribution, or its
quantiles. `reward` is the discounted sum over the n steps of a transition and `discount` the factor of the
value at their end, [rows] both.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

ONE = np.float32(1)


class Differentiated(NamedTuple):
    """A loss of each row and its derivative."""

    losses: NDArray
    """[rows]"""
    errors: NDArray
    """Errors that priorities follow. [rows]"""
    slope: NDArray
    """Derivative of a row's loss by its outputs. [rows, outputs]"""


class DerivedValues(Protocol):
    """Maps outputs to values, targets and losses, with the derivatives of the losses."""

    def expected(self, outputs: NDArray) -> NDArray:
        """Return the mean return. [..., outputs] -> [...]"""
        ...

    def differentiated(
        self, outputs: NDArray, later: NDArray, reward: NDArray, discount: NDArray
    ) -> Differentiated:
        """Differentiate the loss of the outputs of the actions taken, [rows, outputs].

        later: outputs of the actions chosen n steps on, [rows, outputs].
        """
        ...


class ExpectedReturns:
    """One output: with the error e = Q - (r + gamma^n Q') the loss e^2 / 2, of which the derivative is e.

    The Huber loss is |e| - 1/2 beyond an error of 1, and its derivative the sign of e there.
    """

    def __init__(self, squared: bool) -> None:
        self._squared = squared

    def expected(self, outputs: NDArray) -> NDArray:
        """Return the outputs themselves. [..., 1] -> [...]"""
        return outputs[..., 0]

    def differentiated(
        self, outputs: NDArray, later: NDArray, reward: NDArray, discount: NDArray
    ) -> Differentiated:
        """Differentiate the loss of the outputs of the actions taken. [rows, 1]"""
        error = outputs[:, 0] - (reward + discount * later[:, 0])
        size = np.abs(error)
        # Up to an error of 1 slope and error are the same, and s (e - s / 2) is both losses.
        slope = error if self._squared else np.minimum(np.maximum(error, -ONE), ONE)
        return Differentiated(slope * (error - np.float32(0.5) * slope), size, slope[:, None])


class CategoricalReturns:
    """Logits x of the atoms of a distribution: with p = softmax(x) and a target t the loss D_KL(t || p).

    Its derivative by x is p sum(t) - t, where the sum of t is 1 but for rounding.
    """

    def __init__(self, support: NDArray) -> None:
        """support: the evenly spaced atoms, [atoms]."""
        self._support = support

    def expected(self, outputs: NDArray) -> NDArray:
        """Return the mean of the distribution. [..., atoms] -> [...]"""
        means: NDArray = _softmax(outputs) @ self._support
        return means

    def differentiated(
        self, outputs: NDArray, later: NDArray, reward: NDArray, discount: NDArray
    ) -> Differentiated:
        """Differentiate the loss of the outputs of the actions taken. [rows, atoms]"""
        target = self._projected(_softmax(later), reward, discount)
        logits = outputs - outputs.max(1, keepdims=True)
        p = np.exp(logits)
        total = p.sum(1, keepdims=True)
        p /= total
        logits -= np.log(total)
        entropy = target * np.log(np.where(target > 0, target, 1))
        losses = (entropy - target * logits).sum(1)
        return Differentiated(losses, losses, p * target.sum(1, keepdims=True) - target)

    def _projected(self, probability: NDArray, reward: NDArray, discount: NDArray) -> NDArray:
        """Return the distribution of r + gamma^n Z on the atoms, as `categorical_target` does. [rows, atoms]

        probability: of the atoms of Z, [rows, atoms].
        """
        support = self._support
        atoms = len(support)
        spacing = (support[-1] - support[0]) / np.float32(atoms - 1)
        moved = np.clip(reward[:, None] + discount[:, None] * support, support[0], support[-1])
        place = (moved - support[0]) / spacing
        below = np.minimum(place.astype(np.int64), atoms - 2)
        upper = probability * (place - below)
        cell = below + (np.arange(len(below)) * atoms)[:, None]
        sums = np.bincount(cell.ravel(), (probability - upper).ravel(), probability.size)
        sums += np.bincount(cell.ravel() + 1, upper.ravel(), probability.size)
        return sums.reshape(probability.shape).astype(probability.dtype)


class QuantileReturns:
    """Quantiles q_i at fractions tau_i: with samples t_j of the target and u = t_j - q_i their Huber loss.

    This is the mean over j and the sum over i of |tau_i - 1{u < 0}| L(u), L(u) = u^2 / 2 kappa up to kappa
    and |u| - kappa / 2 beyond, so that its derivative by q_i is the mean over j of
    -|tau_i - 1{u < 0}| clip(u / kappa, -1, 1), with the sign of u for kappa = 0.
    """

    def __init__(self, fraction: NDArray, kappa: float) -> None:
        """fraction: tau of each quantile, [quantiles]."""
        self._fraction, self._kappa = fraction, np.float32(kappa)

    def expected(self, outputs: NDArray) -> NDArray:
        """Return the mean of the quantiles. [..., quantiles] -> [...]"""
        return outputs.mean(-1)

    def differentiated(
        self, outputs: NDArray, later: NDArray, reward: NDArray, discount: NDArray
    ) -> Differentiated:
        """Differentiate the loss of the outputs of the actions taken. [rows, quantiles]"""
        target, kappa = reward[:, None] + discount[:, None] * later, self._kappa
        u = target[:, None, :] - outputs[:, :, None]  # [rows, quantiles, samples]
        weight = np.abs(self._fraction[:, None] - (u < 0))
        slope = np.clip(u / kappa, -1, 1) if kappa > 0 else np.sign(u)
        # As for the Huber loss: s (u - kappa s / 2) is both parts of L.
        loss = slope * (u - np.float32(0.5) * kappa * slope)
        slope *= weight
        errors = np.abs(target.mean(1) - outputs.mean(1))
        return Differentiated((weight * loss).mean(2).sum(1), errors, -slope.mean(2))


def _softmax(logits: NDArray) -> NDArray:
    """[..., n] -> [..., n]"""
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return p


def best(value: DerivedValues, outputs: NDArray, mask: NDArray | None) -> NDArray:
    """Return the actions with the largest mean return among the valid ones. [rows]

    outputs: [rows, actions, outputs]; mask: which actions are valid, [rows, actions], None: all are.
    """
    expected = value.expected(outputs)
    return (expected if mask is None else np.where(mask, expected, -np.inf)).argmax(1)


def td_gradient(
    value: DerivedValues,
    outputs: NDArray,
    later: NDArray,
    next_action: NDArray,
    action: NDArray,
    reward: NDArray,
    discount: NDArray,
    weight: NDArray,
) -> tuple[NDArray, NDArray]:
    """Differentiate the loss of DQN, the mean of w L(Z(s, a), r + gamma^n Z'(s', a')).

    By the outputs for the action taken it is w / rows times the derivative of L, by all others it is 0.

    outputs: of the online network Z, later: of the target network Z', n steps on, [rows, actions, outputs]
    each; next_action: a', action, reward, discount, weight: [rows]. Returns loss, error and mean return of
    each row, [3, rows], and the derivatives by `outputs`.
    """
    rows, actions, size = outputs.shape
    first = np.arange(0, rows * actions, actions)
    taken = first + action
    next_taken = first + next_action
    own = outputs.reshape(-1, size).take(taken, axis=0)
    losses, errors, slope = value.differentiated(
        own, later.reshape(-1, size).take(next_taken, axis=0), reward, discount
    )
    gradient = np.zeros_like(outputs)
    gradient.reshape(-1, size)[taken] = slope * (weight / np.float32(rows))[:, None]
    statistics = np.empty((3, rows), outputs.dtype)
    statistics[0], statistics[1], statistics[2] = losses, errors, value.expected(own)
    return statistics, gradient


def returns_gradient(outputs: NDArray, action: NDArray, target: NDArray) -> tuple[NDArray, NDArray]:
    """Differentiate the loss of Sarsa, the mean of e^2 / 2 with e = Q(s, a) - G: by Q(s, a) it is e / rows.

    outputs: [rows, actions, 1]; action, target: [rows]. Returns the means of loss, size of the error and
    value, [3], and the derivatives by `outputs`.
    """
    rows, actions, _ = outputs.shape
    taken = np.arange(0, rows * actions, actions) + action
    value = outputs.ravel().take(taken)
    error = value - target
    statistics = 0.5 * np.dot(error, error) / rows, np.abs(error).mean(), value.mean()
    gradient = np.zeros_like(outputs)
    gradient.reshape(-1)[taken] = error / np.float32(rows)
    return np.array(statistics, outputs.dtype), gradient
