"""Implicit Q-learning, IQL (Kostrikov et al., 2022, arXiv:2110.06169), for offline data (`agent/offline`).

IQL never evaluates actions that are not in the data. A state-value network learns an expectile of the
values of the data's actions, which is near their maximum; the critics learn from the state values; and the
policy imitates the actions of the data, better actions more strongly. Learning can continue with transitions
that the agent collects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from labrl.agents.agent import joined
from labrl.agents.parts.targets import TargetNetwork
from labrl.agents.replay_agent import ReplayActorCriticConfig, ReplayAgent, critic_rows, select_q
from labrl.agents.sac import CategoricalPolicy
from labrl.agents.td3 import squared_errors
from labrl.clock import Clock
from labrl.component import Component
from labrl.learning.compute import Compute
from labrl.learning.make import make_learner
from labrl.memory import Transitions
from labrl.networks.building import build_networks
from labrl.networks.critics import Critics, PolicyNetwork
from labrl.networks.distributions import RescaledGaussian
from labrl.networks.layers import Array
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.types import NonNegativeFloat, PositiveFloat

Expectile = Annotated[float, Field(gt=0, lt=1)]


@dataclass(kw_only=True)
class IQLConfig(ReplayActorCriticConfig):
    """Options of IQL."""

    target: Component
    """Update rule of the target critics."""
    expectile: Expectile
    """Expectile tau, in (0, 1), of the data's Q(s, a) that V(s) learns; 0.5: the mean; close to 1: nearly the
    maximum."""
    inverse_temperature: NonNegativeFloat
    """Inverse temperature beta of the weighting by advantage, >= 0; 0: behavior cloning."""
    max_weight: PositiveFloat
    """Largest weight of a transition in the policy's loss, > 0."""


def expectile_losses(error: Tensor, expectile: float) -> Tensor:
    """Return |tau - 1{u < 0}| u^2 of each error u = Q(s, a) - V(s), eq. 5. [batch] -> [batch]"""
    return torch.where(error < 0, 1 - expectile, expectile) * error.square()


def advantage_weight(advantage: Tensor, inverse_temperature: float, largest: float) -> Tensor:
    """Return min(exp(beta A), largest), the weight of each transition in eq. 7. [batch] -> [batch]"""
    return torch.exp(inverse_temperature * advantage).clamp(max=largest)


class IQL(ReplayAgent):
    """A policy, two critics with target networks, and a state-value network, as in algorithm 1."""

    Config = IQLConfig
    NAME = "iql"
    POLICY_STATISTICS = ("loss_policy", "imitation_weight")
    VALUE_STATISTICS: ClassVar[tuple[str, ...]] = ("loss_value", "value_mean")
    """Names of the means that the loss of the state values returns."""

    def __init__(
        self, config: IQLConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        self._policy = actions_of(spaces.action)
        super().__init__(
            config,
            spaces,
            clock,
            streams,
            compute,
            actions=self._policy,
            num_critics=2,
        )
        torso = config.network.critic_torso or config.network.torso
        (network,) = build_networks(
            lambda: (PolicyNetwork(torso, spaces.observation, 1),),
            streams.seed_of("initialization", "value"),
            spaces,
        )
        self.value = make_learner(
            network, spaces, compute, config.optimizer, config.max_grad_norm, batch_size=config.batch_size
        )
        names = (*self.VALUE_STATISTICS, "grad_norm_value")
        self.follows["value"] = self.value, self.follows["critics"][1], names
        self.target: TargetNetwork[Any] = config.target.build(learner=self.critics)
        self.targets = {"target": self.target}

    def update(self, batch: Transitions) -> Tensor:
        """Make one update (algorithm 1). Returns the error of each row of the minibatch. [batch]"""
        self.descend("value", self.value_loss, batch)
        self.descend("policy", self.policy_loss, batch)
        rows = self.descend("critics", self.critic_loss, batch)
        self.target.updated()
        return rows[1]

    def value_loss(self, value: PolicyNetwork, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Compute the expectile loss of V(s) with respect to min_i Q_i'(s, a), eq. 5."""
        found = value(batch.observation).squeeze(1)
        with torch.no_grad():
            wanted = self._data_value(batch)
        losses = expectile_losses(wanted - found, self.config.expectile) * batch.weight
        return losses.mean(), torch.stack((losses.detach().mean(), found.detach().mean()))

    def critic_loss(self, critics: Critics, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Compute the squared error with respect to the target r + gamma^n V(s'), eq. 6."""
        with torch.no_grad():
            following = self.value.forward_network(batch.next_observation).squeeze(1)
            target = torch.addcmul(batch.reward, batch.discount, following)
        values = select_q(critics(batch.observation, batch.action), batch.action)
        losses = squared_errors(values, target, batch.weight)
        return losses.mean(), critic_rows(losses, values, target)

    def policy_loss(self, policy: PolicyNetwork, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Compute the mean of -exp(beta (min_i Q_i'(s, a) - V(s))) log pi(a|s), eq. 7."""
        config = self.config
        with torch.no_grad():
            state_value = self.value.forward_network(batch.observation).squeeze(1)
            advantage = self._data_value(batch) - state_value
            weight = advantage_weight(advantage, config.inverse_temperature, config.max_weight)
        log_prob, _ = self._policy.log_prob_entropy(policy(batch.observation), batch.action)
        loss = -(weight * log_prob).mean()
        return loss, torch.stack((loss.detach(), weight.mean()))

    def _data_value(self, batch: Transitions) -> Tensor:
        """Return the smaller of the target critics' values for the actions of a minibatch. [batch]"""
        values = self.target.forward_network(batch.observation, batch.action)
        return select_q(values, batch.action).amin(0)

    def metrics(self) -> dict[str, float]:
        """Return averages over about 100 updates, and coefficients at the current frame."""
        weight_norm = {"weight_norm_value": self.value.weight_norm}
        return joined(self, super().metrics(), self.averages("value"), weight_norm)

    def modules(self) -> dict[str, nn.Module]:
        """Return the networks that learn, and the target critics."""
        return {**super().modules(), "value": self.value.network}


class BoxPolicy(RescaledGaussian):
    """A Gaussian over a box scaled to [-1, 1], with a limited standard deviation.

    Its mean is the tanh of a parameter. Actions in the data may lie at the bounds, where a squashed Gaussian
    has no density.
    """

    LOG_STD_RANGE = (-5.0, 2.0)

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__(space)
        self.stored = self._box.stored

    def random(self, count: int, generator: np.random.Generator) -> NDArray:
        """Draw uniform actions in [-1, 1]. [count, size]"""
        return self._box.random(count, generator)

    def sample_or_mode(self, parameters: Array, noise: Array | None = None) -> Array:
        """Return the means, or draw actions if there is noise. [n, size]"""
        return super().sample_or_mode(self._limited(parameters), noise).clip(-1, 1).reshape(-1, self._size)

    def log_prob_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-density of actions before clipping, and the entropy. [batch] each"""
        return super().log_prob_entropy(self._limited(parameters), action)

    def _limited(self, parameters: Array) -> Array:
        """Return means in (-1, 1) and log standard deviations within their range. [n, 2 size]"""
        mean, log_std = torch.as_tensor(parameters).chunk(2, dim=1)
        limited = torch.cat((mean.tanh(), log_std.clamp(*self.LOG_STD_RANGE)), dim=1)
        return limited if isinstance(parameters, Tensor) else limited.numpy()


def actions_of(space: gym.Space[Any]) -> BoxPolicy | CategoricalPolicy:
    """Return the policy for a Discrete space or a bounded Box."""
    if isinstance(space, gym.spaces.Discrete):
        return CategoricalPolicy(space)
    assert isinstance(space, gym.spaces.Box)
    return BoxPolicy(space)
