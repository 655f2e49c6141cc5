"""Truncated quantile critics, TQC (Kuznetsov et al., 2020, arXiv:2005.04269).

SAC with distributional critics, each of which learns quantiles of the return. Targets omit the largest
quantiles among those of all critics. The number of omitted quantiles controls how strongly overestimation is
counteracted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from labrl.agents.parts.action_values import quantile_huber_loss
from labrl.agents.replay_agent import critic_rows
from labrl.agents.sac import SAC, SACConfig, soft_value
from labrl.memory import Transitions
from labrl.networks.critics import Critics, PolicyNetwork
from labrl.types import NonNegativeInt, PositiveInt


@dataclass(kw_only=True)
class TQCConfig(SACConfig):
    """Options of TQC."""

    critics: PositiveInt
    """Number of critics, N, >= 1."""
    quantiles: PositiveInt
    """Number of quantiles that each critic learns, M, >= 1; they are at the midpoints of equal intervals of
    probability."""
    dropped: NonNegativeInt
    """Number of dropped quantiles per critic, d, >= 0 and less than `quantiles`; targets omit the N d largest
    among the quantiles of all N critics."""


def smallest_atoms(quantiles: Tensor, dropped: int) -> Tensor:
    """Return the smallest quantiles of all critics in ascending order, z_(1) ... z_(k N), k = M - d, eq. 9.

    quantiles: [critics, batch, M]; dropped: d. Returns [batch, N (M - d)].
    """
    count = quantiles.shape[0] * (quantiles.shape[2] - dropped)
    return quantiles.transpose(0, 1).flatten(1).sort(dim=1).values[:, :count]


def quantile_losses(quantiles: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Compute each row's weighted quantile Huber loss, summed over critics; the mean over rows is eq. 14.

    quantiles: [critics, batch, M]; target: samples of the target, [batch, samples]; weight:
    importance weights, [batch]. Returns [batch].
    """
    critics, _, count = quantiles.shape
    fraction = ((torch.arange(count, device=quantiles.device) + 0.5) / count).repeat(critics)
    of_all = quantiles.transpose(0, 1).flatten(1)  # [batch, critics M]
    return quantile_huber_loss(of_all, target, fraction, 1.0) * weight / count


class TQC(SAC):
    """SAC with quantile critics, and a policy that maximizes the mean of all their quantiles."""

    Config = TQCConfig
    NAME = "tqc"
    TRAITS = replace(SAC.TRAITS, actions=(gym.spaces.Box,))

    def __init__(self, config: TQCConfig, **runtime: Any) -> None:
        """Take the same arguments as `SAC`."""
        super().__init__(config, **runtime, num_critics=config.critics, critic_outputs=config.quantiles)
        self._dropped = config.dropped

    def critic_loss(self, critics: Critics, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Compute the loss for the target samples r + gamma^n (z_(i) - alpha log pi(a'|s')), eq. 10 to 14."""
        with torch.no_grad():
            action, entropy = self.soft.choose(self.policy_network(batch.next_observation), batch.noise)
            quantiles = self.target.forward_network(batch.next_observation, action)
            value = smallest_atoms(quantiles, self._dropped) + self.alpha * entropy.unsqueeze(1)
            target = torch.addcmul(batch.reward.unsqueeze(1), batch.discount.unsqueeze(1), value)
        values = critics(batch.observation, batch.action)
        losses = quantile_losses(values, target, batch.weight)
        return losses.mean(), critic_rows(losses, values.mean(2), target.mean(1))

    def policy_loss(self, policy: PolicyNetwork, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Compute the mean of alpha log pi(a|s) minus the mean of all quantiles of Z(s, a), eq. 15."""
        action, entropy = self.soft.choose(policy(batch.observation), batch.noise)
        value = self.frozen_critics(batch.observation, action).mean((0, 2))
        loss = -soft_value(value, entropy, self.alpha).mean()
        return loss, torch.stack((loss.detach(), entropy.detach().mean()))
