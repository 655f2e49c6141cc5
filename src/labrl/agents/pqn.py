"""Parallelized Q-network, PQN (Gallici et al., 2024, arXiv:2407.04811): Q-learning without a replay buffer.

Many environments replace the replay buffer, and a network with layer normalization needs no target network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labrl.agents.agent import Observation, divide_option
from labrl.agents.rollout_values_agent import RolloutValuesAgent, RolloutValuesConfig
from labrl.schedules import value_at
from labrl.step import Masks
from labrl.types import PositiveInt


@dataclass(kw_only=True)
class PQNConfig(RolloutValuesConfig):
    """Options of PQN."""

    batch_size: PositiveInt
    """Number of steps in a minibatch, >= 1; must divide horizon * env.num_envs."""


class PQN(RolloutValuesAgent):
    """Makes several epochs of minibatch updates of Q(s, a) toward the lambda-returns of each rollout.

    G_t = r + gamma ((1 - lambda) max_a Q(s', a) + lambda G_{t+1}), truncated at the end of the rollout
    (algorithm 2). The maximum uses the weights before the update. Exploring actions do not cut the returns,
    as in Peng's Q(lambda).
    """

    Config = PQNConfig
    NAME = "pqn"
    TRAITS = replace(RolloutValuesAgent.TRAITS, graphs=True)
    config: PQNConfig

    def __init__(self, config: PQNConfig, **runtime: Any) -> None:
        """Take the same arguments as `RolloutValuesAgent`."""
        super().__init__(config, **runtime)
        self._minibatch_stream = runtime["streams"].torch("minibatches")

    @classmethod
    def for_rank(cls, config: PQNConfig, ranks: int) -> PQNConfig:
        """Return one rank's share of the options. Raises InputError if they cannot be divided equally."""
        return divide_option(config, "batch_size", ranks)

    def act(self, observation: Observation) -> NDArray:
        """Choose valid actions for the environments, with exploration. [num_envs]"""
        inputs = self._policy.learner.layout(observation.array)
        action, _ = self._policy.choose(inputs, observation.mask)
        self._rollout.add_action(inputs, action, mask=observation.mask)
        return self._policy.to_env(action)

    def learn(self) -> int:
        """Make several epochs of minibatch updates if the rollout is full. Returns the number of updates."""
        if not self._rollout.full:
            return 0
        config, learner, rollout = self.config, self._policy.learner, self._rollout
        batch = self.batch(self._best(rollout.rows("observation"), rollout.masks), self._best)
        lr = value_at(config.lr, self.clock.frame)
        total, norms, updates = torch.zeros((), device=learner.device), 0.0, 0
        for _ in range(config.epochs):
            order = torch.randperm(len(batch), generator=self._minibatch_stream)
            for minibatch in batch.minibatches(order, config.batch_size):
                statistics, norm = learner.update(self.loss, minibatch, lr)
                total, norms, updates = total + statistics, norms + norm, updates + 1
        self.record(total / updates, norms / updates)
        rollout.clear()
        return updates

    def _best(self, observation: NDArray, mask: Masks) -> NDArray[np.float32]:
        """Return the largest value among the valid actions of each row. [n]"""
        # Pass a tensor, so that targets use the same operations as the values that approach them.
        return self._policy.values(self._policy.learner.tensor(observation), mask)[0].max(1)
