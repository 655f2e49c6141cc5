"""REINFORCE (Williams, 1992, doi:10.1007/BF00992696): the gradient of the return, from whole episodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from labrl.agents.batch import Batch, normalized
from labrl.agents.learns_once import LearnsOnce
from labrl.agents.on_policy import OnPolicyConfig
from labrl.clock import Clock
from labrl.config.types import NonNegativeFloat, PositiveInt
from labrl.errors import InputError
from labrl.memory.episodes import Episodes
from labrl.networks.compute import Compute
from labrl.networks.spaces import Spaces
from labrl.seeding import Streams


@dataclass(kw_only=True)
class ReinforceConfig(OnPolicyConfig):
    """Options of REINFORCE."""

    episodes: PositiveInt
    """Whole episodes in one update, over all environments, >= 1."""
    baseline: Literal["none", "mean", "value"]
    """What is subtracted from the returns: nothing, their mean over the update, or a learned value."""
    value_coef: NonNegativeFloat | None
    """Weight of half the squared error of the values, >= 0, with baseline=value; null with any other."""
    normalize_advantage: bool
    """Whether returns minus the baseline are scaled to mean 0 and deviation 1 in each update."""


class Reinforce(LearnsOnce):
    """One step along the mean of (G_t - b) grad log pi(a_t|s_t) over some whole episodes.

    G_t is the discounted sum of rewards from step t to the end of its episode (Sutton & Barto, 2018, section
    13.4, without the factor gamma^t, as is usual). An episode that a time limit cut goes on, for all that is
    known: a value baseline stands for the rest of its return, and without one that rest is missing. With
    several environments an episode may be under way at an update; it counts at the next one, as if all of it
    had been played by the policy of that time. With env.num_envs=1 and agent.episodes=1 it is the textbook's.
    """

    Config = ReinforceConfig
    NAME = "REINFORCE"
    STATISTICS = ("loss_policy", "loss_value", "entropy")
    _config: ReinforceConfig

    def __init__(
        self, config: ReinforceConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        new_rollout, learned = partial(Episodes, config.episodes), config.baseline == "value"
        super().__init__(config, spaces, clock, streams, compute, new_rollout, has_value=learned)

    @classmethod
    def check(cls, config: OnPolicyConfig, spaces: Spaces) -> None:
        """Raises InputError for options that have no meaning in the environment's spaces, or together."""
        super().check(config, spaces)
        assert isinstance(config, ReinforceConfig)
        for name in ("value_head", "shared"):
            if getattr(config.network, name) and config.baseline != "value":
                raise InputError(
                    f"agent.network.{name} is for learned values, and agent.baseline={config.baseline} "
                    "learns none. Set agent.baseline=value agent.value_coef=0.5.",
                    code="contradiction",
                    key=f"agent.network.{name}",
                )
        if (config.value_coef is None) == (config.baseline == "value"):
            given = "null" if config.value_coef is None else f"{config.value_coef:g}"
            raise InputError(
                "agent.value_coef is the weight of learned values: a number with agent.baseline=value, and "
                f"null with any other baseline. Got agent.value_coef={given} and "
                f"agent.baseline={config.baseline}. Set agent.baseline=value agent.value_coef=0.5, or "
                "agent.baseline=mean agent.value_coef=null.",
                code="contradiction",
                key="agent.value_coef",
            )
        if config.self_imitation is not None and config.baseline != "value":
            raise InputError(
                "agent.self_imitation compares returns with learned values, and agent.baseline="
                f"{config.baseline} learns none. Set agent.baseline=value agent.value_coef=0.5, or "
                "agent/self_imitation=none.",
                code="contradiction",
                key="agent.self_imitation",
            )

    def _update(self, batch: Batch) -> int:
        """One update on all steps of the episodes."""
        advantage = batch.columns[:, 0]
        if self._config.baseline == "mean":
            advantage -= advantage.mean()
        if self._config.normalize_advantage:
            advantage.copy_(normalized(advantage))
        return self._step_along(batch, self._loss)

    def _loss(
        self, parameters: Tensor, value: Tensor, action: Tensor, columns: Tensor, entropy_coef: float
    ) -> tuple[Tensor, Tensor]:
        """-(G - b) log pi(a|s), less the entropy bonus, and the mean statistics named in STATISTICS."""
        log_prob, entropies = self._distribution.log_prob_entropy(parameters, action)
        policy = -(columns[:, 0] * log_prob).mean()
        value_error = 0.5 * (columns[:, 1] - value).square().mean()
        entropy = entropies.mean()
        loss = policy
        if self._config.value_coef is not None:
            loss = loss + self._config.value_coef * value_error
        if entropy_coef:  # a term of weight zero would still be differentiated
            loss = loss - entropy_coef * entropy
        return loss, torch.stack([policy, value_error, entropy]).detach()
