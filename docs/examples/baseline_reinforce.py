"""An example agent: REINFORCE with a learned baseline (Sutton & Barto, 2018, section 13.4)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labrl.agents.policy_agent import PolicyAgent, PolicyConfig
from labrl.memory import Minibatch
from labrl.memory.rollout import Episodes
from labrl.schedules import value_at
from labrl.types import PositiveInt


@dataclass(kw_only=True)
class BaselineReinforceConfig(PolicyConfig):
    """Options of the agent, in addition to those of every agent with a policy (network, gamma, lr, ...)."""

    episodes: PositiveInt
    """Number of whole episodes per update, >= 1."""


class BaselineReinforce(PolicyAgent):
    """Follow the gradient (G - V(s)) grad log pi(a|s) over whole episodes, and fit V to their returns G."""

    Config = BaselineReinforceConfig
    STATISTICS = ("policy", "value")

    def __init__(self, config: BaselineReinforceConfig, *, spaces: Any, clock: Any, **runtime: Any) -> None:
        super().__init__(config, spaces, clock, **runtime)
        self.rollout = Episodes(config.episodes, spaces.num_envs)

    def learn(self) -> int:
        if not self.rollout.full:
            return 0
        batch = self.batch(self.config.gamma, gae_lambda=1.0)
        means = self.learner.gradient(self.loss, batch)
        self.record(means, self.descend(value_at(self.config.lr, self.clock.frame)))
        self.rollout.clear()
        return 1

    def objective(
        self, minibatch: Minibatch, log_prob: Tensor, entropy: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        policy = -(minibatch.advantage * log_prob).mean()
        error = 0.5 * (minibatch.value_target - value).square().mean()
        return policy + error, torch.stack([policy, error]).detach()
