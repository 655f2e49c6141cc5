"""An example agent: DQN with a soft target and a bonus for likely actions (arXiv:2007.14430, eq. 1)."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labrl.agents.dqn import DQN, DQNConfig
from labrl.agents.parts.action_values import select_outputs
from labrl.types import NonNegativeFloat, PositiveFloat


@dataclass(kw_only=True)
class MunchausenDQNConfig(DQNConfig):
    """Options of the agent, in addition to those of DQN."""

    bonus_coef: NonNegativeFloat
    """Weight of the log-probability of the action in the reward, alpha, >= 0."""
    temperature: PositiveFloat
    """Temperature of the softmax policy, tau, > 0."""
    lowest: float
    """Lower limit of tau log pi(a|s), l_0."""


class MunchausenDQN(DQN):
    """Learn r + alpha tau log pi(a|s) + gamma^n sum_a' pi(a'|s') (Q'(s', a') - tau log pi(a'|s'))."""

    Config = MunchausenDQNConfig
    TRAITS = replace(DQN.TRAITS, masks=False)
    ROWS = (*DQN.ROWS, "bonus")
    config: MunchausenDQNConfig

    def objective(
        self,
        batch: Any,
        weight: Tensor,
        outputs: Tensor,
        next_outputs: Tensor,
        selector_outputs: Tensor,
    ) -> tuple[Tensor, Tensor]:
        tau = self.config.temperature
        with torch.no_grad():
            next_values = self.value.expected(next_outputs)  # [batch, actions]
            log_policy = torch.log_softmax(next_values / tau, dim=1)
            soft_value = (log_policy.exp() * (next_values - tau * log_policy)).sum(1)
            values = self.value.expected(self.target.forward_network(batch.observation).outputs)
            log_prob = torch.log_softmax(values / tau, dim=1).gather(1, batch.action.unsqueeze(1)).squeeze(1)
            bonus = self.config.bonus_coef * (tau * log_prob).clamp(self.config.lowest, 0)
            target = self.value.target(soft_value.unsqueeze(1), batch.reward + bonus, batch.discount)
        taken = select_outputs(outputs, batch.action)
        losses, errors = self.value.loss(taken, target)
        rows = torch.stack((losses, errors, self.value.expected(taken), bonus)).detach()
        return torch.dot(losses, weight / len(losses)), rows
