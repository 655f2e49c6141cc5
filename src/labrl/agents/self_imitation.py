"""Self-imitation learning (Oh et al., 2018, arXiv:1806.05635): do again what turned out better than thought.

A part of A2C, PPO and REINFORCE with a value baseline, chosen by `agent/self_imitation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.config.component import Component
from labrl.config.types import NonNegativeFloat, PositiveInt
from labrl.memory.episodes import Episodes
from labrl.memory.replay import Replay, Sample
from labrl.networks.actor_critic import ActorCritic
from labrl.networks.compute import Compute
from labrl.networks.distributions import ActionDistribution
from labrl.networks.spaces import Spaces, stored_choices
from labrl.networks.trained import Trained
from labrl.step import Step

Values = Callable[[NDArray], NDArray]
"""State values of observations, [n, *obs] -> [n]."""
Evaluate = Callable[[ActorCritic, NDArray, NDArray | None], tuple[Tensor, Tensor]]
"""Policy parameters and values of observations [n, *obs] and masks, to be differentiated."""


@dataclass(kw_only=True)
class SelfImitationConfig:
    """Options of self-imitation."""

    memory: Component
    """Where steps of whole episodes are kept with their returns; prioritized by what was underrated."""
    updates: PositiveInt
    """Updates after each of the agent's own rollouts, M in the paper, >= 1."""
    batch_size: PositiveInt
    """Steps in a minibatch, >= 1; updates begin when that many have been stored."""
    policy_coef: NonNegativeFloat
    """Weight of the policy loss, >= 0."""
    value_coef: NonNegativeFloat
    """Weight of the value loss, beta_sil in eq. 1, >= 0."""

    def __post_init__(self) -> None:
        capacity = getattr(self.memory.config, "capacity", self.batch_size)
        if capacity < self.batch_size:
            raise ValueError(
                f"must have memory.capacity >= batch_size, got memory.capacity={capacity} and "
                f"batch_size={self.batch_size}"
            )
        # A whole episode is written at once: there is no room that would keep it off what older checkpoints
        # count on, however often they are written.
        if getattr(self.memory.config, "storage", "ram") == "mmap":
            raise ValueError(
                "must have memory.storage=ram, got mmap: whole episodes are written at once (set "
                "agent.self_imitation.memory.storage=ram)"
            )


def imitation_losses(log_prob: Tensor, value: Tensor, discounted_return: Tensor) -> tuple[Tensor, Tensor]:
    """-log pi(a|s) (R - V)+ and ((R - V)+)^2 / 2, eq. 2 and 3; the first teaches the policy alone.

    All are [batch], the losses of each step too.
    """
    underrated = (discounted_return - value).clamp(min=0)
    return -log_prob * underrated.detach(), 0.5 * underrated.square()


def stored_space(space: gym.Space[Any], distribution: ActionDistribution) -> gym.Space[Any]:
    """Actions as the policy draws them: real numbers also where the environment gets them rounded."""
    if isinstance(space, gym.spaces.Box):
        return gym.spaces.Box(-np.inf, np.inf, distribution.action_shape, np.float32)
    return stored_choices(space)


class SelfImitation:
    """Keeps what was done in whole episodes, and learns from the steps whose return was underrated.

    The return of an episode that a time limit cut ends with the value of its last state, as it is then known.
    """

    Config = SelfImitationConfig
    STATISTICS = ("imitation_loss_policy", "imitation_loss_value", "imitation_advantage", "imitation_share")
    """Means over the minibatches: the last two of (R - V)+, and of the steps where it is above 0."""

    def __init__(
        self,
        config: SelfImitationConfig,
        *,
        spaces: Spaces,
        distribution: ActionDistribution,
        gamma: float,
        compute: Compute,
        generator: np.random.Generator,
    ) -> None:
        """generator: of the session's streams, which save it."""
        self._config, self._spaces, self._distribution = config, spaces, distribution
        self._gamma = gamma
        self._playing: Episodes | None = None
        self._observation: NDArray | None = None
        self._held: list[Any] | None = None
        self._memory: Replay = config.memory.build(
            observation_space=spaces.observation,
            action_space=stored_space(spaces.action, distribution),
            num_envs=1,  # episodes come one after the other, whoever played them
            n_step=1,
            gamma=gamma,
            workspace=compute.workspace,
            generator=generator,
            **({"num_masked": distribution.num_parameters} if spaces.masked else {}),
        )
        self._metrics = dict.fromkeys(self.STATISTICS, math.nan)

    def observe(
        self,
        observation: NDArray,
        action: NDArray,
        mask: NDArray[np.bool_] | None,
        step: Step,
        values: Values,
    ) -> None:
        """Take in one vector step.

        observation, action, mask: what was seen, done and valid, [num_envs, ...]; step: what came of it.
        """
        self._observation = observation
        if self._playing is None:
            self._playing = self._new_episodes(observation)
        playing = self._playing
        playing.add_choice(observation, action, 0.0, 0.0, mask)
        playing.add_cuts(step, step.next_observation)
        playing.add_outcome(step.reward, step.terminated, step.episode_over)
        if playing.full:
            self._keep(playing, values)
            playing.clear()

    def learn(
        self,
        trained: Trained[ActorCritic],
        evaluate: Evaluate,
        descend: Callable[[], float],
        frame: int,
    ) -> int:
        """The updates after a rollout. Returns how many; none before a minibatch has been kept.

        descend: steps down the gradient that `trained` has gathered.
        """
        size = self._config.batch_size
        if len(self._memory) < size:
            return 0
        rows = torch.zeros((len(self.STATISTICS), size))
        total = torch.zeros(len(self.STATISTICS))
        for _ in range(self._config.updates):
            sample = self._memory.sample(size, frame)
            trained.backward(lambda net, share: self._loss(net, share, sample, evaluate, rows), size)  # noqa: B023
            descend()
            underrated = self.STATISTICS.index("imitation_advantage")
            self._memory.update_priorities(sample.index, rows[underrated].numpy())
            total += rows.mean(1)
        means = (total / self._config.updates).tolist()
        self._metrics.update(zip(self.STATISTICS, means, strict=True))
        return self._config.updates

    def metrics(self) -> dict[str, float]:
        """Means over the updates after the last rollout."""
        return {**self._metrics, "imitation_memory_size": len(self._memory)}

    def state_dict(self) -> dict[str, Any]:
        """The memory, and the episodes under way."""
        return {
            "memory": self._memory.state_dict(),
            "playing": None if self._playing is None else self._playing.state_dict(),
            "observation": self._observation,
            "held": self._held,
            "metrics": dict(self._metrics),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the middle of episodes."""
        self._memory.load_state_dict(state["memory"])
        self._held = state["held"]
        self._metrics = dict(state["metrics"])
        if state["playing"] is not None:
            self._observation = state["observation"]
            assert self._observation is not None
            self._playing = self._new_episodes(self._observation)
            self._playing.load_state_dict(state["playing"])

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()

    def _loss(
        self, network: ActorCritic, share: slice, sample: Sample, evaluate: Evaluate, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Eq. 1 on a share of a minibatch, by the importance weights; STATISTICS of each step into `rows`."""
        mask = None if sample.mask is None else sample.mask[share]
        parameters, value = evaluate(network, sample.observation[share], mask)
        device = value.device
        action = torch.from_numpy(sample.action[share]).to(device)
        wanted = torch.from_numpy(sample.reward[share]).to(device)
        weight = torch.from_numpy(sample.weight[share]).to(device)
        log_prob, _ = self._distribution.log_prob_entropy(parameters, action)
        policy, value_error = imitation_losses(log_prob, value, wanted)
        underrated = (wanted - value.detach()).clamp(min=0)
        rows[:, share] = (
            torch.stack([policy, value_error, underrated, (underrated > 0).float()]).detach().cpu()
        )
        losses = self._config.policy_coef * policy + self._config.value_coef * value_error
        loss = torch.dot(losses, weight) / len(weight)
        return loss, loss.detach()

    def _new_episodes(self, observation: NDArray) -> Episodes:
        kind = self._distribution
        masks = kind.num_parameters if self._spaces.masked else 0
        return Episodes(1, observation, kind.action_shape, kind.action_dtype, masks, self._spaces.masked)

    def _keep(self, playing: Episodes, values: Values) -> None:
        """Give the steps of ended episodes to the memory, with their discounted returns."""
        cut = list(playing.cut.values())
        beyond = np.zeros(playing.num_envs + len(cut), np.float32)
        if cut:
            beyond[playing.num_envs :] = values(np.stack(cut))
        returns = playing.advantages(beyond, self._gamma, 1.0)  # of values that are all 0
        observation, action = playing.rows("observation"), playing.rows("action")
        mask = playing.rows("mask") if playing.masked else None
        over = playing.rows("terminated") | playing.rows("episode_over")
        for row in range(len(returns)):
            at = slice(row, row + 1)
            now = [observation[at], action[at], None if mask is None else mask[at], returns[at], over[at]]
            if self._held is not None:
                self._add(self._held, following=now[0])
            self._held = now

    def _add(self, held: list[Any], following: NDArray) -> None:
        """Into the memory, as a step that is worth its return and leads nowhere; it is held back until the
        observation is known that the memory gets next."""
        observation, action, mask, worth, over = held
        step = Step(
            observation=following,
            next_observation=observation if over[0] else following,
            reward=worth,
            terminated=np.ones(1, np.bool_),
            truncated=np.zeros(1, np.bool_),
            episode_over=over,
            next_mask=mask,
        )
        self._memory.add(observation, action, step, **({} if mask is None else {"mask": mask}))
