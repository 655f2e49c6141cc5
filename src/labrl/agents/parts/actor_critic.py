"""Policy, critics and replay buffer of an off-policy actor-critic: what SAC, TD3 and their kin learn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.action_spaces import check_actions
from labrl.agents.agent import Actor, Agent, Observation, Traits, check_finite
from labrl.agents.parts.experience import (
    Experience,
    ExperienceConfig,
    Transitions,
    check_experience,
    check_memory,
    experience_for_rank,
)
from labrl.agents.parts.targets import TargetNetwork
from labrl.clock import Clock
from labrl.config.component import Component
from labrl.config.types import NonNegativeSchedule, PositiveFloat
from labrl.errors import InputError, LabrlError
from labrl.learning.compute import Compute
from labrl.learning.initialization import build_networks
from labrl.learning.learner import Learner, make_learner
from labrl.networks.critics import Critics, PolicyAndCriticsConfig, PolicyNetwork
from labrl.networks.distributions import BoxActions
from labrl.networks.spaces import Spaces, sees_images
from labrl.networks.torso import check_torso
from labrl.schedules import value_at
from labrl.seeding import Streams, derived_seed

AVERAGING = 0.01
"""Weight of an update in the averages of statistics: they reach some 100 updates back."""


@dataclass(kw_only=True)
class ReplayActorCriticConfig(ExperienceConfig):
    """Options of every off-policy actor-critic."""

    network: PolicyAndCriticsConfig
    """Policy and critics."""
    optimizer: Component
    """Optimizer of the weights of policy and critics."""
    lr: NonNegativeSchedule
    """Learning rate, >= 0."""
    critic_lr: NonNegativeSchedule | None
    """Learning rate of the critics, >= 0; null: the same as `lr`."""
    max_grad_norm: PositiveFloat | None
    """Largest Euclidean norm of the gradients of the policy and of the critics, > 0; longer ones are scaled
    down; null: no limit."""


class ReplayActorCritic:
    """Networks, learners and replay buffer, and the averages of what learning says of itself."""

    CRITIC_STATISTICS = ("loss_critic", "td_error", "q_mean", "grad_norm_critic")
    """Averaged over some 100 updates of the critics; td_error is what priorities follow."""

    def __init__(
        self,
        config: ReplayActorCriticConfig,
        spaces: Spaces,
        clock: Clock,
        streams: Streams,
        compute: Compute,
        *,
        num_outputs: int,
        stored_action: gym.Space[Any],
        num_critics: int,
        policy_statistics: tuple[str, ...],
        critic_outputs: int = 1,
        whole_minibatches: bool = False,
    ) -> None:
        """num_outputs: of the policy network; stored_action: the space of actions as they are stored;
        critic_outputs: numbers that a critic gives for a continuous action;
        policy_statistics: names of the means that the policy's loss returns; whole_minibatches: never cut one
        into slices."""
        self._clock, self._ranks = clock, compute.ranks
        self._lr = config.lr
        self.critic_lr = config.lr if config.critic_lr is None else config.critic_lr
        """Learning rate of the critics, a number or a schedule."""
        policy, critics = build_networks(
            lambda: (
                PolicyNetwork(config.network.torso, spaces.observation, num_outputs),
                Critics(config.network, spaces, num_critics, critic_outputs),
            ),
            derived_seed(streams.seed, "initialization"),
            spaces,
            compute,
            whole_minibatches=whole_minibatches,
        )
        learns: dict[str, Any] = {
            "optimizer": config.optimizer,
            "max_grad_norm": config.max_grad_norm,
            "batch_size": config.batch_size,
            "whole_minibatches": whole_minibatches,
        }
        self.policy = make_learner(policy, spaces, compute, **learns)
        self.layout: Callable[[NDArray], NDArray] = policy.layout
        """Brings observations into the form that the networks read. [n, *obs]"""
        self.critics = make_learner(critics, spaces, compute, **learns)
        # Statistics that layers keep are those of a minibatch only where an agent sets its training mode.
        policy.eval()
        self.policy_network = self.policy.forward_network
        """The policy in the session's precision, for the loss of the critics."""
        self.judge = self.critics.in_precision(self.critics.frozen().eval())
        """The critics as the policy sees them: with a gradient through them, but none for their weights."""
        self.judge_kernel: Any = self.critics.kernel
        """Kernel of the critics, for the policy's loss without autograd; None where there is none."""
        self.targets: dict[str, TargetNetwork[Any]] = {}
        """Target networks by name, made by the agent."""
        self.experience = Experience(config, spaces, clock, streams, compute, stored_action)
        self._policy_statistics = (*policy_statistics, "grad_norm_policy")
        # Exponential averages, by the name of their last statistic.
        self._averages: dict[str, NDArray[np.float64]] = {}

    def outputs(self, observation: Observation) -> NDArray:
        """Compute the outputs of the policy network. [num_envs, num_outputs]"""
        outputs: NDArray = self.policy.forward(self.layout(observation.array))
        return outputs

    def due(self) -> int:
        """Return how many updates are due with this vector step; targets take it in."""
        before = self._clock.frame
        for target in self.targets.values():
            target.frames_passed(before, before + self.experience.frames_per_step)
        return self.experience.due()

    def sample(self) -> tuple[NDArray[np.int64], Transitions]:
        """Draw a minibatch. Returns the names of its transitions, [batch], and the minibatch."""
        sample = self.experience.sample()
        return sample.index, Transitions.of(sample, self.policy, self.layout)

    def step_critics(self, rows: Tensor) -> None:
        """Follow the gradient of the critics, and count the update. Raises NonFiniteError.

        rows: statistics of their loss, made by `critic_rows`. [2 + critics, batch]
        """
        means = rows.mean(1)
        if self._ranks.size > 1:
            self._ranks.mean_(means)
        loss, error, *values = means.tolist()
        statistics = [loss, error, sum(values) / len(values)]
        self.follow(self.critics, self.critic_lr, self.CRITIC_STATISTICS, statistics)
        self.experience.updates += 1

    def step_policy(self, statistics: Tensor) -> None:
        """Follow the gradient of the policy. Raises NonFiniteError.

        statistics: of its loss, by the names given. [names]
        """
        self.follow(self.policy, self._lr, self._policy_statistics, statistics.tolist())

    def metrics(self) -> dict[str, float]:
        """Return averages over some 100 updates, and coefficients at this frame."""
        frame = self._clock.frame
        return {
            **self.averages(self.CRITIC_STATISTICS),
            **self.averages(self._policy_statistics),
            "lr": value_at(self._lr, frame),
            "critic_lr": value_at(self.critic_lr, frame),
            "updates": self.experience.updates,
            "memory_size": len(self.experience.memory),
            "weight_norm": self.policy.weight_norm,
            "weight_norm_critic": self.critics.weight_norm,
            **{f"{name}_distance": target.distance for name, target in self.targets.items()},
        }

    def modules(self) -> dict[str, nn.Module]:
        """Return the networks that learn, and their targets."""
        targets = {name: target.network for name, target in self.targets.items()}
        return {"policy": self.policy.network, "critics": self.critics.network, **targets}

    def followers(self) -> dict[str, str]:
        """Name each target network with what it follows: policy or critics."""
        return {
            name: "policy" if target.followed is self.policy.flat.vector else "critics"
            for name, target in self.targets.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizers, replay buffer, and the averages of the next metrics row."""
        return {
            "policy": self.policy.state_dict(),
            "critics": self.critics.state_dict(),
            "targets": {name: target.network.state_dict() for name, target in self.targets.items()},
            "experience": self.experience.state_dict(),
            "averages": {name: each.tolist() for name, each in self._averages.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.policy.load_state_dict(state["policy"])
        self.critics.load_state_dict(state["critics"])
        for name, target in self.targets.items():
            target.network.load_state_dict(state["targets"][name])
        self.experience.load_state_dict(state["experience"])
        self._averages = {name: np.array(each, np.float64) for name, each in state["averages"].items()}

    def close(self) -> None:
        """End the worker threads, and write out what the replay buffer has in files."""
        self.policy.close()
        self.critics.close()
        self.experience.close()

    def follow(
        self, learner: Learner[Any], lr: NonNegativeSchedule, names: tuple[str, ...], statistics: list[float]
    ) -> None:
        """Make one update, and take its statistics into their averages. Raises NonFiniteError."""
        frame = self._clock.frame
        norm = learner.step(value_at(lr, frame))
        if not math.isfinite(norm):
            check_finite(frame, {names[0]: statistics[0], names[-1]: norm})
        values = np.array([*statistics, norm])
        before = self._averages.get(names[-1], values)
        self._averages[names[-1]] = before + AVERAGING * (values - before)

    def averages(self, names: tuple[str, ...]) -> dict[str, float]:
        """Return the averages of some statistics, nan before the first update."""
        averages = self._averages.get(names[-1], np.full(len(names), math.nan))
        return dict(zip(names, averages.tolist(), strict=True))


class ReplayActor(Actor):
    """A policy network and how actions are chosen by its outputs."""

    def __init__(self, network: PolicyNetwork, choose: Callable[[Tensor], Tensor]) -> None:
        """choose: from the network's outputs to actions as the environment takes them, of tensors."""
        super().__init__()
        self.network, self._choose = network, choose
        self.normalization: nn.Module | None = None
        """Normalization of the network's input."""

    def layout(self, observation: Any) -> Tensor:
        """Return what the network reads. observation: a tensor [batch, *obs], or a dict of such."""
        read = super().layout(observation)
        return read if self.normalization is None else self.normalization(read)

    def forward(
        self, inputs: Tensor, mask: Tensor | None, state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return actions, the network's outputs and no state."""
        outputs = self.network(inputs)
        return self._choose(outputs), outputs, state


class ReplayAgent(Agent):
    """The answers that agents give alike which learn a policy and critics from a replay buffer.

    An agent that derives from it makes `_actor_critic`, sets `_observation` and `_action` where it acts, and
    defines how it acts, observes and learns. Nothing here calls any of that but its best action.
    """

    TRAITS = Traits(greedy=True, exports=True, ranks=True, learns_from_copies=True)
    _actor_critic: ReplayActorCritic
    _observation: NDArray
    """Observations that were acted on last. [num_envs, *obs]"""
    _action: NDArray
    """The last actions, as they are stored. [num_envs, ...]"""

    @classmethod
    def check_config(cls, config: Any, env: Any) -> None:
        """Raise InputError if replay buffer, minibatch and budget contradict each other."""
        check_experience(config, env)

    @classmethod
    def for_rank(cls, config: Any, ranks: int) -> Any:
        """Return the options of one of several ranks. Raise InputError where they have no equal part."""
        return experience_for_rank(config, ranks)

    def evaluation_action(self, observation: Observation, generator: np.random.Generator) -> NDArray:
        """Return the policy's best actions. [num_envs, ...]"""
        return self.greedy_action(observation)

    def decision(self) -> dict[str, NDArray]:
        """Return the last actions, as they are stored."""
        return {"action": self._action}

    def adopt(self, observation: Observation, decision: Mapping[str, NDArray]) -> None:
        """Take a copy's actions at `observation` for one's own."""
        self._observation, self._action = observation.array, decision["action"]

    def metrics(self) -> dict[str, float]:
        """Return averages over some 100 updates, and coefficients at this frame."""
        return self._actor_critic.metrics()

    def modules(self) -> dict[str, nn.Module]:
        """Return the networks that learn, and their targets."""
        return self._actor_critic.modules()

    def followers(self) -> dict[str, str]:
        """Name the target networks, with what they follow."""
        return self._actor_critic.followers()

    def acting_modules(self) -> dict[str, nn.Module]:
        """Return the policy."""
        return {"policy": self._actor_critic.policy.network}

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizers, replay buffer and averages."""
        return self._actor_critic.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self._actor_critic.load_state_dict(state)

    def close(self) -> None:
        """End the worker threads, and write out what the replay buffer has in files."""
        self._actor_critic.close()


def taken(values: Tensor, action: Tensor) -> Tensor:
    """Return the values of the actions of a minibatch. [critics, batch, ...] -> [critics, batch]

    values: of all actions where they are discrete, [critics, batch, actions], else of those taken.
    """
    if values.dim() == 2:
        return values
    return values.gather(2, action.view(1, -1, 1).expand(len(values), -1, 1)).squeeze(2)


def critic_rows(losses: Tensor, values: Tensor, target: Tensor) -> Tensor:
    """Return the statistics of each row of a critics' loss: the loss, the mean error, and the values.

    losses, target: [batch]; values: of the actions taken, [critics, batch]. Returns [2 + critics, batch].
    """
    with torch.no_grad():
        error = torch.sub(values, target).abs_().mean(0)
        return torch.cat([torch.stack((losses, error)), values])


def check_actor_critic(
    agent: str, config: ReplayActorCriticConfig, spaces: Spaces, whole_minibatches: bool = False
) -> None:
    """Raise InputError for spaces in which `agent` cannot act or that its networks cannot read."""
    check_actions(agent, spaces.action)
    check_memory(config, spaces)
    if isinstance(spaces.action, gym.spaces.Box):
        BoxActions.check(spaces.action, agent)
    torso, other = config.network.torso, config.network.critic_torso
    check_torso(torso, spaces, whole_minibatches=whole_minibatches)
    if other is None:
        return
    try:
        check_torso(other, spaces, whole_minibatches=whole_minibatches)
    except LabrlError as error:
        policy, critic = "agent.network.torso", "agent.network.critic_torso"
        message = str(error).replace(policy, critic)
        key = error.key and error.key.replace(policy, critic)
        raise InputError(message, code=error.code, key=key) from None
    if other.target != torso.target and sees_images(spaces.observation):
        raise InputError(
            f"agent.network.critic_torso must have the class of agent.network.torso, {torso.target}, got "
            f"{other.target}: both read the same layout of images. Set agent.network.critic_torso=null.",
            code="contradiction",
            key="agent.network.critic_torso",
        )
