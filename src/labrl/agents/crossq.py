"""CrossQ (Bhatt et al., 2024, arXiv:1902.05605): SAC with batch renormalization and without target networks.

The critics process (s, a) and (s', a') in one forward pass, so that their normalization statistics cover
both. This keeps learning stable without a target network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labrl.agents.replay_agent import critic_rows, select_q
from labrl.agents.sac import SAC, SoftActorCriticConfig, soft_value, squared_errors
from labrl.memory import Transitions
from labrl.networks.actions import mask_logits
from labrl.networks.critics import Critics
from labrl.types import PositiveInt


@dataclass(kw_only=True)
class CrossQConfig(SoftActorCriticConfig):
    """Options of CrossQ."""

    policy_delay: PositiveInt
    """Number of critic updates per update of the policy and the temperature, >= 1."""


class CrossQ(SAC):
    """SAC with critics that serve as their own targets."""

    Config = CrossQConfig
    NAME = "crossq"
    # Batches are normalized with their own statistics, which would differ between the parts of a batch.
    TRAITS = replace(SAC.TRAITS, loss_is_mean=False, data_parallel=False, graphs=False)

    def __init__(self, config: CrossQConfig, **runtime: Any) -> None:
        """Take the same arguments as `SAC`."""
        super().__init__(config, **runtime)
        self._policy_delay = config.policy_delay

    def update(self, batch: Transitions) -> Tensor:
        """Make one update. The policy normalizes with minibatch statistics only during its own update."""
        self.alpha = self._temperature.prepare()
        following, here = self.noisy(batch)
        rows = self.descend("critics", self.critic_loss, following)
        if self.experience.updates % self._policy_delay == 0:
            self.policy.network.train()
            self.descend("policy", self.policy_loss, here, after=self._learn_temperature)
            self.policy.network.eval()
        return rows[1]

    def critic_loss(self, critics: Critics, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Compute the squared error of r + gamma^n (min_i Q_i(s', a') - alpha log pi(a'|s')), eq. 2.

        One forward pass computes Q(s, a) and Q(s', a'), and no gradient flows through the target. Returns a
        scalar to be minimized, and CRITIC_STATISTICS of each row, [3, batch].
        """
        soft, policy = self.soft, self.policy_network
        with torch.no_grad():
            parameters = mask_logits(policy(batch.next_observation), batch.next_mask)
            choice, entropy = soft.choose(parameters, batch.noise)
        both = torch.cat([batch.observation, batch.next_observation])
        values, following = critics(both, soft.joined(batch.action, choice)).chunk(2, dim=1)
        values = select_q(values, batch.action)
        with torch.no_grad():
            value = soft_value(soft.min_q(following, choice), entropy, self.alpha)
            target = torch.addcmul(batch.reward, batch.discount, value)
        losses = squared_errors(values, target, batch.weight)
        return losses.mean(), critic_rows(losses, values, target)
