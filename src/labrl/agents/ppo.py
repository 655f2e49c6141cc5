"""Proximal policy optimization (Schulman et al., 2017, arXiv:1707.06347)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labrl.agents.batch import Batch
from labrl.agents.budget import check_budget
from labrl.agents.on_policy import OnPolicyAgent, OnPolicyConfig
from labrl.clock import Clock
from labrl.config.types import NonNegativeFloat, NonNegativeSchedule, PositiveFloat, PositiveInt, Probability
from labrl.errors import InputError
from labrl.memory.rollout import Rollout
from labrl.networks.actor_critic import ActorCritic
from labrl.networks.compute import Compute
from labrl.networks.spaces import Spaces
from labrl.schedules import value_at
from labrl.seeding import Streams


@dataclass(kw_only=True)
class PPOConfig(OnPolicyConfig):
    """Options of PPO; entropy_coef is c2 in eq. 9."""

    horizon: PositiveInt
    """Agent steps that each environment contributes to one rollout, >= 1."""
    epochs: PositiveInt
    """Passes over each rollout, >= 1."""
    batch_size: PositiveInt
    """Steps in a minibatch, >= 1; must divide horizon * env.num_envs."""
    gae_lambda: Probability
    """Decay of the advantage estimator, lambda, in [0, 1]."""
    clip_range: NonNegativeSchedule
    """Range of the probability ratio, epsilon in eq. 7, >= 0."""
    value_clip_range: NonNegativeSchedule | None
    """Largest change of a value in one update, >= 0; null: values are not clipped."""
    value_coef: NonNegativeFloat
    """Weight of the value loss, c1 in eq. 9, >= 0."""
    normalize_advantage: bool
    """Whether advantages are scaled to mean 0 and deviation 1 in each minibatch."""
    target_kl: PositiveFloat | None
    """Divergence of the new policy from the old one, > 0, in nats: no further epoch begins after one whose
    mean is more than 1.5 times this; null: all epochs are made."""


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Pessimistic policy objective, eq. 7: mean of min(r A, clip(r, 1-eps, 1+eps) A).

    ratio, advantage: [batch]. Returns a scalar to be maximized.
    """
    return torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float | None) -> Tensor:
    """Half the mean squared error, of the worse of the value and the value clipped to its old one.

    The clipping follows the first author's code (Engstrom et al., 2020, arXiv:2005.12729, section 3).
    value, old_value, target: [batch]. Returns a scalar to be minimized.
    """
    error = (value - target).square()
    if clip is not None:
        clipped = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.max(error, (clipped - target).square())
    return 0.5 * error.mean()


class Coefficients(NamedTuple):
    """What the schedules say at the frame of an update."""

    clip: float
    value_clip_range: float | None
    entropy: float


class PPO(OnPolicyAgent):
    """Collects a rollout with one policy, then takes several epochs of minibatch updates on it."""

    Config: type[PPOConfig] = PPOConfig
    NAME = "PPO"
    STATISTICS = ("loss_policy", "loss_value", "entropy", "kl", "clip_fraction")
    _config: PPOConfig

    def __init__(
        self, config: PPOConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        super().__init__(config, spaces, clock, streams, compute, partial(Rollout, config.horizon))
        self._gae_lambda = config.gae_lambda
        self._minibatch_stream = streams.torch("minibatches")

    @classmethod
    def check_config(cls, config: PPOConfig, env: Any) -> None:
        """Raises InputError if rollout, minibatch and budget contradict each other."""
        rollout = config.horizon * env.num_envs
        if rollout % config.batch_size:
            small = [d for d in range(1, math.isqrt(rollout) + 1) if rollout % d == 0]
            best = min(small + [rollout // d for d in small], key=lambda n: abs(n - config.batch_size))
            raise InputError(
                f"agent.batch_size must divide the rollout of {rollout} steps (agent.horizon="
                f"{config.horizon} x env.num_envs={env.num_envs}), got {config.batch_size}. The nearest "
                f"value that does is agent.batch_size={best}.",
                code="contradiction",
                key="agent.batch_size",
            )
        check_budget(config.horizon, env)

    def _update(self, batch: Batch) -> int:
        """Epochs of minibatch updates. Returns how many updates were made."""
        config, frame = self._config, self._clock.frame
        coefficients = Coefficients(
            value_at(config.clip_range, frame),
            None if config.value_clip_range is None else value_at(config.value_clip_range, frame),
            value_at(config.entropy_coef, frame),
        )
        lr = value_at(config.lr, frame)
        total, norms, updates = torch.zeros(len(self.STATISTICS), device=self._compute.device), 0.0, 0
        for _ in range(config.epochs):
            epoch, before = torch.zeros_like(total), updates
            for rows, action, columns in self._minibatches(batch):
                epoch += self._gradient(batch, rows, action, columns, coefficients)
                norms += self._trained.step(lr)
                updates += 1
            total += epoch
            kl = epoch[self.STATISTICS.index("kl")] / (updates - before)
            if config.target_kl is not None and float(kl) > 1.5 * config.target_kl:
                break
        self._record(total / updates, norms / updates)
        return updates

    def _minibatches(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """One epoch in random order: rows in the batch, their actions, their columns.

        Advantages are normalized within each minibatch.
        """
        size = self._config.batch_size
        rows = self._order(len(batch.observation)).to(self._compute.device)
        # All minibatches at once: this is cheaper than many small look-ups, and observations are large.
        action, columns = batch.action[rows], batch.columns[rows]
        if self._config.normalize_advantage and size * self._compute.ranks.size > 1:
            advantage = columns[:, 0].view(-1, size)
            std, mean = self._compute.ranks.std_mean(advantage)
            advantage.sub_(mean).div_(std + 1e-8)
        return zip(rows.split(size), action.split(size), columns.split(size), strict=True)

    def _order(self, size: int) -> Tensor:
        """The rows of a batch in random order. [size]"""
        return torch.randperm(size, generator=self._minibatch_stream)

    def _gradient(
        self, batch: Batch, rows: Tensor, action: Tensor, columns: Tensor, coefficients: Coefficients
    ) -> Tensor:
        """Gradient of the loss over the minibatch `rows`, [batch_size]. Returns the mean STATISTICS."""

        def loss(network: ActorCritic, share: slice) -> tuple[Tensor, Tensor]:
            parameters, value = self._evaluate(network, batch, rows[share])
            return self._loss(parameters, value, action[share], columns[share], coefficients)

        return self._backward(loss, len(rows))

    def _loss(
        self, parameters: Tensor, value: Tensor, action: Tensor, columns: Tensor, coefficients: Coefficients
    ) -> tuple[Tensor, Tensor]:
        """Eq. 9 with its sign turned, to be minimized, and the mean statistics named in STATISTICS."""
        advantage, target, old_value, old_log_prob = columns.unbind(1)
        log_prob, entropies = self._distribution.log_prob_entropy(parameters, action)
        log_ratio = log_prob - old_log_prob
        ratio = log_ratio.exp()
        policy = -clipped_surrogate(ratio, advantage, coefficients.clip)
        value_error = value_loss(value, old_value, target, coefficients.value_clip_range)
        entropy = entropies.mean()
        loss = policy + self._config.value_coef * value_error
        if coefficients.entropy:  # a term of weight zero would still be differentiated
            loss = loss - coefficients.entropy * entropy
        with torch.no_grad():
            change = ratio - 1
            # The low-variance estimator of the divergence, http://joschu.net/blog/kl-approx.html (k3).
            kl = (change - log_ratio).mean()
            clipped = (change.abs() > coefficients.clip).float().mean()
            return loss, torch.stack([policy, value_error, entropy, kl, clipped])

    def _coefficients(self, frame: int) -> dict[str, float]:
        return {**super()._coefficients(frame), "clip_range": value_at(self._config.clip_range, frame)}
