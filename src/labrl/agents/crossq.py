"""CrossQ (Bhatt et al., 2024, arXiv:1902.05605): SAC with batch renormalization and without target networks.

The critics look at (s, a) and (s', a') in one forward pass, so that the statistics of their normalization
are those of both: what the next actions do to the values needs no delayed twin to be steady.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Never

import torch
from torch import Tensor

from labrl.agents.replay_actor_critic import Batch, ReplayActorCriticConfig
from labrl.agents.sac import SAC, SoftActorCriticConfig, critic_loss
from labrl.agents.target_network import Delayed
from labrl.agents.value_learning import td_target
from labrl.clock import Clock
from labrl.config.types import PositiveInt
from labrl.errors import InputError
from labrl.networks.compute import Compute
from labrl.networks.critics import Critics
from labrl.networks.spaces import Spaces
from labrl.seeding import Streams


@dataclass(kw_only=True)
class CrossQConfig(SoftActorCriticConfig):
    """Options of CrossQ."""

    policy_delay: PositiveInt
    """Updates of the critics for each of policy and temperature, >= 1."""


class CrossQ(SAC):
    """SAC whose critics are their own targets."""

    Config = CrossQConfig
    NAME = "crossq"
    HALVES = False

    def __init__(
        self, config: CrossQConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        super().__init__(config, spaces, clock, streams, compute)
        self._policy_delay = config.policy_delay
        self._policy.network.eval()
        self._judges.eval()  # a policy learns by values that do not depend on the minibatch

    @classmethod
    def check(cls, config: SoftActorCriticConfig, spaces: Spaces) -> None:
        """Raises InputError for spaces, entropies and minibatches that do not fit."""
        super().check(config, spaces)
        if config.batch_size < 2:
            raise InputError(
                f"agent.batch_size must be at least 2, got {config.batch_size}: CrossQ normalizes by the "
                "mean and variance of a minibatch. Set agent.batch_size=256.",
                code="range",
                key="agent.batch_size",
            )

    @classmethod
    def share(cls, config: ReplayActorCriticConfig, ranks: int) -> Never:
        """Raises InputError: CrossQ cannot be trained by several ranks."""
        raise InputError(
            "agent=crossq cannot learn with torchrun: CrossQ normalizes by the statistics of a whole "
            "minibatch, and each rank would have its own. Set agent=sac, or start labrl without torchrun.",
            code="unsupported",
            key="agent",
        )

    def _make_twins(self, config: Any) -> dict[str, Delayed[Any]]:
        return {}

    def _policy_is_due(self, update: int) -> bool:
        return update % self._policy_delay == 0

    def _critic_gradient(self, batch: Batch, noise: Tensor, temperature: float) -> Tensor:
        """Gradient of the critics' loss, eq. 2 with both halves in one pass."""
        soft, policy = self._soft, self._policy.network
        with torch.no_grad(), self._compute.autocast():
            choice, entropy = soft.choose(policy.forward(batch.next_observation), noise)
        both = torch.cat([batch.observation, batch.next_observation])
        actions = soft.joined(batch.action, choice)

        def loss(critics: Critics, share: slice) -> tuple[Tensor, Tensor]:
            with self._compute.autocast():
                values, following = critics.forward(both, actions).chunk(2, dim=1)
            values = soft.taken(values, batch.action)
            with torch.no_grad():
                value = torch.add(soft.smaller(following, choice), entropy, alpha=temperature)
                target = td_target(value, batch.reward, batch.discount)
            mean = critic_loss(values, target, batch.weight)
            return mean, self._critic_statistics(share, mean.detach(), values, target)

        return self._critics.backward(loss, len(batch.reward))

    def _policy_gradient(self, batch: Batch, noise: Tensor, temperature: float) -> Tensor:
        """As SAC's, the policy normalized by the minibatch."""
        self._policy.network.train()
        try:
            return super()._policy_gradient(batch, noise, temperature)
        finally:
            self._policy.network.eval()
