"""An example agent: PPO with a penalty on the divergence from the old policy (arXiv:1707.06347, eq. 8)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from labrl.agents.ppo import PPO, PPOConfig
from labrl.memory import Minibatch
from labrl.types import NonNegativeFloat


@dataclass(kw_only=True)
class PenaltyPPOConfig(PPOConfig):
    """Options of the agent, in addition to those of PPO."""

    penalty_coef: NonNegativeFloat
    """Weight of the divergence from the old policy, beta in eq. 8, >= 0."""


class PenaltyPPO(PPO):
    """Minimize the loss of PPO plus beta KL(old policy, new policy)."""

    Config = PenaltyPPOConfig
    STATISTICS = (*PPO.STATISTICS, "penalty")

    def objective(
        self, minibatch: Minibatch, log_prob: Tensor, entropy: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        loss, statistics = super().objective(minibatch, log_prob, entropy, value)
        penalty = self.config.penalty_coef * (minibatch.log_prob - log_prob).mean()
        return loss + penalty, torch.cat([statistics, penalty.detach().unsqueeze(0)])
