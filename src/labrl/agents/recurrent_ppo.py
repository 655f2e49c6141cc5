"""PPO with a memory: the state of a GRU or LSTM is carried along, and learned from in sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labrl.agents.ppo import PPO, PPOConfig
from labrl.agents.recurrent_policy import RecurrentPolicy
from labrl.config.types import PositiveInt
from labrl.errors import InputError


@dataclass(kw_only=True)
class RecurrentPPOConfig(PPOConfig):
    """Options of recurrent PPO: minibatches are of whole sequences."""

    sequence_length: PositiveInt
    """Consecutive steps of one environment through which gradients are propagated, >= 1; must divide horizon
    and batch_size."""


class RecurrentPPO(RecurrentPolicy, PPO):
    """Each epoch takes the sequences in random order, every one from the state that collecting it began with.

    That state is the one of the weights that collected the rollout, as in the authors' code: it grows stale
    over the epochs, by little, since the clip keeps the policy near.
    """

    Config = RecurrentPPOConfig
    NAME = "Recurrent PPO"
    _config: RecurrentPPOConfig

    @classmethod
    def check_config(cls, config: PPOConfig, env: Any) -> None:
        """Raises InputError if rollout, sequence, minibatch and budget contradict each other."""
        assert isinstance(config, RecurrentPPOConfig)
        length = config.sequence_length
        if config.horizon % length:
            best = nearest([d for d in range(1, config.horizon + 1) if config.horizon % d == 0], length)
            raise InputError(
                f"agent.sequence_length must divide agent.horizon={config.horizon}, got {length}. The "
                f"nearest value that does is agent.sequence_length={best}.",
                code="contradiction",
                key="agent.sequence_length",
            )
        if config.batch_size % length:
            raise InputError(
                f"agent.batch_size counts steps and must be a multiple of agent.sequence_length={length}, "
                f"got {config.batch_size}. Set agent.batch_size={-(-config.batch_size // length) * length}, "
                "or an agent.sequence_length that divides both agent.batch_size and agent.horizon.",
                code="contradiction",
                key="agent.batch_size",
            )
        super().check_config(config, env)

    @property
    def _sequence_length(self) -> int:
        return self._config.sequence_length

    def _order(self, size: int) -> Tensor:
        """Whole sequences in random order, as rows of a batch. [size]"""
        length = self._sequence_length
        first = super()._order(size // length) * length
        return (first.unsqueeze(1) + torch.arange(length)).flatten()


def nearest(numbers: list[int], wanted: int) -> int:
    """The one of `numbers` that is nearest to `wanted`."""
    return min(numbers, key=lambda number: abs(number - wanted))
