"""Proximal policy optimization (Schulman et al., 2017, arXiv:1707.06347)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from labrl.agents.agent import divide_option, joined
from labrl.agents.policy_agent import PolicyAgent, PolicyConfig
from labrl.memory import Minibatch
from labrl.memory.rollout import Rollout
from labrl.networks.building import traits_of
from labrl.networks.layers import add_weighted
from labrl.schedules import AdaptiveRate, value_at
from labrl.spaces import Spaces
from labrl.types import (
    AdaptiveSchedule,
    NonNegativeFloat,
    NonNegativeSchedule,
    PositiveFloat,
    PositiveInt,
    Probability,
    ProbabilitySchedule,
)

if TYPE_CHECKING:
    from labrl.clock import Clock
    from labrl.learning.compute import Compute
    from labrl.seeding import Streams


@dataclass(kw_only=True)
class PPOConfig(PolicyConfig):
    """Options of PPO; `entropy_coef` is c2 in eq. 9."""

    lr: AdaptiveSchedule  # type: ignore[assignment]  # wider than in other agents
    """Learning rate, >= 0: a number, a schedule, or `kind: kl`, which adapts the rate after each epoch to the
    mean divergence of the new policy from the old one. On a GPU, adapting the rate makes the CPU wait for the
    end of each epoch."""
    horizon: PositiveInt
    """Number of agent steps that each environment contributes to one rollout, >= 1."""
    epochs: PositiveInt
    """Number of passes over each rollout, >= 1."""
    batch_size: PositiveInt
    """Number of steps in a minibatch, >= 1; must divide horizon * env.num_envs."""
    sequence_length: PositiveInt | None
    """Number of consecutive steps of one environment through which a recurrent network propagates gradients,
    >= 1; must divide horizon and batch_size; null: the entire horizon. It must be null for networks that are
    not recurrent."""
    gae_lambda: Probability
    """Decay of the advantage estimator, lambda, in [0, 1]."""
    clip_range: ProbabilitySchedule
    """Distance from 1 at which the probability ratio is clipped, epsilon in eq. 7, in [0, 1]."""
    value_clip_range: NonNegativeSchedule | None
    """Distance from the old value at which a new value is clipped in the loss, >= 0; null: no clipping."""
    value_coef: NonNegativeFloat
    """Weight of the value loss, c1 in eq. 9, >= 0."""
    normalize_advantage: bool
    """Whether advantages are scaled to mean 0 and standard deviation 1 in each minibatch."""
    target_kl: PositiveFloat | None
    """Limit for early stopping, > 0, in nats: the remaining epochs are skipped once the mean KL divergence of
    the new policy from the old one exceeds 1.5 times this number; null: all epochs are made."""


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: Any) -> Tensor:
    """Compute the pessimistic objective of the policy, eq. 7: the mean of min(r A, clip(r, 1-eps, 1+eps) A).

    ratio, advantage: [batch]; clip: eps, a number or a scalar tensor. Returns a scalar to be maximized.
    """
    return torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: Any) -> Tensor:
    """Compute half the mean squared error of the value, or of the clipped value where that is worse.

    The value is clipped to a range around its old value, as in the first author's code (Engstrom et al.,
    2020, arXiv:2005.12729, section 3).
    value, old_value, target: [batch]; clip: largest change, a number or a scalar tensor, None for no limit.
    Returns a scalar to be minimized.
    """
    if clip is None:
        return 0.5 * (value - target).square().mean()
    clipped = old_value + (value - old_value).clamp(-clip, clip)
    return 0.5 * torch.max((value - target).square(), (clipped - target).square()).mean()


class PPO(PolicyAgent):
    """Collects a rollout with one policy, then makes several epochs of minibatch updates on it.

    With a recurrent network, an epoch visits whole sequences in random order, each from the recurrent state
    with which it was collected. As in the authors' code, this state was computed with the weights that
    collected the rollout. It becomes stale over the epochs, but only slightly, because clipping keeps the new
    policy close to the old one.
    """

    Config = PPOConfig
    NAME = "PPO"
    TRAITS = replace(PolicyAgent.TRAITS, data_parallel=True, graphs=True)
    STATISTICS = ("loss_policy", "loss_value", "entropy", "kl", "clip_fraction")
    """Names of the statistics, which are means over the minibatches of a rollout."""
    config: PPOConfig

    def __init__(
        self, config: PPOConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        super().__init__(config, spaces, clock, streams, compute)
        recurrent = self.network.state_size
        self.rollout = Rollout(
            config.horizon,
            spaces.num_envs,
            sequence_length=(config.sequence_length or config.horizon) if recurrent else 1,
            state_size=recurrent,
        )
        self._minibatch_stream = streams.torch("minibatches")
        self._adapted = config.lr.rate if isinstance(config.lr, AdaptiveRate) else None
        self.value_clip_range: float | Tensor | None = None
        self._std_mean: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
        if config.normalize_advantage and config.batch_size * compute.ranks.size > 1:
            alone = partial(torch.std_mean, dim=1, keepdim=True)
            self._std_mean = alone if compute.ranks.alone else compute.ranks.std_mean

    @classmethod
    def for_rank(cls, config: PPOConfig, ranks: int) -> PPOConfig:
        """Return one rank's share of the options. Raises InputError if they cannot be divided equally."""
        recurrent = traits_of(config.network.torso).recurrent
        length = config.sequence_length or (config.horizon if recurrent else 1)
        return divide_option(config, "batch_size", ranks, sequence_length=length)

    def learn(self) -> int:
        """Make several epochs of minibatch updates if the rollout is full. Returns the number of updates."""
        if self.rollout.t < self.config.horizon:
            return 0
        config, learner, frame, lr = self.config, self.learner, self.clock.frame, self.lr
        batch = self.batch(config.gamma, config.gae_lambda, with_log_prob=True)
        self.clip_range = learner.scalar("clip_range", value_at(config.clip_range, frame))
        if config.value_clip_range is not None:
            self.value_clip_range = learner.scalar("value_clip", value_at(config.value_clip_range, frame))
        self.entropy_coef = learner.scalar("entropy_coef", value_at(config.entropy_coef, frame))
        total, norms, updates = torch.zeros((), device=learner.device), 0.0, 0
        for _ in range(config.epochs):
            epoch, before = torch.zeros_like(total), updates
            order = torch.randperm(len(batch), generator=self._minibatch_stream)
            for minibatch in batch.minibatches(order, config.batch_size, self._std_mean):
                statistics, norm = learner.update(self.loss, minibatch, lr, samples=batch.sequence_length)
                epoch, norms, updates = epoch + statistics, norms + norm, updates + 1
            total = total + epoch
            if config.target_kl is not None or self._adapted is not None:
                kl = float(epoch[self.STATISTICS.index("kl")] / (updates - before))
                if isinstance(config.lr, AdaptiveRate):
                    lr = self._adapted = config.lr.adapted(lr, kl)
                if config.target_kl is not None and kl > 1.5 * config.target_kl:
                    break
        self.record(total / updates, norms / updates)
        self.rollout.clear()
        return updates if self.imitation is None else updates + self.imitation.learn()

    def objective(
        self, minibatch: Minibatch, log_prob: Tensor, entropy: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute -L^CLIP + c1 L^VF - c2 S, the negative of eq. 9."""
        log_ratio = log_prob - minibatch.log_prob
        ratio = log_ratio.exp()
        policy = -clipped_surrogate(ratio, minibatch.advantage, self.clip_range)
        value_error = value_loss(value, minibatch.value, minibatch.value_target, self.value_clip_range)
        mean_entropy = entropy.mean()
        loss = torch.add(policy, value_error, alpha=self.config.value_coef)
        loss = add_weighted(loss, mean_entropy, self.entropy_coef, sign=-1)
        change = ratio.detach() - 1
        # Low-variance estimator of the divergence, http://joschu.net/blog/kl-approx.html (k3).
        kl = (change - log_ratio.detach()).mean()
        clipped = (change.abs() > self.clip_range).float().mean()
        return loss, torch.stack([policy, value_error, mean_entropy, kl, clipped]).detach()

    @property
    def lr(self) -> float:
        """Learning rate at the current frame."""
        lr: Any = self.config.lr  # a schedule unless the rate is adapted
        return value_at(lr, self.clock.frame) if self._adapted is None else self._adapted

    def state_dict(self) -> dict[str, Any]:
        """Return the state, including the adapted learning rate and its initial value."""
        lr = self.config.lr
        adapted = {"lr": [lr.rate, self._adapted]} if isinstance(lr, AdaptiveRate) else {}
        return {**super().state_dict(), **adapted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. A learning rate that was set for this resume replaces the adapted rate."""
        super().load_state_dict(state)
        lr, (start, now) = self.config.lr, state.get("lr", [None, None])
        if isinstance(lr, AdaptiveRate):
            self._adapted = now if lr.rate == start else lr.rate

    def metrics(self) -> dict[str, float]:
        """Return means over the updates of the last rollout, and coefficients at the current frame."""
        clip_range = value_at(self.config.clip_range, self.clock.frame)
        return joined(self, super().metrics(), {"clip_range": clip_range})
