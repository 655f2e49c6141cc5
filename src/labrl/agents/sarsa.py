"""Sarsa (Rummery & Niranjan, 1994; Sutton & Barto, 2018, chapters 6 and 12): values of its own policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.action_spaces import check_actions
from labrl.agents.budget import check_budget
from labrl.agents.errors import NonFiniteError
from labrl.agents.exploration import KnownExploration
from labrl.agents.share import rollout_share
from labrl.clock import Clock
from labrl.config.component import Component
from labrl.config.types import NonNegativeSchedule, PositiveFloat, PositiveInt, Probability
from labrl.errors import InputError
from labrl.memory.rollout import Rollout, check_room
from labrl.networks.building import built, num_workers, precise
from labrl.networks.compute import Compute
from labrl.networks.gradient import FlatParameters, joined
from labrl.networks.q_network import QNetwork, QNetworkConfig
from labrl.networks.spaces import Spaces
from labrl.networks.torso import check_torso
from labrl.networks.trained import Trained, one_for_all
from labrl.schedules import value_at
from labrl.seeding import Streams, derived_seed
from labrl.step import Step


@dataclass(kw_only=True)
class SarsaConfig:
    """Options of Sarsa."""

    network: QNetworkConfig
    """From observations to a value for each action."""
    optimizer: Component
    """How the weights follow the gradient."""
    exploration: Component
    """How actions are chosen from the values; the values of this policy are learned."""
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
    lr: NonNegativeSchedule
    """Learning rate, >= 0."""
    max_grad_norm: PositiveFloat | None
    """Largest Euclidean norm of a gradient, > 0; longer ones are scaled down; null: no limit."""


class Sarsa:
    """After each rollout one step of every Q(s, a) in it towards its lambda-return.

    G_t = r + gamma ((1 - lambda) Q(s', a') + lambda G_{t+1}), truncated at the rollout's end (eq. 12.19),
    with a' the action that is taken next or, if `expected`, the mean over the policy (eq. 6.9). As in the
    book, the action after the last step is chosen before the update, and taken after it.
    """

    Config = SarsaConfig
    METRICS = ("loss", "td_error", "q_mean", "grad_norm")

    def __init__(
        self, config: SarsaConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        self.check(config, spaces)
        assert isinstance(spaces.action, gym.spaces.Discrete)
        self._compute = compute = precise(spaces, compute)
        self._config, self._spaces, self._clock = config, spaces, clock
        self._num_actions, self._first_action = int(spaces.action.n), int(spaces.action.start)
        self._exploration: KnownExploration = config.exploration.build()
        (self.network,) = built(
            lambda: (QNetwork(config.network, spaces, self._num_actions, num_outputs=1),),
            derived_seed(streams.seed, "initialization"),
            spaces,
            compute,
        )
        new_optimizer = one_for_all(config.optimizer, config.max_grad_norm)
        self._trained = Trained(self.network, compute, num_workers(spaces, compute), new_optimizer)
        self._policy_stream = streams.numpy("policy")
        self._rollout: Rollout | None = None
        self._observation: NDArray | None = None
        self._mask: NDArray[np.bool_] | None = None
        self._next_action: NDArray[np.int64] | None = None
        self._metrics = dict.fromkeys(self.METRICS, math.nan)

    @property
    def weights(self) -> FlatParameters:
        """All that is learned, for sessions that train it together (`meta.distributed`)."""
        return self._trained.flat

    @classmethod
    def check_config(cls, config: SarsaConfig, env: Any) -> None:
        """Raises InputError if the budget ends before the first update or the policy is unknown."""
        check_budget(config.horizon, env)
        if not hasattr(config.exploration.load(), "probabilities"):
            raise InputError(
                f"agent.exploration: Sarsa learns the values of the policy that explores, and "
                f"{config.exploration.target} has no method probabilities(). Set "
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
    def share(cls, config: SarsaConfig, ranks: int) -> SarsaConfig:
        """What one of several ranks learns with."""
        return rollout_share(config, ranks)

    @classmethod
    def check(cls, config: SarsaConfig, spaces: Spaces) -> None:
        """Raises InputError for spaces in which it cannot act or that its network cannot read."""
        check_actions("sarsa", spaces.action)
        check_torso(config.network.torso, spaces)
        check_room(config.horizon, spaces.observation, spaces.num_envs)

    def act(self, observation: NDArray, mask: NDArray[np.bool_] | None = None) -> NDArray:
        """Exploring actions for the environments, among the valid ones. [num_envs]"""
        observation = self.network.layout(observation)
        action, self._next_action = self._next_action, None
        if action is None:
            action = self._choose(observation, mask)
        if self._rollout is None:
            self._rollout = self._new_rollout(observation)
        self._rollout.add_choice(observation, action, 0.0, 0.0, mask)
        return self._to_env(action)

    def evaluation_action(
        self, observation: NDArray, generator: np.random.Generator, mask: NDArray[np.bool_] | None = None
    ) -> NDArray:
        """The best actions, among the valid ones. [num_envs]"""
        return self.greedy_action(observation, mask)

    def greedy_action(self, observation: NDArray, mask: NDArray[np.bool_] | None = None) -> NDArray:
        """The best actions, among the valid ones. [num_envs]"""
        return self._to_env(self._values(self.network.layout(observation), mask).argmax(1))

    def observe(self, step: Step) -> None:
        """Store the outcome of the last actions."""
        rollout = self._rollout
        assert rollout is not None, "observe() follows act()"
        if step.truncated.any():
            rollout.add_cuts(step, self.network.layout(step.next_observation))
        rollout.add_outcome(step.reward, step.terminated, step.episode_over)
        self._observation, self._mask = step.observation, step.mask

    def learn(self) -> int:
        """Update on a full rollout. Returns the number of optimizer updates."""
        if self._rollout is None or not self._rollout.full:
            return 0
        self._update(self._rollout)
        self._rollout.clear()
        return self._config.epochs

    def metrics(self) -> dict[str, float]:
        """Of the last update; coefficients at this frame."""
        frame = self._clock.frame
        return {
            **self._metrics,
            "exploration": self._exploration.strength(frame),
            "lr": value_at(self._config.lr, frame),
            "weight_norm": self._trained.norm,
        }

    def modules(self) -> dict[str, nn.Module]:
        """The network of action values."""
        return {"q_network": self.network}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, the rollout as far as it is filled, and the action that is chosen already."""
        return {
            **self._trained.state_dict(),
            "rollout": None if self._rollout is None else self._rollout.state_dict(),
            "observation": self._observation,
            "mask": self._mask,
            "next_action": self._next_action,
            "metrics": dict(self._metrics),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state, in the middle of a rollout too."""
        self._trained.load_state_dict(state)
        self._observation, self._mask = state["observation"], state["mask"]
        self._next_action = state["next_action"]
        self._metrics = dict(state["metrics"])
        if state["rollout"] is not None:
            assert self._observation is not None
            self._rollout = self._new_rollout(self.network.layout(self._observation))
            self._rollout.load_state_dict(state["rollout"])

    def close(self) -> None:
        """End the worker threads."""
        self._trained.close()

    def _new_rollout(self, observation: NDArray) -> Rollout:
        masks = self._num_actions if self._spaces.masked else 0
        return Rollout(self._config.horizon, observation, (), torch.int64, masks, self._spaces.masked)

    def _to_env(self, action: NDArray) -> NDArray:
        return action + self._first_action if self._first_action else action

    def _outputs(self, network: QNetwork, observation: NDArray) -> Tensor:
        """observation: as the network reads it, [n, *obs]. Returns values, [n, actions]."""
        with self._compute.autocast():
            return network(self._compute.tensor(observation)).squeeze(2)

    def _values(self, observation: NDArray, mask: NDArray[np.bool_] | None = None) -> NDArray:
        """Action values, [n, actions]; of actions that are not valid, minus infinity."""

        def work(network: QNetwork, share: slice) -> Tensor:
            with torch.inference_mode():
                return self._outputs(network, observation[share])

        value = joined(self._trained.map(work, len(observation)))
        return value if mask is None else np.where(mask, value, -np.inf)

    def _choose(self, observation: NDArray, mask: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """What the policy does. [n]"""
        return self._exploration.choose(
            lambda: self._values(observation, mask),
            (len(observation), self._num_actions),
            self._clock.frame,
            self._policy_stream,
            mask,
        )

    def _worth(self, value: NDArray, action: NDArray) -> NDArray[np.float32]:
        """What a state is worth in which `action` is taken: its value, or the mean over the policy. [n]

        value: [n, actions].
        """
        if not self._config.expected:
            return value[np.arange(len(action)), action]
        probability = self._exploration.probabilities(value, self._clock.frame)
        return (probability * np.where(probability > 0, value, 0)).sum(1).astype(np.float32)

    def _beyond(self, observation: NDArray, mask: NDArray[np.bool_] | None) -> tuple[NDArray, NDArray]:
        """The next action in states that are not in the rows, and what they are worth. [n] both"""
        action = self._choose(observation, mask)
        return action, self._worth(self._values(observation, mask), action)

    def _targets(self, rollout: Rollout) -> NDArray[np.float32]:
        """Lambda-returns of all steps of a rollout, in the order of `flat`. [n]"""
        assert self._observation is not None
        mask = rollout.flat("mask").numpy() if rollout.masked else None
        value = self._values(rollout.flat("observation").numpy(), mask)
        worth = self._worth(value, rollout.flat("action").numpy())
        rollout.set_values(worth)
        self._next_action, beyond = self._beyond(self.network.layout(self._observation), self._mask)
        if rollout.cut:
            masks = np.stack(list(rollout.cut_mask.values())) if rollout.masked else None
            final = self._beyond(np.stack(list(rollout.cut.values())), masks)[1]
            beyond = np.concatenate([beyond, final])
        return rollout.advantages(beyond, self._config.gamma, self._config.trace_decay) + worth

    def _update(self, rollout: Rollout) -> None:
        """Steps down the gradient of (G - Q(s, a))^2 / 2. Raises NonFiniteError."""
        frame, device = self._clock.frame, self._compute.device
        target = torch.from_numpy(self._targets(rollout)).to(device)
        observation, action = rollout.flat("observation").numpy(), rollout.flat("action").to(device)

        def loss(network: QNetwork, share: slice) -> tuple[Tensor, Tensor]:
            values = self._outputs(network, observation[share])
            value = values.gather(1, action[share].unsqueeze(1)).squeeze(1)
            error = target[share] - value
            mean = 0.5 * error.square().mean()
            return mean, torch.stack([mean, error.abs().mean(), value.mean()]).detach()

        for _ in range(self._config.epochs):
            statistics = self._trained.backward(loss, len(action))
            norm = self._trained.step(value_at(self._config.lr, frame))
        self._metrics = dict(zip(self.METRICS, [*statistics.tolist(), norm], strict=True))
        for term, number in self._metrics.items():
            if not math.isfinite(number):
                raise NonFiniteError(term, frame)
