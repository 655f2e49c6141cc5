"""Truncated quantile critics, TQC (Kuznetsov et al., 2020, arXiv:2005.04269).

SAC with distributional critics, each of which learns quantiles of the return. Targets use the quantiles of
all critics except the largest ones, whose number controls how strongly overestimation is counteracted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.agents.parts.action_values import quantile_huber_loss
from labrl.agents.replay_agent import critic_rows
from labrl.agents.sac import SAC, SACConfig, SquashedChoice, soft_value
from labrl.memory.replay import Transitions
from labrl.networks.critics import Critics, PolicyNetwork
from labrl.types import NonNegativeInt, PositiveInt


@dataclass(kw_only=True)
class TQCConfig(SACConfig):
    """Options of TQC."""

    critics: PositiveInt
    """Number of critics, N, >= 1."""
    quantiles: PositiveInt
    """Number of quantiles that each critic learns, M, at the midpoints of equal intervals of probability,
    >= 1."""
    dropped: NonNegativeInt
    """Number of quantiles per critic that targets drop, d, >= 0 and less than `quantiles`; targets drop the
    N d largest quantiles of all critics."""

    def __post_init__(self) -> None:
        if self.dropped >= self.quantiles:
            raise ValueError(
                f"must have dropped < quantiles, got dropped={self.dropped} and quantiles={self.quantiles}"
            )


def smallest_atoms(quantiles: Tensor, dropped: int) -> Tensor:
    """Return the quantiles of all critics in ascending order without the largest, z_(1) ... z_(k N), eq. 9.

    quantiles: [critics, batch, M]; dropped: d. Returns [batch, N (M - d)].
    """
    count = quantiles.shape[0] * (quantiles.shape[2] - dropped)
    return quantiles.transpose(0, 1).flatten(1).sort(dim=1).values[:, :count]


def quantile_losses(quantiles: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Compute the weighted quantile Huber loss of each row, summed over the critics; its mean is eq. 14.

    quantiles: [critics, batch, M]; target: samples of the target, [batch, samples]; weight:
    importance weights, [batch]. Returns [batch].
    """
    count = quantiles.shape[2]
    fraction = (torch.arange(count, device=quantiles.device) + 0.5) / count
    losses = [quantile_huber_loss(of_critic, target, fraction, kappa=1.0) for of_critic in quantiles]
    return torch.stack(losses).sum(0) * weight / count


def quantile_critics_gradient(values: NDArray, target: NDArray, weight: NDArray) -> tuple[NDArray, NDArray]:
    """Differentiate the mean of w sum_i mean_mj |tau_m - 1{u < 0}| H(u), u = y_j - q_im, H the Huber loss.

    The derivative by q_im is the mean over j of -w |tau_m - 1{u < 0}| clip(u, -1, 1), divided by rows and
    quantiles. The samples are sorted, so sums over those below q - 1, up to q, up to q + 1 and above are
    differences of prefix sums, without an array of all pairs of quantiles and samples.

    values: quantiles q of each critic, [critics, rows, quantiles]; target: samples y, ascending, [rows,
    samples]; weight: [rows]. Returns loss, error of the means and mean values of each row, [2 + critics,
    rows], and the derivatives by `values`.
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
    # Double precision, because differences of sums of squares lose all digits of single precision.
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


class TQC(SAC):
    """SAC with quantile critics, and a policy that maximizes the mean of all their quantiles."""

    Config = TQCConfig
    NAME = "tqc"

    def __init__(self, config: TQCConfig, **runtime: Any) -> None:
        """Take the arguments of `SAC`."""
        super().__init__(config, **runtime, num_critics=config.critics, critic_outputs=config.quantiles)
        self._dropped = config.dropped

    def critic_loss(self, critics: Critics, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Compute the loss towards the samples r + gamma^n (z_(i) - alpha log pi(a'|s')), eq. 10 to 14."""
        with torch.no_grad():
            action, entropy = self._soft.choose(self.policy_network(batch.next_observation), batch.noise)
            quantiles = self._target.forward_network(batch.next_observation, action)
            value = smallest_atoms(quantiles, self._dropped) + self._temperature.value * entropy.unsqueeze(1)
            target = torch.addcmul(batch.reward.unsqueeze(1), batch.discount.unsqueeze(1), value)
        values = critics(batch.observation, batch.action)
        losses = quantile_losses(values, target, batch.weight)
        return losses.mean(), critic_rows(losses, values.mean(2), target.mean(1))

    def _critics_by_hand(self, kernel: Any, batch: Transitions) -> NDArray:
        """Compute the gradient of `critic_loss` with a kernel of the critics. Returns their `critic_rows`."""
        parameters = self.policy.forward(batch.next_observation)
        drawn = self._soft.choose_by_hand(parameters, batch.noise.numpy())
        quantiles = self._target.forward(batch.next_observation, drawn.choice)
        kept = smallest_atoms(torch.from_numpy(quantiles), self._dropped).numpy()
        value = kept + np.float32(self._temperature.value) * drawn.entropy[:, None]
        target = batch.reward.numpy()[:, None] + batch.discount.numpy()[:, None] * value
        values = kernel.forward(batch.observation, batch.action.numpy())
        rows, gradient = quantile_critics_gradient(values, target, batch.weight.numpy())
        kernel.backward(gradient)
        return rows

    def policy_loss(self, policy: PolicyNetwork, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Compute the mean of alpha log pi(a|s) - the mean of all quantiles of Z(s, a), eq. 15."""
        action, entropy = self._soft.choose(policy(batch.observation), batch.noise)
        value = self.judge(batch.observation, action).mean((0, 2))
        loss = -soft_value(value, entropy, self._temperature.value).mean()
        return loss, torch.stack((loss.detach(), entropy.detach().mean()))

    def _policy_by_hand(self, kernel: Any, batch: Transitions) -> NDArray:
        """Compute the gradient of `policy_loss` with a kernel. Returns the mean loss and entropy."""
        judge = self.judge_kernel
        drawn = SquashedChoice(kernel.forward(batch.observation), batch.noise.numpy())
        values, temperature = judge.forward(batch.observation, drawn.choice), self._temperature.value
        entropy = drawn.entropy.mean()
        statistics = -values.mean() - temperature * entropy, entropy
        # The mean over rows of the mean over critics and quantiles is the mean of all numbers.
        by_values = np.full_like(values, -1 / values.size)
        kernel.backward(drawn.gradient(values, temperature, judge.input_gradient, by_values))
        return np.array(statistics, np.float32)
