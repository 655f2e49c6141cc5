"""Advantage actor-critic (Mnih et al., 2016, arXiv:1602.01783), all environments in step with each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labrl.agents.batch import Batch, normalized
from labrl.agents.budget import check_budget
from labrl.agents.learns_once import LearnsOnce
from labrl.agents.on_policy import OnPolicyConfig
from labrl.clock import Clock
from labrl.config.types import NonNegativeFloat, NonNegativeSchedule, PositiveInt, Probability
from labrl.errors import InputError
from labrl.memory.episodes import Episodes
from labrl.memory.rollout import Rollout
from labrl.networks.actor_critic import is_shared
from labrl.networks.compute import Compute
from labrl.networks.gradient import FlatParameters
from labrl.networks.optimizers import Optimizer, Separate
from labrl.networks.spaces import Spaces
from labrl.schedules import value_at
from labrl.seeding import Streams


@dataclass(kw_only=True)
class A2CConfig(OnPolicyConfig):
    """Options of A2C. Either `horizon` or `episodes` says when to learn."""

    horizon: PositiveInt | None
    """Agent steps of each environment in one update, t_max in the paper, >= 1."""
    episodes: PositiveInt | None
    """Whole episodes in one update, over all environments, >= 1."""
    gae_lambda: Probability
    """Decay of the advantage estimator, lambda, in [0, 1]; 1: the paper's returns over the rest of the
    rollout, 0: one-step returns."""
    value_coef: NonNegativeFloat
    """Weight of half the squared error of the values, >= 0."""
    value_lr: NonNegativeSchedule | None
    """Learning rate of the value network, >= 0, which then has its own optimizer and gradient norm; null: one
    optimizer for policy and values."""
    normalize_advantage: bool
    """Whether advantages are scaled to mean 0 and deviation 1 in each update."""


def policy_objective(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """Mean of log pi(a|s) A, whose gradient is that of the expected return (section 4, eq. for A3C).

    log_prob, advantage: [batch]. Returns a scalar to be maximized.
    """
    return torch.dot(log_prob, advantage) / len(advantage)


class A2C(LearnsOnce):
    """One step down the gradient on each rollout, which is then forgotten.

    The advantage of a step is R - V(s), with R the discounted rewards until the rollout ends and the value of
    the state it ends in; lambda below 1 mixes in shorter returns. Over whole episodes R is the full return.
    """

    Config = A2CConfig
    NAME = "A2C"
    STATISTICS = ("loss_policy", "loss_value", "entropy")
    _config: A2CConfig

    def __init__(
        self, config: A2CConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        self.check(config, spaces)
        if config.horizon is not None:
            new_rollout: Any = partial(Rollout, config.horizon)
        else:
            assert config.episodes is not None, "check_config has refused neither"
            new_rollout = partial(Episodes, config.episodes)
        super().__init__(config, spaces, clock, streams, compute, new_rollout)
        self._gae_lambda = config.gae_lambda

    @classmethod
    def check_config(cls, config: A2CConfig, env: Any) -> None:
        """Raises InputError unless one option says when to learn, and within the budget."""
        if (config.horizon is None) == (config.episodes is None):
            given = "neither" if config.horizon is None else "both"
            raise InputError(
                "agent.horizon (in steps) or agent.episodes (whole episodes) says when to learn, and the "
                f"other must be null: got {given}. Set agent.horizon=5 agent.episodes=null, or "
                "agent.horizon=null agent.episodes=8.",
                code="contradiction",
                key="agent.horizon",
            )
        if config.horizon is not None:
            check_budget(config.horizon, env)

    @classmethod
    def check(cls, config: OnPolicyConfig, spaces: Spaces) -> None:
        """Raises InputError for options that have no meaning in the environment's spaces."""
        super().check(config, spaces)
        assert isinstance(config, A2CConfig)
        if config.value_lr is not None and is_shared(config.network, spaces):
            raise InputError(
                "agent.value_lr is the learning rate of a separate value network, and here policy and values "
                "share one network. Set agent.network.shared=false or agent.value_lr=null.",
                code="contradiction",
                key="agent.value_lr",
            )

    def _new_optimizer(self, weights: FlatParameters) -> Optimizer:
        """One for all, or one of the policy and one of the values."""
        config, network = self._config, self.network
        if config.value_lr is None:
            return super()._new_optimizer(weights)
        build = partial(config.optimizer.build, max_grad_norm=config.max_grad_norm)
        policy = weights.parts(network, [network.policy_torso, network.policy_head])
        value = weights.parts(network, [network.value_torso, network.value_head])
        value_lr = partial(value_at, config.value_lr)
        return Separate(
            build(parameters=policy), build(parameters=value), lambda: value_lr(self._clock.frame)
        )

    def _update(self, batch: Batch) -> int:
        """One update on the whole batch."""
        if self._config.normalize_advantage:
            batch.columns[:, 0] = normalized(batch.columns[:, 0], self._compute.ranks)
        return self._step_along(batch, self._loss)

    def _loss(
        self, parameters: Tensor, value: Tensor, action: Tensor, columns: Tensor, entropy_coef: float
    ) -> tuple[Tensor, Tensor]:
        """-log pi(a|s) A + c1 (R - V)^2 / 2 - c2 H (section 4), and the means named in STATISTICS."""
        log_prob, entropies = self._distribution.log_prob_entropy(parameters, action)
        policy = -policy_objective(log_prob, columns[:, 0])
        value_error = 0.5 * (columns[:, 1] - value).square().mean()
        entropy = entropies.mean()
        loss = policy + self._config.value_coef * value_error
        if entropy_coef:  # a term of weight zero would still be differentiated
            loss = loss - entropy_coef * entropy
        return loss, torch.stack([policy, value_error, entropy]).detach()
