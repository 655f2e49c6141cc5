"""Parallelized Q-network, PQN (Gallici et al., 2024, arXiv:2407.04811): Q-learning without a replay buffer.

Many environments take the place of the replay buffer, and a network whose layers are normalized that of the
target network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from labrl.agents.action_spaces import check_actions
from labrl.agents.agent import Agent, Observation, Traits, check_finite
from labrl.agents.parts.action_values import (
    RETURNS_STATISTICS,
    ExpectedValue,
    ExpectedValueConfig,
    Returns,
    ValuePolicy,
    ValuePolicyConfig,
    returns_loss,
)
from labrl.agents.parts.exploration import exploration_class
from labrl.agents.parts.policy import check_budget, check_minibatches
from labrl.agents.parts.ranks import divided
from labrl.clock import Clock
from labrl.config.types import PositiveInt, Probability
from labrl.errors import InputError
from labrl.learning.compute import Compute
from labrl.learning.flat import FlatParameters
from labrl.memory.rollout import Rollout, check_room
from labrl.networks.building import check_torso
from labrl.networks.spaces import Spaces
from labrl.schedules import value_at
from labrl.seeding import Streams
from labrl.step import Step


@dataclass(kw_only=True)
class PQNConfig(ValuePolicyConfig):
    """Options of PQN."""

    horizon: PositiveInt
    """Agent steps that each environment contributes to one rollout, >= 1."""
    epochs: PositiveInt
    """Passes over each rollout, whose targets stay fixed, >= 1."""
    batch_size: PositiveInt
    """Steps in a minibatch, >= 1; must divide horizon * env.num_envs."""
    trace_decay: Probability
    """Lambda, in [0, 1]; 0: one-step targets, 1: returns over the rest of the rollout."""
    gamma: Probability
    """Discount factor: the weight of the next step's value, in [0, 1]."""


class PQN(Agent):
    """After each rollout makes several epochs of minibatch updates of Q(s, a) towards its lambda-return.

    G_t = r + gamma ((1 - lambda) max_a Q(s', a) + lambda G_{t+1}), truncated at the rollout's end (algorithm
    2). The maximum is that of the weights before the update. After an exploring action the return is that of
    the action nevertheless, as in Peng's Q(lambda).
    """

    Config = PQNConfig
    NAME = "pqn"
    TRAITS = Traits(masks=True, greedy=True, ranks=True, shares_weights=True)
    STATISTICS = RETURNS_STATISTICS
    """Means over the minibatches of a rollout."""

    def __init__(
        self, config: PQNConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        self.check(config, spaces)
        self._config, self._clock = config, clock
        value = ExpectedValue(ExpectedValueConfig(loss="squared"), compute.device)
        self._policy = ValuePolicy(config, value, spaces, clock, streams, compute)
        self._rollout = Rollout(config.horizon, spaces.num_envs)
        self._nothing = np.zeros((spaces.num_envs, 0), np.float32)
        self._after: Observation | None = None
        """Observations that the last step led to."""
        self._minibatch_stream = streams.torch("minibatches")
        self._metrics = dict.fromkeys((*self.STATISTICS, "grad_norm"), math.nan)

    @classmethod
    def check_config(cls, config: PQNConfig, env: Any) -> None:
        """Raise InputError if rollout, minibatch, budget and exploration contradict each other."""
        check_minibatches(config.horizon, config.batch_size, env)
        check_budget(config.horizon, env)
        if exploration_class(config.exploration).TRAITS.noisy or config.network.noisy is not None:
            raise InputError(
                "agent.network.noisy must be null: PQN explores by agent.exploration alone. Set "
                "agent.network.noisy=null and agent/exploration=epsilon_greedy.",
                code="unsupported",
                key="agent.network.noisy",
            )

    @classmethod
    def check(cls, config: PQNConfig, spaces: Spaces) -> None:
        """Raise InputError for spaces in which it cannot act or that its network cannot read."""
        check_actions(cls.NAME, spaces.action)
        check_torso(config.network.torso, spaces)
        check_room(config.horizon, spaces.observation, spaces.num_envs)

    @classmethod
    def for_rank(cls, config: PQNConfig, ranks: int) -> PQNConfig:
        """Return the options of one of several ranks. Raise InputError where they have no equal part."""
        return divided(config, "batch_size", ranks)

    def act(self, observation: Observation) -> NDArray:
        """Choose exploring actions for the environments, among the valid ones. [num_envs]"""
        inputs = self._policy.network.layout(observation.array)
        action, _ = self._policy.choose(inputs, observation.mask)
        self._rollout.add_choice(inputs, action, self._nothing, 0.0, observation.mask)
        return self._policy.to_env(action)

    def observe(self, step: Step) -> None:
        """Store the outcome of the last actions."""
        if step.truncated.any():
            self._rollout.add_cuts(step, self._policy.network.layout(step.next_observation))
        self._rollout.add_outcome(step.reward, step.terminated, step.episode_over)
        self._after = Observation(step.observation, step.mask)

    def learn(self) -> int:
        """Make epochs of minibatch updates on a full rollout. Returns how many updates were made."""
        if not self._rollout.full:
            return 0
        config, learner, frame, rollout = self._config, self._policy.learner, self._clock.frame, self._rollout
        columns = rollout.rows("observation"), rollout.rows("action"), self._targets(rollout)
        steps = Returns(*map(learner.tensor, columns))
        lr = value_at(config.lr, frame)
        total, norms, updates = torch.zeros(len(self.STATISTICS), device=learner.device), 0.0, 0
        for _ in range(config.epochs):
            order = torch.randperm(len(steps), generator=self._minibatch_stream)
            for rows in order.to(learner.device).split(config.batch_size):
                total += learner.gradient(returns_loss, steps.at(rows))
                norms += learner.step(lr)
                updates += 1
        means = [*(total / updates).tolist(), norms / updates]
        self._metrics = dict(zip(self._metrics, means, strict=True))
        check_finite(frame, self._metrics)
        rollout.clear()
        return updates

    def _targets(self, rollout: Rollout) -> NDArray[np.float32]:
        """Compute the lambda-returns of all steps. [n]"""
        assert self._after is not None, "learn() follows observe()"
        masked = self._after.mask is not None
        best = self._best(rollout.rows("observation"), rollout.rows("mask") if masked else None)
        rollout.set_values(best)
        beyond = self._best(self._policy.network.layout(self._after.array), self._after.mask)
        if rollout.cut:
            mask = np.stack(list(rollout.cut_mask.values())) if masked else None
            beyond = np.concatenate([beyond, self._best(np.stack(list(rollout.cut.values())), mask)])
        # A lambda-return is the advantage with the same lambda over the value that it bootstraps from.
        return rollout.advantages(beyond, self._config.gamma, self._config.trace_decay) + best

    def _best(self, inputs: NDArray, mask: NDArray[np.bool_] | None) -> NDArray[np.float32]:
        """Return the largest value among the valid actions. [n]"""
        # A tensor, so that targets are computed by the same operations as the values that follow them.
        return self._policy.values(self._policy.learner.tensor(inputs), mask)[0].max(1)

    def evaluation_action(self, observation: Observation, generator: np.random.Generator) -> NDArray:
        """Return the best actions, among the valid ones. [num_envs]"""
        return self.greedy_action(observation)

    def greedy_action(self, observation: Observation) -> NDArray:
        """Return the best actions, among the valid ones. [num_envs]"""
        inputs = self._policy.network.layout(observation.array)
        return self._policy.to_env(self._policy.values(inputs, observation.mask)[0].argmax(1))

    @property
    def weights(self) -> FlatParameters:
        """All that is learned, for sessions that train it together (`meta.distributed`)."""
        return self._policy.learner.flat

    def metrics(self) -> dict[str, float]:
        """Return means over the updates of the last rollout, and coefficients at this frame."""
        weight_norm = self._policy.learner.weight_norm
        return {**self._metrics, **self._policy.coefficients(), "weight_norm": weight_norm}

    def modules(self) -> dict[str, nn.Module]:
        """Return the network of action values."""
        return {"q_network": self._policy.network}

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer, and the rollout as far as it is filled."""
        return {
            **self._policy.learner.state_dict(),
            "rollout": self._rollout.state_dict(),
            "observation": None if self._after is None else self._after.array,
            "mask": None if self._after is None else self._after.mask,
            "metrics": dict(self._metrics),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, in the middle of a rollout too."""
        self._policy.learner.load_state_dict(state)
        self._rollout.load_state_dict(state["rollout"])
        seen = state["observation"]
        self._after = None if seen is None else Observation(seen, state["mask"])
        self._metrics = dict(state["metrics"])

    def close(self) -> None:
        """End the worker threads."""
        self._policy.learner.close()
