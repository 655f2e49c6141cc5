"""Twin delayed deep deterministic policy gradient (Fujimoto et al., 2018, arXiv:1802.09477).

DDPG, and three things against values that are too high: the smaller of two critics in the target, a policy
and targets that are updated more seldom than the critics, and noise on the target's actions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from labrl.agents.ddpg import DDPG
from labrl.agents.deterministic_policy import DeterministicConfig
from labrl.agents.replay_actor_critic import Batch
from labrl.clock import Clock
from labrl.config.types import NonNegativeFloat, PositiveInt
from labrl.networks.compute import Compute
from labrl.networks.spaces import Spaces
from labrl.seeding import Streams


@dataclass(kw_only=True)
class TD3Config(DeterministicConfig):
    """Options of TD3."""

    policy_delay: PositiveInt
    """Updates of the critics for each of the policy and the targets, d in algorithm 1, >= 1."""
    target_noise: NonNegativeFloat
    """Standard deviation of the noise on the target's actions, which are scaled to (-1, 1), >= 0."""
    target_noise_clip: NonNegativeFloat
    """Largest size of that noise, c in algorithm 1, >= 0."""


class TD3(DDPG):
    """Two critics, one policy, and a delayed twin of each."""

    Config = TD3Config
    NAME = "td3"
    NUM_CRITICS = 2

    def __init__(
        self, config: TD3Config, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        super().__init__(config, spaces, clock, streams, compute)
        self._config = config

    def _learn_from(self, batch: Batch, update: int) -> None:
        config = self._config
        noise = torch.randn(batch.action.shape, generator=self._noise_stream, device=batch.action.device)
        noise = noise.mul_(config.target_noise).clamp_(-config.target_noise_clip, config.target_noise_clip)
        statistics = self._critic_gradient(batch, noise)
        self._step(self._critics, self._critic_averages, statistics, self._critic_lr)
        if update % config.policy_delay == 0:
            self._step(self._policy, self._policy_averages, self._policy_gradient(batch), self._lr)
            self._target_critics.updated()
            self._target_policy.updated()
