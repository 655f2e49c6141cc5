"""Self-imitation learning: repeat past steps with high returns (Oh et al., 2018, arXiv:1806.05635).

An optional part of A2C, PPO, and REINFORCE with a value baseline (`agent/self_imitation`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.clock import Clock
from labrl.component import Component
from labrl.learning.compute import Compute
from labrl.memory import Transitions
from labrl.memory.replay import Replay
from labrl.memory.rollout import Episodes
from labrl.networks.actions import mask_logits
from labrl.spaces import Spaces, stored_choices
from labrl.step import Masks, Step
from labrl.types import NonNegativeFloat, PositiveInt

if TYPE_CHECKING:
    from labrl.agents.policy_agent import PolicyAgent


@dataclass(kw_only=True)
class SelfImitationConfig:
    """Options of self-imitation."""

    memory: Component
    """Replay buffer of the steps of whole episodes with their returns R, prioritized by max(R - V, 0)."""
    updates: PositiveInt
    """Number of updates after each rollout of the agent, M in the paper, >= 1."""
    batch_size: PositiveInt
    """Number of steps in a minibatch, >= 1; updates begin once this number of steps is stored."""
    policy_coef: NonNegativeFloat
    """Weight of the policy loss, >= 0."""
    value_coef: NonNegativeFloat
    """Weight of the value loss, beta_sil in eq. 1, >= 0."""


def imitation_losses(log_prob: Tensor, value: Tensor, discounted_return: Tensor) -> tuple[Tensor, Tensor]:
    """Compute -log pi(a|s) (R - V)+ and ((R - V)+)^2 / 2 of each step, eq. 2 and 3.

    The first loss has no gradient for the values. All tensors are [batch].
    """
    underrated = (discounted_return - value).clamp(min=0)
    return -log_prob * underrated.detach(), 0.5 * underrated.square()


class SelfImitation:
    """Stores the steps of whole episodes, and learns from those whose return exceeds their value.

    If a time limit truncated an episode, its return includes the value of its last state, as estimated then.
    """

    Config = SelfImitationConfig
    STATISTICS = ("imitation_loss_policy", "imitation_loss_value", "imitation_advantage", "imitation_share")
    """Names of means over minibatches: both losses, (R - V)+, and the share of steps with R > V."""

    def __init__(
        self,
        config: SelfImitationConfig,
        *,
        spaces: Spaces,
        policy: PolicyAgent,
        gamma: float,
        clock: Clock,
        compute: Compute,
        generator: np.random.Generator,
    ) -> None:
        """policy: agent that learns; generator: one of the session's random streams,
        so that its state is saved with them."""
        self._config, self._policy, self._gamma, self._clock = config, policy, gamma, clock
        self._episodes = Episodes(1, spaces.num_envs)
        self._held: list[Any] | None = None  # latest step, until the next observation is known
        stored: gym.Space[Any] = stored_choices(spaces.action)
        if isinstance(
            spaces.action, gym.spaces.Box
        ):  # samples are real numbers even if they are rounded later
            shape = policy.distribution.action_shape
            stored = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self._memory: Replay = config.memory.build(
            observation_space=spaces.observation,
            action_space=stored,
            num_envs=1,  # episodes of all environments are stored one after the other
            n_step=1,
            gamma=gamma,
            workspace=compute.workspace,
            generator=generator,
            num_masked=policy.distribution.num_parameters if spaces.masked else 0,
        )
        self._metrics = dict.fromkeys(self.STATISTICS, math.nan)

    def observe(self, observation: NDArray, action: NDArray, mask: Masks, step: Step) -> None:
        """Store one vector step.

        observation, action, mask: observations, actions and valid actions, [num_envs, ...]; step: outcome.
        """
        episodes = self._episodes
        episodes.add_action(observation, action, mask=mask)
        episodes.add_result(step)
        if not episodes.full:
            return
        # Store the steps of finished episodes with their discounted returns.
        bootstrap_value = np.zeros(episodes.num_envs + len(episodes.truncated_states), np.float32)
        if episodes.truncated_states:
            final = np.stack([last.observation for last in episodes.truncated_states])
            bootstrap_value[episodes.num_envs :] = self._policy.values(self._policy.network.layout(final))
        returns = episodes.advantages(bootstrap_value, self._gamma, 1.0)  # values are all 0
        observation, action, mask = episodes.rows("observation"), episodes.rows("action"), episodes.masks
        over = episodes.rows("terminated") | episodes.rows("episode_over")
        for row in range(len(returns)):
            at = slice(row, row + 1)
            now = [observation[at], action[at], None if mask is None else mask[at], returns[at], over[at]]
            if self._held is not None:
                # A transition that terminates, with the return as its reward. The replay buffer expects the
                # next stored step to begin with the next observation.
                before, taken, valid, discounted_return, ended = self._held
                outcome = Step(
                    observation=now[0],
                    next_observation=before if ended[0] else now[0],
                    reward=discounted_return,
                    terminated=np.ones(1, np.bool_),
                    truncated=np.zeros(1, np.bool_),
                    episode_over=ended,
                    next_mask=valid,
                )
                self._memory.add(before, taken, outcome, valid)
            self._held = now
        episodes.clear()

    def learn(self) -> int:
        """Make the updates after a rollout if a minibatch is stored. Returns the number of updates."""
        size = self._config.batch_size
        if len(self._memory) < size:
            return 0
        total = torch.zeros(len(self.STATISTICS))
        for _ in range(self._config.updates):
            sample = self._memory.sample(size, self._clock.frame)
            batch = sample.as_tensors(self._policy.learner, self._policy.learner.layout)
            rows = self._policy.learner.gradient(self.loss, batch).cpu()
            self._policy.descend(self._policy.lr)
            underrated = self.STATISTICS.index("imitation_advantage")
            self._memory.update_priorities(sample.index, rows[underrated].numpy())
            total += rows.mean(1)
        means = (total / self._config.updates).tolist()
        self._metrics.update(zip(self.STATISTICS, means, strict=True))
        return self._config.updates

    def loss(self, network: Callable[..., Any], minibatch: Transitions) -> tuple[Tensor, Tensor]:
        """Compute eq. 1 weighted by importance, a scalar, and STATISTICS of each step, [statistics, batch].

        minibatch: past steps with their discounted returns as rewards.
        """
        output = network(minibatch.observation)
        parameters, value = mask_logits(output.parameters, minibatch.mask), output.value
        log_prob, _ = self._policy.distribution.log_prob_entropy(parameters, minibatch.action)
        policy, value_error = imitation_losses(log_prob, value, minibatch.reward)
        underrated = (minibatch.reward - value.detach()).clamp(min=0)
        statistics = torch.stack([policy, value_error, underrated, (underrated > 0).float()]).detach()
        losses = self._config.policy_coef * policy + self._config.value_coef * value_error
        return torch.dot(losses, minibatch.weight) / len(minibatch), statistics

    def metrics(self) -> dict[str, float]:
        """Return means over the updates after the last rollout."""
        return {**self._metrics, "imitation_memory_size": len(self._memory)}

    def state_dict(self) -> dict[str, Any]:
        """Return the replay buffer, the unfinished episodes and the metrics."""
        return {
            "memory": self._memory.state_dict(),
            "episodes": self._episodes.state_dict(),
            "held": self._held,
            "metrics": dict(self._metrics),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, even one that was saved in the middle of episodes."""
        self._memory.load_state_dict(state["memory"])
        self._episodes.load_state_dict(state["episodes"])
        self._held = state["held"]
        self._metrics = dict(state["metrics"])

    def close(self) -> None:
        """Close the replay buffer."""
        self._memory.close()
