"""Soft actor-critic with automatic temperature (Haarnoja et al., 2018, arXiv:1812.05905).

For continuous actions, the policy is a squashed Gaussian; for discrete actions, all expectations are exact
(Christodoulou, 2019, arXiv:1910.07207). With n_step > 1, the entropy of intermediate states is omitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.agents.agent import joined
from labrl.agents.parts.targets import TargetNetwork
from labrl.agents.replay_agent import ReplayActorCriticConfig, ReplayAgent, critic_rows, select_q
from labrl.clock import Clock
from labrl.component import Component
from labrl.learning.compute import Compute
from labrl.learning.learner import Learner
from labrl.memory import Transitions
from labrl.networks.actions import Actions, BoxActions, mask_logits, standard_normal
from labrl.networks.critics import Critics, PolicyNetwork
from labrl.networks.distributions import HALF_LOG_2_PI, Categorical, log_tanh_slope
from labrl.networks.layers import Array, StateDependentConfig, add_weighted, library_of
from labrl.schedules import value_at
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.types import NonNegativeSchedule, PositiveFloat, Schedule


@dataclass(kw_only=True)
class SoftActorCriticConfig(ReplayActorCriticConfig):
    """Options of agents that maximize entropy in addition to reward."""

    temperature: NonNegativeSchedule | None
    """Weight of the entropy, alpha, >= 0; null: learned, so that the policy's entropy approaches
    `target_entropy`."""
    initial_temperature: PositiveFloat
    """Initial value of a learned temperature, > 0."""
    target_entropy: Schedule | None
    """Target of the policy's entropy for a learned temperature, in nats. If actions are continuous, their
    entropy is that of actions scaled to (-1, 1). null: minus the number of components of a continuous action,
    or 0.6 times the largest entropy of a discrete action. With action masks, the largest entropy is the mean
    over the states of a minibatch."""
    sde: StateDependentConfig | None
    """State-dependent exploration of continuous actions, such as {steps: 8, log_std_init: -3}; null:
    independent noise in each step."""


@dataclass(kw_only=True)
class SACConfig(SoftActorCriticConfig):
    """Options of SAC."""

    target: Component
    """Update rule of the target critics."""


def squared_errors(value: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Compute half the weighted squared error of each row, summed over critics; the mean over rows is eq. 5.

    value: [critics, batch]; target: [batch]; weight: importance weights, [batch]. Returns [batch].
    """
    return 0.5 * ((value - target).square().sum(0) * weight)


def soft_value(value: Tensor, entropy: Tensor, temperature: float | Tensor) -> Tensor:
    """Compute the value of a state including entropy, Q - alpha log pi, eq. 3. [batch] each"""
    return add_weighted(value, entropy, temperature)


LOG_STD_RANGE = (-20.0, 2.0)
"""Bounds of log standard deviations, as in the code of Haarnoja et al. (2018)."""


def squashed_sample(parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the tanh of a Gaussian sample, and its log-density (Haarnoja et al., 2018, eq. 26).

    parameters: means m and log standard deviations log s, of which the latter are clipped to LOG_STD_RANGE,
    [batch, 2 size]; noise: standard normal x, [batch, size]. With u = m + s x and a = tanh(u), log pi(a) =
    log N(u) - sum log(1 - a^2). Returns a, [batch, size], and log pi(a), [batch].
    """
    mean, log_std = parameters.chunk(2, dim=1)
    limited = log_std.clamp(*LOG_STD_RANGE)
    u = mean + limited.exp() * noise
    normal = -0.5 * noise.square() - limited
    return u.tanh(), (normal - log_tanh_slope(u)).sum(1) - HALF_LOG_2_PI * mean.shape[1]


class SAC(ReplayAgent):
    """Two critics, their target networks, and a policy whose randomness depends on the temperature."""

    Config: type[SoftActorCriticConfig] = SACConfig
    NAME = "sac"
    TRAITS = replace(ReplayAgent.TRAITS, graphs=True, wide=True, masks=True)
    POLICY_STATISTICS = ("loss_policy", "entropy")

    def __init__(
        self,
        config: SoftActorCriticConfig,
        spaces: Spaces,
        clock: Clock,
        streams: Streams,
        compute: Compute,
        *,
        num_critics: int = 2,
        critic_outputs: int = 1,
    ) -> None:
        """critic_outputs: number of outputs of a critic for a continuous action."""
        self.soft = soft = soft_policy(spaces.action)
        """How actions and their entropy follow from the outputs of the policy network."""
        # The entropy that the policy can reach depends on how many actions are valid in a state.
        self._relative = spaces.masked and config.temperature is None and config.target_entropy is None
        super().__init__(
            config,
            spaces,
            clock,
            streams,
            compute,
            actions=soft,
            num_critics=num_critics,
            critic_outputs=critic_outputs,
            sde=config.sde,
        )
        if self._relative:
            policy, lr, (loss, entropy, *own) = self.follows["policy"]
            self.follows["policy"] = policy, lr, (loss, entropy, "entropy_largest", *own)
        self._temperature = Temperature(config, soft.usual_entropy, clock, self.critics)
        self.alpha = self._temperature.prepare()
        """Weight of the entropy in this update."""
        if isinstance(config, SACConfig):
            self.target: TargetNetwork[Any] = config.target.build(learner=self.critics)
            self.targets = {"target": self.target}
        self._noise_stream = streams.torch("noise", compute.device)

    def update(self, batch: Transitions) -> Tensor:
        """Make one update (algorithm 1). Returns the error of each row of the minibatch. [batch]"""
        self.alpha = self._temperature.prepare()
        following, here = self.noisy(batch)
        rows = self.descend("critics", self.critic_loss, following)
        self.descend("policy", self.policy_loss, here, after=self._learn_temperature)
        self.target.updated()
        return rows[1]

    def _learn_temperature(self, statistics: Tensor) -> None:
        target = CategoricalPolicy.USUAL * statistics[2] if self._relative else None
        self._temperature.update(statistics[1], target)

    def noisy(self, batch: Transitions) -> tuple[Transitions, Transitions]:
        """Return the minibatch twice, with separate noise for the critics' loss and for the policy's loss."""
        shape, stream = (2, batch.reward.shape[0], self.soft.noise_size), self._noise_stream
        noise = torch.randn(shape, generator=stream, device=batch.reward.device)
        return batch.with_noise(noise[0]), batch.with_noise(noise[1])

    def critic_loss(self, critics: Critics, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Compute the squared error of r + gamma^n (min_i Q_i'(s', a') - alpha log pi(a'|s')), eq. 5.

        Returns a scalar to be minimized, and CRITIC_STATISTICS of each row, [3, batch].
        """
        soft, policy = self.soft, self.policy_network
        with torch.no_grad():
            parameters = mask_logits(policy(batch.next_observation), batch.next_mask)
            choice, entropy = soft.choose(parameters, batch.noise)
            value = soft.min_q(self.target.forward_network(batch.next_observation, choice), choice)
            value = soft_value(value, entropy, self.alpha)
            target = torch.addcmul(batch.reward, batch.discount, value)
        values = select_q(critics(batch.observation, batch.action), batch.action)
        losses = squared_errors(values, target, batch.weight)
        return losses.mean(), critic_rows(losses, values, target)

    def policy_loss(self, policy: PolicyNetwork, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Compute the mean of alpha log pi(a|s) - min_i Q_i(s, a), eq. 7.

        Returns a scalar to be minimized, and the means of the policy's statistics, [2 or 3].
        """
        parameters = mask_logits(policy(batch.observation), batch.mask)
        choice, entropy = self.soft.choose(parameters, batch.noise)
        value = self.soft.min_q(self.frozen_critics(batch.observation, choice), choice)
        loss = -soft_value(value, entropy, self.alpha).mean()
        means = [loss.detach(), entropy.detach().mean()]
        if self._relative:
            means.append(batch.mask.sum(1, dtype=torch.float32).log().mean())
        return loss, torch.stack(means)

    def metrics(self) -> dict[str, float]:
        """Return averages over about 100 updates, and coefficients at the current frame."""
        return joined(self, super().metrics(), self._temperature.metrics())

    def parts(self) -> dict[str, Any]:
        """Return learners, replay buffer and temperature."""
        return {**super().parts(), "temperature": self._temperature}


class SquashedGaussianPolicy(BoxActions, Actions):
    """Policy over a box: the tanh of a Gaussian whose mean and standard deviation depend on the state.

    In each state, it chooses by sampling an action.
    """

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__(space)
        self.noise_size, self.num_parameters = self.size, 2 * self.size
        self.usual_entropy = -float(self.size)  # Haarnoja et al., 2018, appendix D
        self.entropy_limits = -math.inf, 0.0  # of actions scaled to (-1, 1)

    def noise(self, parameters: Array, generator: np.random.Generator | None = None) -> Array:
        """Draw standard normal noise. [n, size]"""
        return standard_normal(parameters[:, : self.size], generator)

    def sample_or_mode(self, parameters: Array, noise: Array | None = None) -> Array:
        """Return the tanh of the means, or of the means plus scaled noise. [n, size]"""
        u, library = parameters[:, : self.size], library_of(parameters)
        if noise is not None:
            u = u + library.exp(parameters[:, self.size :].clip(*LOG_STD_RANGE)) * noise
        return library.tanh(u)

    def choose(self, parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Draw one action for each state. Return the actions, [batch, size], and their -log pi, [batch]."""
        action, log_prob = squashed_sample(parameters, noise)
        return action, -log_prob

    def min_q(self, values: Tensor, choice: Tensor) -> Tensor:
        """Return the smallest of the critics' values for the chosen actions. [critics, batch] -> [batch]"""
        return values.amin(0)

    def joined(self, action: Tensor, choice: Tensor) -> Tensor:
        """Return the stored actions followed by the chosen ones, as inputs of the critics. [2 batch, size]"""
        return torch.cat([action, choice])


class CategoricalPolicy(Categorical):
    """Policy over discrete actions. Its choice in a state consists of the probabilities of all actions."""

    noise_size = 0
    USUAL = 0.6
    """Default target, as a share of the largest entropy; the paper's 0.98 makes the policy almost uniform."""

    def __init__(self, space: gym.spaces.Discrete) -> None:
        super().__init__(space)
        self.stored = gym.spaces.Discrete(self.num_parameters)
        self.entropy_limits = 0.0, math.log(self.num_parameters)
        self.usual_entropy = self.USUAL * self.entropy_limits[1]

    def random(self, count: int, generator: np.random.Generator) -> NDArray:
        """Draw uniform actions. [count]"""
        return generator.integers(self.num_parameters, size=count)

    def choose(self, parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities, [batch, actions], and the entropy, [batch]."""
        log_probability = torch.log_softmax(parameters, dim=1)
        probability = log_probability.exp()
        return probability, -(probability * log_probability).sum(1)

    def min_q(self, values: Tensor, choice: Tensor) -> Tensor:
        """Return the policy's mean of the critics' smallest values. [critics, batch, actions] -> [batch]"""
        return (values.amin(0) * choice).sum(1)

    def joined(self, action: Tensor, choice: Tensor) -> Tensor:
        """Return the actions, which critics of discrete actions ignore. [batch]"""
        return action


def soft_policy(space: gym.Space[Any]) -> SquashedGaussianPolicy | CategoricalPolicy:
    """Return the policy for a Discrete space or a bounded Box."""
    if isinstance(space, gym.spaces.Discrete):
        return CategoricalPolicy(space)
    assert isinstance(space, gym.spaces.Box)
    return SquashedGaussianPolicy(space)


class Temperature:
    """The weight of the entropy, alpha: scheduled, or learned so that the policy's entropy reaches a target.

    Adam minimizes over log alpha with the slope E[entropy] - target. This is the slope of eq. 18 without the
    factor alpha, as in the authors' code. The state consists of plain floats, which are faster than arrays
    for a single number; if the learner does not wait for its GPU, the state is one vector on the GPU.
    """

    DECAY, SQUARE_DECAY, EPS = 0.9, 0.999, 1e-8

    def __init__(
        self, config: SoftActorCriticConfig, usual_entropy: float, clock: Clock, learner: Learner[Any]
    ) -> None:
        """usual_entropy: target if the options specify none; learner: learner whose losses read alpha."""
        self._fixed, self._lr, self.clock, self._learner = config.temperature, config.lr, clock, learner
        self.target: Schedule = usual_entropy if config.target_entropy is None else config.target_entropy
        self._numbers: Any = [math.log(config.initial_temperature), 0.0, 0.0, 0.0]
        """log alpha, the mean of its slopes, the mean of their squares, and the number of updates."""
        if not learner.waits:
            self._numbers = torch.tensor(self._numbers, dtype=torch.float64, device=learner.device)

    @property
    def value(self) -> float:
        """Alpha at the current frame."""
        if self._fixed is not None:
            return value_at(self._fixed, self.clock.frame)
        return math.exp(self._numbers[0])

    def prepare(self) -> float | Tensor:
        """Return alpha for the losses of the next update."""
        frame, learner = self.clock.frame, self._learner
        self._now = learner.scalar("target_entropy", value_at(self.target, frame))
        self._rate = learner.scalar("temperature_lr", value_at(self._lr, frame))
        on_device = self._fixed is None and not learner.waits
        return learner.scalar("temperature", self._numbers[0].exp() if on_device else self.value)

    def update(self, entropy: Tensor, target: Tensor | None = None) -> None:
        """Make one step of Adam unless alpha is fixed.

        entropy: mean entropy of the policy, a scalar; target: target entropy; None: the target in the
        options.
        """
        if self._fixed is not None:
            return
        on_device = isinstance(self._numbers, Tensor)
        log, mean, square, updates = self._numbers.unbind() if on_device else self._numbers
        wanted = self._now if target is None else target if on_device else float(target)
        slope: Any = (entropy.double() if on_device else float(entropy)) - wanted
        updates = updates + 1
        mean = mean + (1 - self.DECAY) * (slope - mean)
        square = square + (1 - self.SQUARE_DECAY) * (slope * slope - square)
        unbiased, spread = mean / (1 - self.DECAY**updates), square / (1 - self.SQUARE_DECAY**updates)
        root = spread.sqrt() if on_device else math.sqrt(spread)
        log = log - self._rate * unbiased / (root + self.EPS)
        if on_device:
            self._numbers.copy_(torch.stack((log, mean, square, updates)))
        else:
            self._numbers = [log, mean, square, updates]

    def metrics(self) -> dict[str, float]:
        """Return alpha and the target entropy."""
        learned = self._fixed is None
        target = value_at(self.target, self.clock.frame) if learned else math.nan
        return {"temperature": self.value, "target_entropy": target}

    def state_dict(self) -> dict[str, Any]:
        """Return log alpha and the state of its optimizer."""
        numbers = torch.as_tensor(self._numbers, dtype=torch.float64, device="cpu")
        log, mean, square, updates = numbers.split(1)
        return {
            "log": log,
            "optimizer": {"means": [mean], "squares": [square], "updates": [updates.long()[0]]},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        moments = state["optimizer"]
        saved = (state["log"], moments["means"][0], moments["squares"][0], moments["updates"][0])
        numbers = [float(each) for each in saved]
        if isinstance(self._numbers, Tensor):
            self._numbers.copy_(torch.tensor(numbers, dtype=torch.float64))
        else:
            self._numbers = numbers
