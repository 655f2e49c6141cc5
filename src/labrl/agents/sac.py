"""Soft actor-critic with automatic temperature (Haarnoja et al., 2018, arXiv:1812.05905).

Over continuous actions the policy is a squashed Gaussian, over discrete ones every expectation is exact
(Christodoulou, 2019, arXiv:1910.07207). With n_step > 1 the entropy of the states between is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.agents.replay_actor_critic import Batch, ReplayActorCritic, ReplayActorCriticConfig
from labrl.agents.soft_policy import SoftPolicy, Temperature, soft_policy
from labrl.agents.target_network import Delayed
from labrl.agents.value_learning import td_target
from labrl.clock import Clock
from labrl.config.component import Component
from labrl.config.types import NonNegativeSchedule, PositiveFloat, Schedule
from labrl.errors import InputError
from labrl.networks.compute import Compute
from labrl.networks.critics import Critics, PolicyNetwork
from labrl.networks.spaces import Spaces
from labrl.schedules import largest, smallest, value_at
from labrl.seeding import Streams


@dataclass(kw_only=True)
class SoftActorCriticConfig(ReplayActorCriticConfig):
    """Options of agents that maximize entropy beside reward."""

    temperature: NonNegativeSchedule | None
    """Weight of the entropy, alpha, >= 0; null: learned, so that the policy's entropy approaches
    `target_entropy`."""
    initial_temperature: PositiveFloat
    """Initial value of a learned temperature, > 0."""
    target_entropy: Schedule | None
    """Entropy that a learned temperature aims at, in nats; continuous actions count as scaled to (-1, 1);
    null: minus the number of continuous actions, or 0.6 times the largest entropy of discrete ones."""


@dataclass(kw_only=True)
class SACConfig(SoftActorCriticConfig):
    """Options of SAC."""

    target: Component
    """How the target critics follow the online critics."""


def critic_loss(value: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Half the mean squared error, eq. 5, summed over the critics.

    value: [critics, batch]; target: [batch]; weight: importance weights, [batch].
    """
    return 0.5 * ((value - target).square().sum(0) * weight).mean()


def policy_loss(value: Tensor, entropy: Tensor, temperature: float) -> Tensor:
    """Mean of alpha log pi - Q, eq. 7.

    value: the smaller critic's mean over the policy, [batch]; entropy: of the policy, [batch].
    """
    return -torch.add(value, entropy, alpha=temperature).mean()


class SAC(ReplayActorCritic):
    """Two critics, their delayed twins, and a policy that is as random as it may."""

    Config: type[SoftActorCriticConfig] = SACConfig
    NAME = "sac"
    POLICY_STATISTICS = ("loss_policy", "entropy", "grad_norm_policy")

    def __init__(
        self, config: SoftActorCriticConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        self._soft: SoftPolicy = soft_policy(spaces.action)
        super().__init__(config, spaces, clock, streams, compute, self._soft)
        self._fixed_temperature = config.temperature
        self._temperature = Temperature(config.initial_temperature, compute.device)
        self._target_entropy: Schedule = self._soft.usual_entropy
        if config.target_entropy is not None:
            self._target_entropy = config.target_entropy
        self._twins = self._make_twins(config)

    @classmethod
    def check(cls, config: SoftActorCriticConfig, spaces: Spaces) -> None:
        """Raises InputError for spaces and entropies that do not fit."""
        cls.check_spaces(cls.NAME, config, spaces)
        if config.target_entropy is None:
            return
        if config.temperature is not None:
            raise InputError(
                "agent.target_entropy is the target of a learned temperature, and agent.temperature is "
                "fixed. Set agent.temperature=null or agent.target_entropy=null.",
                code="contradiction",
                key="agent.target_entropy",
            )
        soft = soft_policy(spaces.action)
        continuous = soft.usual_entropy < 0
        low, high = smallest(config.target_entropy), largest(config.target_entropy)
        if continuous and high > 0:
            raise InputError(
                f"agent.target_entropy must be at most 0 for continuous actions, got {high:g}: it "
                f"is the entropy of actions in (-1, 1), and uniform actions have {soft.largest_entropy:.3g}. "
                f"Set agent.target_entropy=null, which means {soft.usual_entropy:g} here.",
                code="range",
                key="agent.target_entropy",
            )
        # Of a single action the usual one is the largest, and the only one there is.
        reached = high < soft.largest_entropy or high == soft.usual_entropy
        if not continuous and not (low >= 0 and reached):
            raise InputError(
                f"agent.target_entropy must be at least 0 and less than {soft.largest_entropy:.3g}, the "
                f"entropy of {soft.num_outputs} equally likely actions, got {low if low < 0 else high:g}. "
                f"Set agent.target_entropy=null, which means {soft.usual_entropy:.3g} here.",
                code="range",
                key="agent.target_entropy",
            )

    def _make_twins(self, config: Any) -> dict[str, Delayed[Any]]:
        return {"target": Delayed(self._critics, config.target.build())}

    @property
    def _delayed(self) -> Mapping[str, Delayed[Any]]:
        return self._twins

    def _explore(self, outputs: NDArray) -> NDArray:
        return self._soft.explore(outputs, self._policy_stream)

    @property
    def temperature(self) -> float:
        """alpha, now."""
        if self._fixed_temperature is not None:
            return value_at(self._fixed_temperature, self._clock.frame)
        return self._temperature.value

    def _learn_from(self, batch: Batch, update: int) -> None:
        temperature = self.temperature
        noise = self._soft.noise(2, len(batch.reward), self._noise_stream)
        statistics = self._critic_gradient(batch, noise[0], temperature)
        self._step(self._critics, self._critic_averages, statistics, self._critic_lr)
        if self._policy_is_due(update):
            statistics = self._policy_gradient(batch, noise[1], temperature)
            self._step(self._policy, self._policy_averages, statistics, self._lr)
            if self._fixed_temperature is None:
                frame = self._clock.frame
                target = value_at(self._target_entropy, frame)
                self._temperature.update(statistics[1], target, value_at(self._lr, frame))
        for twin in self._twins.values():
            twin.updated()

    def _policy_is_due(self, update: int) -> bool:
        return True

    def _critic_gradient(self, batch: Batch, noise: Tensor, temperature: float) -> Tensor:
        """Gradient of the critics' loss. Returns CRITIC_STATISTICS but for the norm."""
        soft, policy, delayed = self._soft, self._policy.network, self._twins["target"].network

        def loss(critics: Critics, share: slice) -> tuple[Tensor, Tensor]:
            with self._compute.autocast():
                with torch.no_grad():
                    following = batch.next_observation[share]
                    choice, entropy = soft.choose(policy.forward(following), noise[share])
                    value = soft.smaller(delayed.forward(following, choice), choice)
                    value = torch.add(value, entropy, alpha=temperature)
                    target = td_target(value, batch.reward[share], batch.discount[share])
                action = batch.action[share]
                values = soft.taken(critics.forward(batch.observation[share], action), action)
            mean = critic_loss(values, target, batch.weight[share])
            return mean, self._critic_statistics(share, mean.detach(), values, target)

        return self._critics.backward(loss, len(batch.reward))

    def _policy_gradient(self, batch: Batch, noise: Tensor, temperature: float) -> Tensor:
        """Gradient of the policy's loss. Returns POLICY_STATISTICS but for the norm."""
        soft = self._soft

        def loss(policy: PolicyNetwork, share: slice) -> tuple[Tensor, Tensor]:
            with self._compute.autocast():
                observation = batch.observation[share]
                choice, entropy = soft.choose(policy.forward(observation), noise[share])
                values = self._judges.forward(observation, choice)
            mean = policy_loss(soft.smaller(values, choice), entropy, temperature)
            return mean, torch.stack((mean.detach(), entropy.detach().mean()))

        return self._policy.backward(loss, len(batch.reward))

    def metrics(self) -> dict[str, float]:
        """Averages over some 100 updates; coefficients at this frame."""
        target = math.nan
        if self._fixed_temperature is None:
            target = value_at(self._target_entropy, self._clock.frame)
        return {**super().metrics(), "temperature": self.temperature, "target_entropy": target}

    def state_dict(self) -> dict[str, Any]:
        """What every such agent remembers, and the temperature."""
        return {**super().state_dict(), "temperature": self._temperature.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state."""
        super().load_state_dict(state)
        self._temperature.load_state_dict(state["temperature"])
