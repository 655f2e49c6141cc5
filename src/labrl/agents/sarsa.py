"""Sarsa: on-policy action values (Rummery & Niranjan, 1994; Sutton & Barto, 2018, chapters 6 and 12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.agents.agent import Observation
from labrl.agents.rollout_values_agent import RolloutValuesAgent, RolloutValuesConfig
from labrl.schedules import value_at
from labrl.step import Masks


@dataclass(kw_only=True)
class SarsaConfig(RolloutValuesConfig):
    """Options of Sarsa, which learns the values of the exploring policy (`exploration`)."""

    expected: bool
    """Whether targets use the mean value of the next state's actions under the policy instead of the value of
    the next action."""


class Sarsa(RolloutValuesAgent):
    """Moves all Q(s, a) of each rollout toward their lambda-returns.

    G_t = r + gamma ((1 - lambda) Q(s', a') + lambda G_{t+1}), truncated at the end of the rollout (eq.
    12.19), where a' is the next action. If `expected`, the mean of Q(s', a') under the policy replaces
    Q(s', a') (eq. 6.9). As in the book, the action after the last step is chosen before the update and taken
    after it.
    """

    Config = SarsaConfig
    NAME = "sarsa"
    config: SarsaConfig

    def __init__(self, config: SarsaConfig, **runtime: Any) -> None:
        """Take the same arguments as `RolloutValuesAgent`."""
        super().__init__(config, **runtime)
        self._next_action: NDArray[np.int64] | None = None
        """Actions after the last step; None if they are not chosen yet. [num_envs]"""

    def act(self, observation: Observation) -> NDArray:
        """Choose valid actions for the environments, with exploration. [num_envs]"""
        inputs, mask = self._policy.learner.layout(observation.array), observation.mask
        action, self._next_action = self._next_action, None
        if action is None:
            action, _ = self._policy.choose(inputs, mask)
        self._rollout.add_action(inputs, action, mask=mask)
        return self._policy.to_env(action)

    def learn(self) -> int:
        """Make the updates if the rollout is full. Returns the number of optimizer updates."""
        if not self._rollout.full:
            return 0
        learner, frame, rollout = self._policy.learner, self.clock.frame, self._rollout
        value = self._state_value(rollout.rows("observation"), rollout.masks, rollout.rows("action"))
        batch = self.batch(value, self._next_value)
        for _ in range(self.config.epochs):
            statistics = learner.gradient(self.loss, batch)
            norm = learner.step(value_at(self.config.lr, frame))
        self.record(statistics, norm)
        rollout.clear()
        return self.config.epochs

    def _next_value(self, observation: NDArray, mask: Masks) -> NDArray[np.float32]:
        """Choose actions in states outside the rollout, and return the values of these actions. [n]"""
        action, _ = self._policy.choose(observation, mask)
        if self._next_action is None:  # the first call is for the states after the last row
            self._next_action = action
        return self._state_value(observation, mask, action)

    def _state_value(self, observation: NDArray, mask: Masks, action: NDArray) -> NDArray[np.float32]:
        """Return the values of the given actions, or the mean values under the policy. [n]"""
        # Pass a tensor, so that targets use the same operations as the values that approach them.
        values, _ = self._policy.values(self._policy.learner.tensor(observation), mask)
        if not self.config.expected:
            return values[np.arange(len(action)), action]
        probability = self._policy.exploration.probabilities(values, self.clock.frame)
        return (probability * np.where(probability > 0, values, 0)).sum(1).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer, the partial rollout, and actions that are already chosen."""
        return {**super().state_dict(), "next_action": self._next_action}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, even one that was saved in the middle of a rollout."""
        super().load_state_dict(state)
        self._next_action = state["next_action"]
