"""Advantage actor-critic (Mnih et al., 2016, arXiv:1602.01783), with synchronized environments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from labrl.agents.policy_agent import (
    PolicyAgent,
    PolicyConfig,
    normalize_advantages,
)
from labrl.clock import Clock
from labrl.learning.compute import Compute
from labrl.learning.flat import FlatParameters
from labrl.learning.optimizers import Optimizer, Separate
from labrl.memory import Minibatch
from labrl.memory.rollout import Episodes, Rollout
from labrl.networks.actor_critic import ActorCritic
from labrl.networks.layers import add_weighted
from labrl.schedules import value_at
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.types import NonNegativeFloat, NonNegativeSchedule, PositiveInt, Probability


@dataclass(kw_only=True)
class A2CConfig(PolicyConfig):
    """Options of A2C. Either `horizon` or `episodes` determines when to learn."""

    horizon: PositiveInt | None
    """Number of agent steps per environment in each update, t_max in the paper, >= 1."""
    episodes: PositiveInt | None
    """Number of whole episodes in each update, over all environments, >= 1."""
    gae_lambda: Probability
    """Decay of the advantage estimator, lambda, in [0, 1]; 1: returns over the rest of the rollout, as in
    the paper; 0: one-step returns."""
    value_coef: NonNegativeFloat
    """Weight of half the squared error of the values, >= 0."""
    value_lr: NonNegativeSchedule | None
    """Learning rate, >= 0, of a separate optimizer for the value network, with separate gradient clipping;
    null: one optimizer for policy and values."""
    normalize_advantage: bool
    """Whether advantages are scaled to mean 0 and standard deviation 1 in each update."""


def policy_objective(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """Compute the mean of log pi(a|s) A, whose gradient is that of the expected return (section 4).

    log_prob, advantage: [batch]. Returns a scalar to be maximized.
    """
    return torch.dot(log_prob, advantage) / len(advantage)


class A2C(PolicyAgent):
    """Makes one update on each rollout and then discards it.

    The advantage of a step is R - V(s), where R is the sum of the discounted rewards until the end of the
    rollout, plus the discounted value of the rollout's last state; lambda below 1 mixes in shorter returns.
    If updates are made on whole episodes, R is the full return. With a recurrent network, each rollout is one
    sequence: gradients reach back to the first step of the rollout, and the recurrent state reaches back to
    the first step of the episode, as in the asynchronous original (section 5.1).
    """

    Config = A2CConfig
    NAME = "A2C"
    TRAITS = replace(PolicyAgent.TRAITS, data_parallel=True, graphs=True)
    STATISTICS = ("loss_policy", "loss_value", "entropy")
    """Names of the statistics, which are means over the rows of an update."""
    config: A2CConfig

    def __init__(
        self, config: A2CConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        self._ranks = compute.ranks
        new_optimizer = None if config.value_lr is None else self._two_optimizers
        super().__init__(config, spaces, clock, streams, compute, new_optimizer=new_optimizer)
        self.rollout: Rollout
        recurrent = self.network.state_size
        if config.horizon is None:
            assert config.episodes is not None, "the configuration was checked"
            self.rollout = Episodes(config.episodes, spaces.num_envs)
        else:
            self.rollout = Rollout(
                config.horizon,
                spaces.num_envs,
                sequence_length=config.horizon if recurrent else 1,
                state_size=recurrent,
            )

    @classmethod
    def for_rank(cls, config: A2CConfig, ranks: int) -> A2CConfig:
        """Return the options unchanged, because each rank has a rollout of its own."""
        return config

    def learn(self) -> int:
        """Make one update if the rollout is full. Returns the number of optimizer updates."""
        if not self.rollout.full:
            return 0
        config, frame = self.config, self.clock.frame
        batch = self.batch(config.gamma, config.gae_lambda)
        if config.normalize_advantage:
            batch.advantage.copy_(normalize_advantages(batch.advantage, self._ranks))
        self.entropy_coef = self.learner.scalar("entropy_coef", value_at(config.entropy_coef, frame))
        self.record(*self.learner.update(self.loss, batch, self.lr, samples=batch.sequence_length))
        self.rollout.clear()
        return 1 if self.imitation is None else 1 + self.imitation.learn()

    def objective(
        self, minibatch: Minibatch, log_prob: Tensor, entropy: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the mean of -log pi(a|s) A + c1 (R - V(s))^2 / 2 - c2 H(pi(.|s)), section 4."""
        policy = -policy_objective(log_prob, minibatch.advantage)
        value_error = 0.5 * (value - minibatch.value_target).square().mean()
        mean_entropy = entropy.mean()
        loss = torch.add(policy, value_error, alpha=self.config.value_coef)
        loss = add_weighted(loss, mean_entropy, self.entropy_coef, sign=-1)
        return loss, torch.stack([policy, value_error, mean_entropy]).detach()

    def _two_optimizers(self, network: ActorCritic, weights: FlatParameters) -> Optimizer:
        """Return an optimizer for the policy and one for the values, with separate rates and clipping."""
        config = self.config
        assert config.value_lr is not None
        value_lr = config.value_lr
        build = partial(config.optimizer.build, max_grad_norm=config.max_grad_norm)
        policy = weights.pieces(network, [network.policy_torso, network.policy_head])
        value = weights.pieces(network, [network.value_torso, network.value_head])
        return Separate(
            build(parameters=policy), build(parameters=value), lambda: value_at(value_lr, self.clock.frame)
        )
