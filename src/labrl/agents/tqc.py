"""Truncated quantile critics, TQC (Kuznetsov et al., 2020, arXiv:2005.04269).

SAC with distributional critics: each learns quantiles of the return. Targets are made of the quantiles of
all critics together, without the largest: their number sets how strongly values that are too high are
countered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.agents.parts.action_values import quantile_huber_loss
from labrl.agents.parts.actor_critic import critic_rows
from labrl.agents.parts.experience import Transitions
from labrl.agents.sac import SAC, SACConfig, soft_value
from labrl.clock import Clock
from labrl.config.types import NonNegativeInt, PositiveInt
from labrl.learning.compute import Compute
from labrl.learning.kernels.actor_critics import SquashedChoice, quantile_critics_gradient
from labrl.networks.critics import Critics, PolicyNetwork
from labrl.networks.spaces import Spaces
from labrl.seeding import Streams


@dataclass(kw_only=True)
class TQCConfig(SACConfig):
    """Options of TQC."""

    critics: PositiveInt
    """Number of critics, N, >= 1."""
    quantiles: PositiveInt
    """Quantiles of the return that each critic learns, M, at the midpoints of equal intervals of probability,
    >= 1."""
    dropped: NonNegativeInt
    """Quantiles of each critic, d, in the number of largest ones that targets leave out, N d; >= 0 and below
    `quantiles`."""

    def __post_init__(self) -> None:
        if self.dropped >= self.quantiles:
            raise ValueError(
                f"must have dropped < quantiles, got dropped={self.dropped} and quantiles={self.quantiles}"
            )


def smallest_atoms(quantiles: Tensor, dropped: int) -> Tensor:
    """Return the quantiles of all critics in ascending order without the largest, z_(1) ... z_(k N), eq. 9.

    quantiles: [critics, batch, M]; dropped: d, of each critic. Returns [batch, N (M - d)].
    """
    count = quantiles.shape[0] * (quantiles.shape[2] - dropped)
    return quantiles.transpose(0, 1).flatten(1).sort(dim=1).values[:, :count]


def quantile_losses(quantiles: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Weighted quantile Huber loss of each row: the mean over quantiles and samples, summed over the critics.

    Its mean is minimized, eq. 14. quantiles: [critics, batch, M]; target: samples, [batch, samples]; weight:
    importance weights, [batch]. Returns [batch].
    """
    count = quantiles.shape[2]
    fraction = (torch.arange(count, device=quantiles.device) + 0.5) / count
    losses = [quantile_huber_loss(of_critic, target, fraction, kappa=1.0) for of_critic in quantiles]
    return torch.stack(losses).sum(0) * weight / count


class TQC(SAC):
    """SAC with another loss of the critics, and a policy that follows the mean of all their quantiles."""

    Config = TQCConfig
    NAME = "tqc"

    def __init__(
        self, config: TQCConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        shape = {"num_critics": config.critics, "critic_outputs": config.quantiles}
        super().__init__(config, spaces, clock, streams, compute, **shape)
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
        """Compute the gradient of the same loss by a kernel of the critics. Returns their `critic_rows`."""
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
        """Compute the gradient of the same loss by a kernel of the policy. Returns mean loss and entropy."""
        judge = self.judge_kernel
        drawn = SquashedChoice(kernel.forward(batch.observation), batch.noise.numpy())
        values, temperature = judge.forward(batch.observation, drawn.choice), self._temperature.value
        entropy = drawn.entropy.mean()
        statistics = -values.mean() - temperature * entropy, entropy
        # The mean over the rows of the mean over critics and quantiles is that of all numbers.
        by_values = np.full_like(values, -1 / values.size)
        kernel.backward(drawn.gradient(values, temperature, judge.input_gradient, by_values))
        return np.array(statistics, np.float32)
