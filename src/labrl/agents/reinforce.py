"""REINFORCE (Williams, 1992, doi:10.1007/BF00992696): policy gradients from whole episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from labrl.agents.policy_agent import PolicyAgent, PolicyConfig, normalize_advantages
from labrl.memory import Minibatch
from labrl.memory.rollout import Episodes
from labrl.schedules import value_at
from labrl.types import NonNegativeFloat, PositiveInt


@dataclass(kw_only=True)
class ReinforceConfig(PolicyConfig):
    """Options of REINFORCE."""

    episodes: PositiveInt
    """Number of whole episodes in each update, over all environments, >= 1."""
    baseline: Literal["none", "mean", "value"]
    """Baseline subtracted from returns: none, mean (of the returns in the update) or value (learned)."""
    value_coef: NonNegativeFloat | None
    """Weight of half the squared error of the values, >= 0, for baseline=value; null for other baselines."""
    normalize_advantage: bool
    """Whether returns minus the baseline are scaled to mean 0 and standard deviation 1 in each update."""


class Reinforce(PolicyAgent):
    """Steps along the mean of (G_t - b) grad log pi(a_t|s_t) over `episodes` whole episodes.

    G_t is the discounted sum of rewards from step t to the end of its episode (Sutton & Barto, 2018, section
    13.4, without the factor gamma^t, as is usual). If a time limit truncates an episode, a value baseline
    estimates the rest of its return; without one, the rest is missing. With several environments, an episode
    that is unfinished at an update counts toward the next update, as if the policy at that time had played
    the entire episode. With env.num_envs=1 and agent.episodes=1, this is the algorithm of the textbook.
    """

    Config = ReinforceConfig
    NAME = "REINFORCE"
    STATISTICS = ("loss_policy", "loss_value", "entropy")
    """Names of the statistics, which are means over the rows of an update."""
    config: ReinforceConfig

    def __init__(self, config: ReinforceConfig, **runtime: Any) -> None:
        """Take the same arguments as `PolicyAgent`."""
        super().__init__(config, **runtime, has_value=config.baseline == "value")
        self.rollout = Episodes(config.episodes, runtime["spaces"].num_envs)

    def learn(self) -> int:
        """Make one update when enough episodes have ended. Returns the number of optimizer updates."""
        if not self.rollout.full:
            return 0
        config, frame = self.config, self.clock.frame
        batch = self.batch(config.gamma, gae_lambda=1.0)
        if config.baseline == "mean":
            batch.advantage.sub_(batch.advantage.mean())
        if config.normalize_advantage:
            batch.advantage.copy_(normalize_advantages(batch.advantage))
        self.entropy_coef = value_at(config.entropy_coef, frame)
        statistics = self.learner.gradient(self.loss, batch)
        self.record(statistics, self.descend(self.lr))
        self.rollout.clear()
        return 1 if self.imitation is None else 1 + self.imitation.learn()

    def objective(
        self, minibatch: Minibatch, log_prob: Tensor, entropy: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the mean of -(G - b) log pi(a|s) + c1 (G - V(s))^2 / 2 - c2 H(pi(.|s))."""
        policy = -(minibatch.advantage * log_prob).mean()
        value_error = 0.5 * (value - minibatch.value_target).square().mean()
        mean_entropy = entropy.mean()
        loss = policy
        if self.config.value_coef is not None:
            loss = torch.add(loss, value_error, alpha=self.config.value_coef)
        if self.entropy_coef:  # torch would still differentiate a term with weight zero
            loss = torch.sub(loss, mean_entropy, alpha=self.entropy_coef)
        return loss, torch.stack([policy, value_error, mean_entropy]).detach()
