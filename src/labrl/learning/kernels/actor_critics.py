"""Losses of critics, and of the policies that climb them, with their derivatives by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from labrl.networks.distributions import LOG_STD_RANGE


def critics_gradient(
    values: NDArray, action: NDArray, target: NDArray, weight: NDArray, factor: float
) -> tuple[NDArray, NDArray]:
    """Differentiate the mean of c w sum_i (Q_i - y)^2: by Q_i it is 2 c w (Q_i - y) / rows.

    values: of the actions taken, Q, [critics, rows], or of all actions where they are discrete,
    [critics, rows, actions]; action: taken, [rows, ...]; target, weight: [rows]; factor: c. Returns the loss,
    the mean error and the values of each row, [2 + critics, rows], and the derivatives by `values`.
    """
    if values.ndim == 3:
        index = np.broadcast_to(action[:, None], (*values.shape[:2], 1))
        taken = np.take_along_axis(values, index, 2)[..., 0]
        statistics, slope = critics_gradient(taken, action, target, weight, factor)
        gradient = np.zeros_like(values)
        np.put_along_axis(gradient, index, slope[..., None], 2)
        return statistics, gradient
    error = values - target
    statistics = np.empty((2 + len(values), len(target)), values.dtype)
    np.multiply(np.square(error).sum(0), weight * np.float32(factor), out=statistics[0])
    np.abs(error).mean(0, out=statistics[1])
    statistics[2:] = values
    error *= weight * np.float32(2 * factor / len(target))
    return statistics, error


def quantile_critics_gradient(values: NDArray, target: NDArray, weight: NDArray) -> tuple[NDArray, NDArray]:
    """Differentiate the mean of w sum_i mean_mj |tau_m - 1{u < 0}| H(u), u = y_j - q_im, H the Huber loss.

    By q_im it is the mean over j of -w |tau_m - 1{u < 0}| clip(u, -1, 1), divided by rows and quantiles. The
    samples are in order, so that sums over those below q - 1, from there to q, to q + 1 and above are
    differences of prefix sums: no array has all pairs of quantiles and samples.

    values: quantiles q of each critic, [critics, rows, quantiles]; target: samples y, ascending, [rows,
    samples]; weight: [rows]. Returns the loss, the error of the means and the mean values of each row, [2 +
    critics, rows], and the derivatives by `values`.
    """
    critics, rows, count = values.shape
    samples = target.shape[1]
    quantile = values.transpose(1, 0, 2).reshape(rows, -1)
    fraction = np.tile((np.arange(count) + 0.5) / count, critics)
    ordered = torch.from_numpy(target)
    far, middle, near = (
        torch.searchsorted(ordered, torch.from_numpy(quantile + np.float32(edge))).numpy()
        for edge in (-1, 0, 1)
    )
    # In double precision: differences of sums of squares have no digits of single precision left.
    sums, squares = np.zeros((2, rows, samples + 1))
    np.cumsum(target, axis=1, dtype=np.float64, out=sums[:, 1:])
    np.cumsum(np.square(target, dtype=np.float64), axis=1, out=squares[:, 1:])
    at_far, at_middle, at_near = (np.take_along_axis(sums, at, 1) for at in (far, middle, near))
    square_far, square_middle, square_near = (
        np.take_along_axis(squares, at, 1) for at in (far, middle, near)
    )
    above = samples - near
    below_sum, above_sum = at_middle - at_far, at_near - at_middle
    below_count, above_count = middle - far, near - middle
    slope_below = below_sum - below_count * quantile - far
    slope_above = above_sum - above_count * quantile + above
    loss_below = 0.5 * (square_middle - square_far) - quantile * below_sum + 0.5 * below_count * quantile**2
    loss_below += far * quantile - at_far - 0.5 * far
    loss_above = 0.5 * (square_near - square_middle) - quantile * above_sum + 0.5 * above_count * quantile**2
    loss_above += sums[:, -1:] - at_near - above * quantile - 0.5 * above
    scale = weight[:, None] / (samples * count)
    losses = ((1 - fraction) * loss_below + fraction * loss_above) * scale
    gradient = -((1 - fraction) * slope_below + fraction * slope_above) * scale / rows
    statistics = np.empty((2 + critics, rows), values.dtype)
    statistics[0] = losses.sum(1)
    statistics[2:] = values.mean(2)
    statistics[1] = np.abs(statistics[2:] - target.mean(1)).mean(0)
    by_values = gradient.reshape(rows, critics, count).transpose(1, 0, 2).astype(values.dtype)
    return statistics, by_values


def tanh_gradient(action: NDArray, slope: NDArray) -> NDArray:
    """Differentiate a loss by x, where a = tanh(x): its derivative by a times 1 - a^2.

    action: a; slope: the derivative by a. [rows, size] each
    """
    return slope * (1 - np.square(action))


Backward = Callable[[NDArray], NDArray]
"""Maps the derivative of a loss by the values of critics, [critics, rows], to that by their inputs,
[critics, rows, inputs], of which the last columns are the actions."""


class Choice(Protocol):
    """Actions of a policy in each state, with derivatives by the parameters of the policy."""

    choice: NDArray
    """Actions that were drawn, [rows, size], or the probabilities of all actions, [rows, actions]."""
    entropy: NDArray
    """-log pi of the actions, or the entropy. [rows]"""

    def worth(self, values: NDArray) -> NDArray:
        """Return the smaller critic's value of the choice. [critics, rows, ...] -> [rows]"""
        ...

    def gradient(self, values: NDArray, temperature: float, backward: Backward) -> NDArray:
        """Differentiate the mean of -(Q - alpha log pi) by the policy's parameters. [rows, num_parameters]

        values: of the choice, [critics, rows, ...]; backward: through the critics.
        """
        ...


class SquashedChoice:
    """Actions a = tanh(u), u = m + s x, with a standard normal x and s = exp(clip(l)).

    -log pi = sum(x^2 / 2 + log s + log(1 - a^2)) + constant, so that its derivatives by u and log s are
    -2 a and 1. With G the derivative of the loss by a, that by u is g = G (1 - a^2) + 2 alpha a / rows; by m
    it is g, and by l it is g s x - alpha / rows, and 0 where l is clipped.
    """

    def __init__(self, parameters: NDArray, noise: NDArray) -> None:
        """parameters: means and log deviations, [rows, 2 size]; noise: x, [rows, size]."""
        size = noise.shape[1]
        mean, log_std = parameters[:, :size], parameters[:, size:]
        kept = np.minimum(np.maximum(log_std, LOG_STD_RANGE[0]), LOG_STD_RANGE[1])
        self._inside = log_std == kept
        self._spread = np.exp(kept) * noise
        u = mean + self._spread
        self.choice = np.tanh(u)
        # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), with digits left where tanh(u) rounds to 1.
        slope = np.logaddexp(np.float32(0), -2 * u)
        slope += u
        self.entropy: NDArray = (np.float32(0.5) * noise * noise + kept - 2 * slope).sum(1)
        self.entropy += np.float32((0.5 * math.log(2 * math.pi) + 2 * math.log(2)) * size)

    def worth(self, values: NDArray) -> NDArray:
        """Return the smaller critic's value of the choice. [critics, rows] -> [rows]"""
        return values.min(0)

    def gradient(
        self, values: NDArray, temperature: float, backward: Backward, by_values: NDArray | None = None
    ) -> NDArray:
        """Differentiate the mean of -(Q - alpha log pi) by the policy's parameters. [rows, 2 size]

        by_values: derivative of the mean of -Q by the critics' values, [critics, rows, ...]; None: Q is the
        smaller one.
        """
        rows, size = self.choice.shape
        if by_values is None:
            smaller = values == values.min(0)
            # Critics that agree have a part each.
            by_values = (smaller / (np.float32(-rows) * smaller.sum(0))).astype(values.dtype)
        slope = backward(by_values)[..., -size:].sum(0)
        coefficient = np.float32(temperature / rows)
        by_u = slope * (1 - np.square(self.choice))
        by_u += 2 * coefficient * self.choice
        by_log_std = (by_u * self._spread - coefficient) * self._inside
        return np.concatenate([by_u, by_log_std], axis=1)


class CategoricalChoice:
    """Probabilities p = softmax(x) of all actions, and their entropy H.

    The derivative of sum(p q) + alpha H by x_i is p_i (d_i - sum(p d)) with d = q - alpha log p: the constant
    -alpha in the derivative of H by p_i cancels.
    """

    def __init__(self, parameters: NDArray, noise: NDArray) -> None:
        """parameters: logits, [rows, actions]; noise: none is needed, [rows, 0]."""
        logits = parameters - parameters.max(1, keepdims=True)
        self.choice = np.exp(logits)
        total = self.choice.sum(1, keepdims=True)
        self.choice /= total
        self._log_p = logits - np.log(total)
        self.entropy: NDArray = -(self.choice * self._log_p).sum(1)

    def worth(self, values: NDArray) -> NDArray:
        """Return the mean of the smaller critic's values. [critics, rows, actions] -> [rows]"""
        means: NDArray = (values.min(0) * self.choice).sum(1)
        return means

    def gradient(self, values: NDArray, temperature: float, backward: Backward) -> NDArray:
        """Differentiate the mean of -(Q + alpha H) by the policy's parameters. [rows, actions]"""
        d = values.min(0) - np.float32(temperature) * self._log_p
        d -= (self.choice * d).sum(1, keepdims=True)
        d *= self.choice
        d /= np.float32(-len(d))
        return d
