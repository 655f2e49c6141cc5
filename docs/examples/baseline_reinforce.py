"""REINFORCE with a learned baseline (Sutton & Barto, 2018, section 13.4): an agent of one's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.agents.agent import Observation
from labrl.agents.parts.policy import Policy, PolicyAgent, PolicyConfig, evaluated
from labrl.config.types import PositiveInt
from labrl.memory.rollout import Episodes, Minibatch
from labrl.schedules import value_at
from labrl.step import Step


@dataclass(kw_only=True)
class BaselineReinforceConfig(PolicyConfig):
    """Options: those of every agent with a policy (network, gamma, lr, ...), and its own."""

    episodes: PositiveInt
    """Whole episodes in one update, >= 1."""


class BaselineReinforce(PolicyAgent):
    """Follows the mean of (G - V(s)) grad log pi(a|s) over whole episodes, and fits V to their returns G."""

    Config = BaselineReinforceConfig

    def __init__(self, config: BaselineReinforceConfig, *, spaces: Any, clock: Any, **runtime: Any) -> None:
        self.config, self.clock = config, clock
        self.policy = Policy(config, spaces, clock, **runtime, agent="mine", statistics=("policy", "value"))
        self.rollout = Episodes(config.episodes, spaces.num_envs)

    def act(self, observation: Observation) -> NDArray:
        choice = self.policy.act(observation)
        self.rollout.add_choice(*choice)
        return self.policy.distribution.to_env(choice.action)

    def observe(self, step: Step) -> None:
        self.policy.observe(step, self.rollout)

    def learn(self) -> int:
        if not self.rollout.full:
            return 0
        batch = self.policy.batch(self.rollout, self.config.gamma, gae_lambda=1.0)
        means = self.policy.learner.gradient(self.loss, batch)
        self.policy.record(means, self.policy.descend(value_at(self.config.lr, self.clock.frame)))
        self.rollout.clear()
        return 1

    def loss(self, network: Callable[..., Any], minibatch: Minibatch) -> tuple[Tensor, Tensor]:
        parameters, value = evaluated(network, minibatch)
        log_prob, _ = self.policy.distribution.log_prob_entropy(parameters, minibatch.action)
        policy = -(minibatch.advantage * log_prob).mean()
        error = 0.5 * (minibatch.value_target - value).square().mean()
        return policy + error, torch.stack([policy, error]).detach()
