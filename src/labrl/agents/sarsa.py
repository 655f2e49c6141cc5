"""Sarsa (Rummery & Niranjan, 1994; Sutton & Barto, 2018, chapters 6 and 12): values of its own policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
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
from labrl.agents.parts.policy import check_budget
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
class SarsaConfig(ValuePolicyConfig):
    """Options of Sarsa. It learns the values of the policy that `exploration` makes of them."""

    expected: bool
    """Whether targets use the mean of the next values under the policy instead of the value of the next
    action."""
    horizon: PositiveInt
    """Agent steps that each environment contributes to one update, >= 1."""
    epochs: PositiveInt
    """Optimizer steps towards the targets of each rollout, which stay fixed, >= 1."""
    trace_decay: Probability
    """Lambda, in [0, 1]; 0: one-step targets, 1: returns over the rest of the rollout."""
    gamma: Probability
    """Discount factor: the weight of the next step's value, in [0, 1]."""


class Sarsa(Agent):
    """After each rollout takes steps of every Q(s, a) in it towards its lambda-return.

    G_t = r + gamma ((1 - lambda) Q(s', a') + lambda G_{t+1}), truncated at the rollout's end (eq. 12.19),
    with a' the action that is taken next or, if `expected`, the mean over the policy (eq. 6.9). As in the
    book, the action after the last step is chosen before the update, and taken after it.
    """

    Config = SarsaConfig
    NAME = "sarsa"
    TRAITS = Traits(masks=True, greedy=True, ranks=True, shares_weights=True)
    METRICS = (*RETURNS_STATISTICS, "grad_norm")

    def __init__(
        self, config: SarsaConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        self.check(config, spaces)
        self._config, self._clock = config, clock
        value = ExpectedValue(ExpectedValueConfig(loss="squared"), compute.device)
        self._policy = ValuePolicy(config, value, spaces, clock, streams, compute)
        self._rollout = Rollout(config.horizon, spaces.num_envs)
        self._nothing = np.zeros((spaces.num_envs, 0), np.float32)
        self._observation: NDArray | None = None  # after the last step
        self._mask: NDArray[np.bool_] | None = None
        self._next_action: NDArray[np.int64] | None = None
        self._metrics = dict.fromkeys(self.METRICS, math.nan)

    @classmethod
    def check_config(cls, config: SarsaConfig, env: Any) -> None:
        """Raise InputError if the budget ends before the first update or the policy is unknown."""
        check_budget(config.horizon, env)
        if not exploration_class(config.exploration).TRAITS.probabilities:
            raise InputError(
                f"agent.exploration: Sarsa learns the values of the policy that explores, and "
                f"{config.exploration.target} does not know its probabilities. Set "
                "agent/exploration=epsilon_greedy or agent/exploration=boltzmann.",
                code="unsupported",
                key="agent.exploration",
            )
        if config.network.noisy is not None:
            raise InputError(
                "agent.network.noisy must be null: Sarsa explores by agent.exploration alone. Set "
                "agent.network.noisy=null.",
                code="unsupported",
                key="agent.network.noisy",
            )

    @classmethod
    def check(cls, config: SarsaConfig, spaces: Spaces) -> None:
        """Raise InputError for spaces in which it cannot act or that its network cannot read."""
        check_actions(cls.NAME, spaces.action)
        check_torso(config.network.torso, spaces)
        check_room(config.horizon, spaces.observation, spaces.num_envs)

    def act(self, observation: Observation) -> NDArray:
        """Choose exploring actions for the environments, among the valid ones. [num_envs]"""
        inputs, mask = self._policy.network.layout(observation.array), observation.mask
        action, self._next_action = self._next_action, None
        if action is None:
            action, _ = self._policy.choose(inputs, mask)
        self._rollout.add_choice(inputs, action, self._nothing, 0.0, mask)
        return self._policy.to_env(action)

    def observe(self, step: Step) -> None:
        """Store the outcome of the last actions."""
        if step.truncated.any():
            self._rollout.add_cuts(step, self._policy.network.layout(step.next_observation))
        self._rollout.add_outcome(step.reward, step.terminated, step.episode_over)
        self._observation, self._mask = step.observation, step.mask

    def learn(self) -> int:
        """Update on a full rollout. Returns the number of optimizer updates."""
        if not self._rollout.full:
            return 0
        learner, frame, rollout = self._policy.learner, self._clock.frame, self._rollout
        columns = rollout.rows("observation"), rollout.rows("action"), self._targets(rollout)
        batch = Returns(*map(learner.tensor, columns))
        for _ in range(self._config.epochs):
            statistics = learner.gradient(returns_loss, batch)
            norm = learner.step(value_at(self._config.lr, frame))
        self._metrics = dict(zip(self.METRICS, [*statistics.tolist(), norm], strict=True))
        check_finite(frame, self._metrics)
        rollout.clear()
        return self._config.epochs

    def _targets(self, rollout: Rollout) -> NDArray[np.float32]:
        """Compute the lambda-returns of all steps, and choose the action after the last one. [n]"""
        masked = self._mask is not None
        mask = rollout.rows("mask") if masked else None
        worth = self._worth(rollout.rows("observation"), mask, rollout.rows("action"))
        rollout.set_values(worth)
        assert self._observation is not None, "learn() follows observe()"
        inputs = self._policy.network.layout(self._observation)
        self._next_action, beyond = self._beyond(inputs, self._mask)
        if rollout.cut:
            mask = np.stack(list(rollout.cut_mask.values())) if masked else None
            _, final = self._beyond(np.stack(list(rollout.cut.values())), mask)
            beyond = np.concatenate([beyond, final])
        return rollout.advantages(beyond, self._config.gamma, self._config.trace_decay) + worth

    def _beyond(self, inputs: NDArray, mask: NDArray[np.bool_] | None) -> tuple[NDArray, NDArray]:
        """Return the next actions in states that are not in the rows, and their worth. [n] each"""
        action, _ = self._policy.choose(inputs, mask)
        return action, self._worth(inputs, mask, action)

    def _worth(self, inputs: NDArray, mask: NDArray[np.bool_] | None, action: NDArray) -> NDArray[np.float32]:
        """Return the values of the actions taken, or the mean values under the policy. [n]"""
        # A tensor, so that targets are computed by the same operations as the values that follow them.
        values, _ = self._policy.values(self._policy.learner.tensor(inputs), mask)
        if not self._config.expected:
            return values[np.arange(len(action)), action]
        probability = self._policy.exploration.probabilities(values, self._clock.frame)
        return (probability * np.where(probability > 0, values, 0)).sum(1).astype(np.float32)

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
        """Return numbers of the last update, and coefficients at this frame."""
        weight_norm = self._policy.learner.weight_norm
        return {**self._metrics, **self._policy.coefficients(), "weight_norm": weight_norm}

    def modules(self) -> dict[str, nn.Module]:
        """Return the network of action values."""
        return {"q_network": self._policy.network}

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer, the rollout as far as it is filled, and the action chosen already."""
        return {
            **self._policy.learner.state_dict(),
            "rollout": self._rollout.state_dict(),
            "observation": self._observation,
            "mask": self._mask,
            "next_action": self._next_action,
            "metrics": dict(self._metrics),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, in the middle of a rollout too."""
        self._policy.learner.load_state_dict(state)
        self._rollout.load_state_dict(state["rollout"])
        self._observation, self._mask = state["observation"], state["mask"]
        self._next_action = state["next_action"]
        self._metrics = dict(state["metrics"])

    def close(self) -> None:
        """End the worker threads."""
        self._policy.learner.close()
