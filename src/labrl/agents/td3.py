"""Deterministic policy gradients: TD3 and DDPG.

DDPG (Lillicrap et al., 2016, arXiv:1509.02971) learns the values of actions and a policy that maximizes them.
TD3 (Fujimoto et al., 2018, arXiv:1802.09477) counteracts overestimation in three ways: targets use the
smaller value of two critics, the target policy's actions are noisy, and the policy and the target networks
are updated less often than the critics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.agents.agent import joined
from labrl.agents.parts.noise import ActionNoise
from labrl.agents.parts.targets import TargetNetwork
from labrl.agents.replay_agent import ReplayActorCriticConfig, ReplayAgent, critic_rows
from labrl.clock import Clock
from labrl.component import Component
from labrl.learning.compute import Compute
from labrl.memory import Transitions
from labrl.networks.actions import Actions, BoxActions
from labrl.networks.critics import Critics, PolicyNetwork
from labrl.networks.layers import Array, library_of
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.step import Step
from labrl.types import NonNegativeFloat, PositiveInt


@dataclass(kw_only=True)
class DDPGConfig(ReplayActorCriticConfig):
    """Options of DDPG."""

    noise: Component
    """Noise added to actions in training."""
    target: Component
    """Update rule of the target networks of policy and critics."""


@dataclass(kw_only=True)
class TD3Config(DDPGConfig):
    """Options of TD3."""

    policy_delay: PositiveInt
    """Number of critic updates per update of the policy and the target networks, d in algorithm 1, >= 1."""
    target_noise: NonNegativeFloat
    """Standard deviation, >= 0, of the noise that is added to the target policy's actions, in units in which
    actions lie in (-1, 1)."""
    target_noise_clip: NonNegativeFloat
    """Largest absolute value, >= 0, of the noise that is added to the target policy's actions, c in
    algorithm 1."""


def squared_errors(value: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Compute the weighted squared error of each row, summed over critics; the mean over rows is minimized.

    value: [critics, batch]; target: [batch]; weight: importance weights, [batch]. Returns [batch].
    """
    return (value - target).square().sum(0) * weight


class TD3(ReplayAgent):
    """Two critics and one policy, each with a target network.

    The policy is the tanh of a network's outputs, scaled to the bounds of the box.
    """

    Config: type[DDPGConfig] = TD3Config
    NAME = "td3"
    TRAITS = replace(ReplayAgent.TRAITS, actions=(gym.spaces.Box,), stochastic=False, graphs=True, wide=True)
    NUM_CRITICS = 2

    def __init__(
        self, config: DDPGConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        assert isinstance(spaces.action, gym.spaces.Box)
        size = math.prod(spaces.action.shape)
        self._noise: ActionNoise = config.noise.build(num_envs=spaces.num_envs, size=size)
        super().__init__(
            config,
            spaces,
            clock,
            streams,
            compute,
            actions=TanhActions(spaces.action, lambda stream: self._noise.sample(clock.frame, stream)),
            num_critics=self.NUM_CRITICS,
        )
        self.target_policy: TargetNetwork[Any] = config.target.build(learner=self.policy)
        self.target_critics: TargetNetwork[Any] = config.target.build(learner=self.critics)
        self.targets = {"target_policy": self.target_policy, "target_critics": self.target_critics}
        self._noise_stream = streams.torch("noise", compute.device)

    @property
    def delay_and_noise(self) -> tuple[int, float, float]:
        """The options `policy_delay`, `target_noise` and `target_noise_clip`."""
        return self.config.policy_delay, self.config.target_noise, self.config.target_noise_clip

    def observe(self, step: Step) -> None:
        """Store the outcome of the last actions."""
        super().observe(step)
        if step.episode_over.nonzero()[0].size:
            self._noise.begin(step.episode_over)

    def update(self, batch: Transitions) -> Tensor:
        """Make one update (algorithm 1 of TD3). Returns the error of each row of the minibatch. [batch]"""
        delay, scale, clip = self.delay_and_noise
        if scale:
            noise = torch.randn(batch.action.shape, generator=self._noise_stream, device=batch.action.device)
            noise.mul_(scale).clamp_(-clip, clip)
            batch = batch.with_noise(noise)
        rows = self.descend("critics", self.critic_loss, batch)
        if self.experience.updates % delay == 0:
            self.descend("policy", self.policy_loss, batch)
            self.target_critics.updated()
            self.target_policy.updated()
        return rows[1]

    def critic_loss(self, critics: Critics, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Compute the mean squared error with respect to r + gamma^n min_i Q_i'(s', pi'(s') + noise).

        Returns a scalar to be minimized, and CRITIC_STATISTICS of each row, [3, batch].
        """
        with torch.no_grad():
            action = self.target_policy.forward_network(batch.next_observation).tanh_()
            if batch.noise is not None:
                action = action.add_(batch.noise).clamp_(-1, 1)
            value = self.target_critics.forward_network(batch.next_observation, action).amin(0)
            target = torch.addcmul(batch.reward, batch.discount, value)
        values = critics(batch.observation, batch.action)
        losses = squared_errors(values, target, batch.weight)
        return losses.mean(), critic_rows(losses, values, target)

    def policy_loss(self, policy: PolicyNetwork, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Compute the mean of -Q_1(s, pi(s)), whose gradient is eq. 6 of DDPG. Returns a scalar and [1]."""
        action = policy(batch.observation).tanh()
        loss = -self.frozen_critics(batch.observation, action, first=True).mean()
        return loss, loss.detach().unsqueeze(0)

    def metrics(self) -> dict[str, float]:
        """Return averages over about 100 updates, and coefficients at the current frame."""
        return joined(self, super().metrics(), {"exploration": self._noise.strength(self.clock.frame)})

    def parts(self) -> dict[str, Any]:
        """Return learners, replay buffer and noise."""
        return {**super().parts(), "noise": self._noise}


class TanhActions(BoxActions, Actions):
    """Actions from the tanh of a network's outputs, with noise in training.

    Actions are stored in [-1, 1] and scaled to the bounds of a box for the environment.
    """

    def __init__(
        self, space: gym.spaces.Box, noise: Callable[[np.random.Generator], NDArray[np.float32]]
    ) -> None:
        """noise: function that draws the noise of one vector step, [num_envs, size]."""
        super().__init__(space)
        self.num_parameters, self._noise = self.size, noise

    def noise(self, parameters: Array, generator: np.random.Generator | None = None) -> Array | None:
        """Draw the noise of training, [num_envs, size]; None for the tensors of an exported policy."""
        return None if isinstance(parameters, Tensor) or generator is None else self._noise(generator)

    def sample_or_mode(self, parameters: Array, noise: Array | None = None) -> Array:
        """Return the actions, with noise if there is any. [n, size]"""
        action = library_of(parameters).tanh(parameters)
        return action if noise is None else (action + noise).clip(-1, 1)


class DDPG(TD3):
    """TD3 with one critic, without noise on the target policy's actions and without policy delay."""

    Config = DDPGConfig
    NAME = "ddpg"
    NUM_CRITICS = 1
    delay_and_noise = (1, 0.0, 0.0)
