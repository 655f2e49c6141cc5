"""Action values learned from rollouts: the base of Sarsa and PQN, which learn lambda-returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.agent import Actor, Agent, Observation, Traits, check_finite, joined, wrong_statistics
from labrl.agents.parts.action_values import (
    ExpectedValue,
    ExpectedValueConfig,
    ValuePolicy,
    ValuePolicyConfig,
)
from labrl.clock import Clock
from labrl.learning.compute import Compute
from labrl.learning.flat import FlatParameters
from labrl.memory import Minibatch
from labrl.memory.rollout import Rollout
from labrl.networks.q_network import QNetwork
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.step import Masks, Step
from labrl.types import PositiveInt, Probability


@dataclass(kw_only=True)
class RolloutValuesConfig(ValuePolicyConfig):
    """Options of agents that learn action values from their own rollouts."""

    horizon: PositiveInt
    """Number of agent steps that each environment contributes to one rollout, >= 1."""
    epochs: PositiveInt
    """Number of passes over each rollout, with fixed targets, >= 1."""
    trace_decay: Probability
    """Decay of the lambda-return, lambda, in [0, 1]; 0: one-step targets; 1: returns over the rollout."""
    gamma: Probability
    """Discount factor: the weight of the next step's value, in [0, 1]."""


class RolloutValuesAgent(Agent):
    """Base of agents that learn action values from rollouts.

    A derived class must define `act` and `learn`.
    """

    STATISTICS: ClassVar[tuple[str, ...]] = ("loss", "td_error", "q_mean")
    """Names of the mean statistics that `objective` returns."""

    TRAITS = Traits(
        actions=(gym.spaces.Discrete,),
        masks=True,
        greedy=True,
        exports=True,
        stochastic=False,
        data_parallel=True,
        shares_weights=True,
    )
    config: RolloutValuesConfig

    def __init__(
        self, config: RolloutValuesConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        self.config, self.clock = config, clock
        value = ExpectedValue(ExpectedValueConfig(loss="squared"), compute.device)
        self._policy = ValuePolicy(config, value, spaces, clock, streams, compute)
        self._rollout = Rollout(config.horizon, spaces.num_envs)
        self._after: Observation | None = None
        """Observation after the last step."""
        self._metrics = joined(self, ((name, math.nan) for name in (*self.STATISTICS, "grad_norm")))

    def observe(self, step: Step) -> None:
        """Store the outcome of the last actions."""
        self._rollout.add_result(step, self._policy.network.layout)
        self._after = Observation(step.observation, step.mask)

    def batch(
        self,
        value: NDArray[np.float32],
        value_of: Callable[[NDArray, Masks], NDArray[np.float32]],
    ) -> Minibatch:
        """Return all steps of a full rollout, with their lambda-returns as `value_target`.

        G_t = r + gamma ((1 - lambda) W(s') + lambda G_{t+1}), truncated at the end of the rollout.

        value: state values W(s) of the rows, [n]; value_of: function that computes W, [m], from observations
        in the network's layout and their masks. It is called for the states after the last row, then for the
        final states of truncated episodes.
        """
        rollout, after, config = self._rollout, self._after, self.config
        assert after is not None, "learn() follows observe()"
        rollout.set_values(value)
        bootstrap_value = value_of(self._policy.network.layout(after.array), after.mask)
        if rollout.truncated_states:
            finals = np.stack([last.observation for last in rollout.truncated_states])
            masks = None if after.mask is None else np.array([last.mask for last in rollout.truncated_states])
            bootstrap_value = np.concatenate([bootstrap_value, value_of(finals, masks)])
        # A lambda-return is W plus the generalized advantage with the same lambda.
        advantage = rollout.advantages(bootstrap_value, config.gamma, config.trace_decay)
        return rollout.batch(advantage, None, self._policy.learner.device)

    def loss(self, network: QNetwork, minibatch: Minibatch) -> tuple[Tensor, Tensor]:
        """Compute the `objective` of a minibatch."""
        return self.objective(minibatch, network(minibatch.observation).outputs.squeeze(2))

    def objective(self, minibatch: Minibatch, values: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean of (G - Q(s, a))^2 / 2, and the mean STATISTICS.

        minibatch: steps with the returns G as `value_target`; values: Q(s, a) of all actions, of the network
        that learns, [batch, actions]. Returns a scalar to be minimized and the statistics, [number of names].
        An agent that extends another adds its own term to the scalar, and the mean of the term to the
        statistics.
        """
        value = values.gather(1, minibatch.action.unsqueeze(1)).squeeze(1)
        error = minibatch.value_target - value
        mean = 0.5 * error.square().mean()
        return mean, torch.stack([mean, error.abs().mean(), value.mean()]).detach()

    def record(self, statistics: Tensor, grad_norm: float | Tensor) -> None:
        """Keep the mean statistics of a rollout, and the gradient norm, for the next metrics row.

        Raises NonFiniteError if one is not finite, and InputError unless STATISTICS names each statistic.
        """
        if len(statistics) != len(self.STATISTICS):
            raise wrong_statistics(self, "STATISTICS", self.STATISTICS, len(statistics))
        means = (*statistics.tolist(), float(grad_norm))
        self._metrics = dict(zip((*self.STATISTICS, "grad_norm"), means, strict=True))
        check_finite(self.clock.frame, self._metrics)

    def evaluation_action(self, observation: Observation, generator: np.random.Generator) -> NDArray:
        """Return the best valid actions. [num_envs]"""
        return self.greedy_action(observation)

    def greedy_action(self, observation: Observation) -> NDArray:
        """Return the best valid actions. [num_envs]"""
        inputs = self._policy.learner.layout(observation.array)
        return self._policy.to_env(self._policy.values(inputs, observation.mask)[0].argmax(1))

    def actor(self, sampled: bool) -> Actor:
        """Return the greedy policy as one module."""
        return self._policy.actor()

    @property
    def weights(self) -> FlatParameters:
        """All weights, for sessions that train them together (`meta.distributed`)."""
        return self._policy.learner.flat

    def metrics(self) -> dict[str, float]:
        """Return means over the updates of the last rollout, and coefficients at the current frame."""
        weight_norm = self._policy.learner.weight_norm
        return joined(self, self._metrics, self._policy.coefficients(), {"weight_norm": weight_norm})

    def modules(self) -> dict[str, nn.Module]:
        """Return the network of action values."""
        return {"q_network": self._policy.network}

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer, metrics and the partial rollout."""
        return {
            **self._policy.learner.state_dict(),
            "rollout": self._rollout.state_dict(),
            "observation": None if self._after is None else self._after.array,
            "mask": None if self._after is None else self._after.mask,
            "metrics": dict(self._metrics),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, even one that was saved in the middle of a rollout."""
        self._policy.learner.load_state_dict(state)
        self._rollout.load_state_dict(state["rollout"])
        seen = state["observation"]
        self._after = None if seen is None else Observation(seen, state["mask"])
        self._metrics = dict(state["metrics"])

    def close(self) -> None:
        """Stop the worker threads."""
        self._policy.learner.close()
