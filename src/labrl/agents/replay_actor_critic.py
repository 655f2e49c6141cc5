"""What agents with a policy, critics and a replay memory do alike: act, remember, update when it is time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.action_spaces import check_actions
from labrl.agents.errors import NonFiniteError
from labrl.agents.experience import Experience, ExperienceConfig, check_experience, check_memory
from labrl.agents.share import experience_share
from labrl.agents.target_network import Delayed
from labrl.clock import Clock
from labrl.config.component import Component
from labrl.config.types import NonNegativeSchedule, PositiveFloat
from labrl.errors import InputError, LabrlError
from labrl.memory.replay import Sample
from labrl.networks.box_actions import BoxActions
from labrl.networks.building import built, num_workers, precise
from labrl.networks.compute import Compute
from labrl.networks.critics import Critics, PolicyAndCriticsConfig, PolicyNetwork
from labrl.networks.spaces import Spaces, sees_images
from labrl.networks.torso import check_torso
from labrl.networks.trained import Averages, Trained, one_for_all
from labrl.schedules import value_at
from labrl.seeding import Streams, derived_seed
from labrl.step import Step

WORTH_SHARING = 2**23
"""Products of critics' weights and samples in a minibatch, from which on more threads gain than cost."""


@dataclass(kw_only=True)
class ReplayActorCriticConfig(ExperienceConfig):
    """Options of every off-policy actor-critic."""

    network: PolicyAndCriticsConfig
    """Policy and critics."""
    optimizer: Component
    """How the weights of policy and critics follow the gradient."""
    lr: NonNegativeSchedule
    """Learning rate, >= 0."""
    critic_lr: NonNegativeSchedule | None
    """Learning rate of the critics, >= 0; null: the same as `lr`."""
    max_grad_norm: PositiveFloat | None
    """Largest Euclidean norm of the gradients of the policy and of the critics, > 0; longer ones are scaled
    down; null: no limit."""


class Batch(NamedTuple):
    """A minibatch as tensors; columns as in `memory.Sample`."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    next_observation: Tensor
    discount: Tensor
    weight: Tensor


class Actions(Protocol):
    """How outputs of a policy network become actions."""

    num_outputs: int
    """Numbers that the network gives."""
    stored: gym.Space[Any]
    """The space of what a memory keeps."""

    def best(self, outputs: NDArray) -> NDArray:
        """Actions under evaluation. [n, num_outputs] -> [n, *stored]"""
        ...

    def random(self, count: int, generator: np.random.Generator) -> NDArray:
        """Uniform actions. [count, *stored]"""
        ...

    def to_env(self, action: NDArray) -> NDArray:
        """As the environment takes them. [n, *stored] -> [n, *action]"""
        ...


class ReplayActorCritic(ABC):
    """Holds the parts and calls `_learn_from` for each minibatch; all else that differs is in the parts."""

    NUM_CRITICS = 2
    HALVES = True
    """Whether a gradient of half a minibatch means what one of the whole does."""
    CRITIC_STATISTICS = ("loss_critic", "td_error", "q_mean", "grad_norm_critic")
    """Averaged over some 100 updates of the critics; td_error is what priorities follow."""
    POLICY_STATISTICS: tuple[str, ...] = ("loss_policy", "grad_norm_policy")
    """Averaged over some 100 updates of the policy."""

    def __init__(
        self,
        config: ReplayActorCriticConfig,
        spaces: Spaces,
        clock: Clock,
        streams: Streams,
        compute: Compute,
        actions: Actions,
    ) -> None:
        """actions: of the policy."""
        self._clock, self._actions = clock, actions
        self._lr = config.lr
        self._critic_lr = config.lr if config.critic_lr is None else config.critic_lr
        self._compute = compute = precise(spaces, compute)
        policy, critics = built(
            lambda: (
                PolicyNetwork(config.network.torso, spaces.observation, actions.num_outputs),
                Critics(config.network, spaces, self.NUM_CRITICS),
            ),
            derived_seed(streams.seed, "initialization"),
            spaces,
            compute,
            whole_minibatches=not self.HALVES,
        )
        # Two halves of a minibatch at once where Python is but a small part of it; of small networks, each
        # product is shared out, and of the smallest nothing.
        workers = num_workers(spaces, compute) if self.HALVES else 1
        products = config.batch_size * sum(weight.numel() for weight in critics.parameters())
        self._large = (
            compute.device.type == "cpu" and not sees_images(spaces.observation) and products >= WORTH_SHARING
        )
        new_optimizer = one_for_all(config.optimizer, config.max_grad_norm)
        self._policy = Trained(policy, compute, workers, new_optimizer)
        self._critics = Trained(critics, compute, workers, new_optimizer)
        self._judges = self._critics.frozen()
        """The critics themselves, for a policy that learns by them."""
        self._policy_stream = streams.numpy("policy")
        self._noise_stream = streams.torch("noise", compute.device)
        self._experience = Experience(config, spaces, clock, streams, compute, actions.stored)
        self._errors = torch.zeros(config.batch_size, device=compute.device)
        """Of each sample of a minibatch, the mean over the critics. [batch_size]"""
        self._critic_averages = Averages(self.CRITIC_STATISTICS, compute.device)
        self._policy_averages = Averages(self.POLICY_STATISTICS, compute.device)

    @classmethod
    def check_config(cls, config: ReplayActorCriticConfig, env: Any) -> None:
        """Raises InputError if memory, minibatch and budget contradict each other."""
        check_experience(config, env)

    @classmethod
    def check_spaces(cls, agent: str, config: ReplayActorCriticConfig, spaces: Spaces) -> None:
        """Raises InputError for spaces in which `agent` cannot act or that its networks cannot read."""
        check_actions(agent, spaces.action)
        check_memory(config, spaces)
        if isinstance(spaces.action, gym.spaces.Box):
            BoxActions.check(spaces.action, agent)
        torso, other = config.network.torso, config.network.critic_torso
        check_torso(torso, spaces, whole_minibatches=not cls.HALVES)
        if other is not None:
            try:
                check_torso(other, spaces, whole_minibatches=not cls.HALVES)
            except LabrlError as error:
                policy, critic = "agent.network.torso", "agent.network.critic_torso"
                message = str(error).replace(policy, critic)
                key = error.key and error.key.replace(policy, critic)
                raise InputError(message, code=error.code, key=key) from None
        if other is not None and other.target != torso.target and sees_images(spaces.observation):
            raise InputError(
                f"agent.network.critic_torso must have the class of agent.network.torso, {torso.target}, got "
                f"{other.target}: both read the same layout of images. Set agent.network.critic_torso=null.",
                code="contradiction",
                key="agent.network.critic_torso",
            )

    @classmethod
    def share(cls, config: ReplayActorCriticConfig, ranks: int) -> ReplayActorCriticConfig:
        """What one of several ranks learns with. Raises InputError if it has no equal part."""
        return experience_share(config, ranks)

    @property
    def _delayed(self) -> Mapping[str, Delayed[Any]]:
        """Twins that follow, by name."""
        return {}

    @abstractmethod
    def _explore(self, outputs: NDArray) -> NDArray:
        """Actions that collect experience, from outputs of the policy. [num_envs, *stored]"""

    @abstractmethod
    def _learn_from(self, batch: Batch, update: int) -> None:
        """Update number `update`, counted from 1; the critics' errors go to `_errors`."""

    def act(self, observation: NDArray) -> NDArray:
        """Exploring actions for the environments. [num_envs, ...]"""
        if self._experience.acts_at_random:
            action = self._actions.random(len(observation), self._policy_stream)
        else:
            action = self._explore(self._outputs(observation))
        self._observation, self._action = observation, action
        return self._actions.to_env(action)

    def decision(self) -> dict[str, NDArray]:
        """Actions, as the memory keeps them."""
        return {"action": self._action}

    def adopt(self, observation: NDArray, decision: Mapping[str, NDArray]) -> None:
        """As if it had acted so itself."""
        self._observation, self._action = observation, decision["action"]

    def evaluation_action(self, observation: NDArray, generator: np.random.Generator) -> NDArray:
        """The best actions: those of the policy without its noise. [num_envs, ...]"""
        return self.greedy_action(observation)

    def greedy_action(self, observation: NDArray) -> NDArray:
        """The best actions. [num_envs, ...]"""
        return self._actions.to_env(self._actions.best(self._outputs(observation)))

    def observe(self, step: Step) -> None:
        """Remember the outcome of the last actions."""
        self._experience.add(self._observation, self._action, step)

    @property
    def collecting(self) -> bool:
        """Whether environments are to be played now."""
        return self._experience.collecting

    @property
    def frames_played(self) -> int:
        """Frames so far in which they were."""
        return self._experience.frames_played

    def learn(self) -> int:
        """Make the updates that fell due by this vector step. Returns how many."""
        before = self._clock.frame
        now = before + self._experience.frames_per_step  # the clock ticks afterwards
        for twin in self._delayed.values():
            twin.frames_passed(before, now)
        count = self._experience.due()
        if count:
            with self._compute.within_products(self._large):
                for _ in range(count):
                    self._update()
        return count

    def _update(self) -> None:
        """Learn from one minibatch."""
        sample = self._experience.sample()
        self._learn_from(self._batch(sample), self._experience.updates + 1)
        self._experience.updates += 1
        self._experience.update_priorities(sample.index, self._errors.cpu().numpy())

    def metrics(self) -> dict[str, float]:
        """Averages over some 100 updates; coefficients at this frame."""
        frame = self._clock.frame
        return {
            **self._critic_averages.named(),
            **self._policy_averages.named(),
            "lr": value_at(self._lr, frame),
            "critic_lr": value_at(self._critic_lr, frame),
            "updates": self._experience.updates,
            "memory_size": len(self._experience.memory),
            "weight_norm": self._policy.norm,
            "weight_norm_critic": self._critics.norm,
            **{f"{name}_distance": twin.distance for name, twin in self._delayed.items()},
        }

    def modules(self) -> dict[str, nn.Module]:
        """The networks that learn, and those that follow."""
        twins = {name: twin.network for name, twin in self._delayed.items()}
        return {"policy": self._policy.network, "critics": self._critics.network, **twins}

    def acting_modules(self) -> dict[str, nn.Module]:
        """The policy."""
        return {"policy": self._policy.network}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizers, memory, and the averages of the next metrics row."""
        return {
            "policy": self._policy.state_dict(),
            "critics": self._critics.state_dict(),
            "delayed": {name: twin.network.state_dict() for name, twin in self._delayed.items()},
            "experience": self._experience.state_dict(),
            "critic_averages": self._critic_averages.state_dict(),
            "policy_averages": self._policy_averages.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state."""
        self._policy.load_state_dict(state["policy"])
        self._critics.load_state_dict(state["critics"])
        for name, twin in self._delayed.items():
            twin.network.load_state_dict(state["delayed"][name])
        self._experience.load_state_dict(state["experience"])
        self._critic_averages.load_state_dict(state["critic_averages"])
        self._policy_averages.load_state_dict(state["policy_averages"])

    def close(self) -> None:
        """End the worker threads and let go of the memory."""
        self._policy.close()
        self._critics.close()
        self._experience.close()

    def _outputs(self, observation: NDArray) -> NDArray:
        """Of the policy. [n, *obs] -> [n, num_outputs]"""
        with torch.inference_mode(), self._compute.autocast():
            network = self._policy.network
            return network.forward(self._compute.tensor(network.layout(observation))).cpu().numpy()

    def _batch(self, sample: Sample) -> Batch:
        layout, tensor = self._policy.network.layout, self._compute.tensor
        return Batch(
            tensor(layout(sample.observation)),
            tensor(sample.action),
            tensor(sample.reward),
            tensor(layout(sample.next_observation)),
            tensor(sample.discount),
            tensor(sample.weight),
        )

    def _step(
        self, trained: Trained[Any], averages: Averages, statistics: Tensor, lr: NonNegativeSchedule
    ) -> None:
        """Follow the gradient that was just computed. Raises NonFiniteError."""
        frame = self._clock.frame
        norm = trained.step(value_at(lr, frame))
        if not math.isfinite(norm):
            finite_loss = math.isfinite(float(statistics[0]))
            raise NonFiniteError(averages.names[-1 if finite_loss else 0], frame)
        averages.add(torch.cat([statistics, statistics.new_tensor([norm])]))

    def _critic_statistics(self, share: slice, loss: Tensor, values: Tensor, target: Tensor) -> Tensor:
        """All but the last of CRITIC_STATISTICS as means of a share; each sample's error to its place.

        values: of the actions taken, [critics, share]; target: [share].
        """
        with torch.no_grad():
            error = torch.sub(values, target).abs_().mean(0)
            self._errors[share] = error
            return torch.stack((loss, error.mean(), values.mean()))
