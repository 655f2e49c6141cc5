"""Off-policy actor-critic with policy, critics and replay buffer: the base of SAC, TD3 and their variants."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.agent import Actor, Agent, Observation, Traits, check_finite, joined, wrong_statistics
from labrl.agents.parts.experience import (
    Experience,
    ExperienceConfig,
    experience_for_rank,
)
from labrl.agents.parts.exploration import uniform_valid
from labrl.agents.parts.noise import HeldNoise
from labrl.agents.parts.targets import TargetNetwork
from labrl.clock import Clock
from labrl.component import Component
from labrl.learning.compute import Compute
from labrl.learning.learner import Learner, Loss
from labrl.learning.make import make_learner
from labrl.memory import Transitions
from labrl.networks.actions import Actions, BoxActions, mask_logits
from labrl.networks.building import build_networks
from labrl.networks.critics import Critics, PolicyAndCriticsConfig, PolicyNetwork
from labrl.networks.layers import StateDependentConfig
from labrl.schedules import value_at
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.step import Step
from labrl.types import NonNegativeSchedule, PositiveFloat

AVERAGING = 0.01
"""Weight of each new update in the running averages of statistics. 0.01 averages over about 100 updates."""


@dataclass(kw_only=True)
class ReplayActorCriticConfig(ExperienceConfig):
    """Options of all off-policy actor-critics."""

    network: PolicyAndCriticsConfig
    """Networks of the policy and the critics."""
    optimizer: Component
    """Optimizer of the weights of policy and critics."""
    lr: NonNegativeSchedule
    """Learning rate, >= 0."""
    critic_lr: NonNegativeSchedule | None
    """Learning rate of the critics, >= 0; null: the same as `lr`."""
    max_grad_norm: PositiveFloat | None
    """Maximum Euclidean norm of the gradients of the policy and of the critics, > 0; gradients with a larger
    norm are scaled down; null: no limit."""


class ReplayActor(Actor):
    """A policy network and a function that chooses actions from its outputs."""

    def __init__(self, network: PolicyNetwork, choose: Callable[[Tensor], Tensor]) -> None:
        """choose: function from the network's outputs to actions for the environment, as tensors."""
        super().__init__()
        self.network, self._choose = network, choose
        self.normalization: nn.Module | None = None
        """Normalization of the network's input; None if there is none."""

    def layout(self, observation: Any) -> Tensor:
        """Return the network's input. observation: a tensor [batch, *obs], or a dict of such tensors."""
        read = super().layout(observation)
        return read if self.normalization is None else self.normalization(read)

    def forward(
        self, inputs: Tensor, mask: Tensor | None, state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return actions, the network's outputs and the state, which is None."""
        outputs = mask_logits(self.network(inputs), mask)
        return self._choose(outputs), outputs, state


class ReplayAgent(Agent):
    """Off-policy actor-critic with networks, learners, replay buffer and the loop of updates.

    A derived agent defines `update`.
    """

    config: Any
    """Options of the agent."""

    TRAITS = Traits(
        actions=(gym.spaces.Discrete, gym.spaces.Box),
        greedy=True,
        exports=True,
        data_parallel=True,
        learns_from_copies=True,
    )
    CRITIC_STATISTICS: ClassVar[tuple[str, ...]] = ("loss_critic", "td_error", "q_mean")
    """Names of the statistics of each row that the critics' loss returns. Metrics are averages over about 100
    updates; td_error determines priorities."""
    POLICY_STATISTICS: ClassVar[tuple[str, ...]] = ("loss_policy",)
    """Names of the means that the policy's loss returns."""

    def __init__(
        self,
        config: ReplayActorCriticConfig,
        spaces: Spaces,
        clock: Clock,
        streams: Streams,
        compute: Compute,
        *,
        actions: Actions,
        num_critics: int,
        critic_outputs: int = 1,
        sde: StateDependentConfig | None = None,
    ) -> None:
        """critic_outputs: number of outputs of a critic for a continuous action; sde: options of
        state-dependent exploration; None: no such exploration."""
        self.config, self._ranks, self.actions = config, compute.ranks, actions
        self.clock = clock
        """Number of frames so far, and further counts."""
        critic_lr = config.lr if config.critic_lr is None else config.critic_lr
        whole = not self.TRAITS.loss_is_mean
        policy, critics = build_networks(
            lambda: (
                PolicyNetwork(
                    config.network.torso,
                    spaces.observation,
                    actions.num_parameters,
                    None if sde is None else sde.log_std_init,
                ),
                Critics(config.network, spaces, num_critics, critic_outputs),
            ),
            streams.seed_of("initialization"),
            spaces,
            whole_minibatches=whole,
        )
        learns: dict[str, Any] = {
            "optimizer": config.optimizer,
            "max_grad_norm": config.max_grad_norm,
            "batch_size": config.batch_size,
            "whole_minibatches": whole,
        }
        self.policy = make_learner(policy, spaces, compute, **learns)
        self.critics = make_learner(critics, spaces, compute, **learns)
        # Layers use the statistics of a minibatch only if an agent switches to training mode.
        policy.eval()
        self.policy_network = self.policy.forward_network
        """Function that computes the policy in the session's precision, for the loss of the critics."""
        self.frozen_critics = self.critics.accelerate(self.critics.frozen().eval())
        """Function that computes the critics for the policy's loss, with gradients only for the inputs."""
        self.targets: dict[str, TargetNetwork[Any]] = {}
        """Target networks by name; the derived agent creates them."""
        num_masked = actions.num_parameters if spaces.masked else 0
        self.experience = Experience(
            config, spaces, clock, streams, compute, actions.stored, num_masked=num_masked
        )
        self.pauses = self.experience.pauses
        self.policy_stream = streams.numpy("policy")
        self._held = None if sde is None else HeldNoise(sde, spaces.num_envs, policy.outputs)
        self.follows: dict[str, tuple[Learner[Any], NonNegativeSchedule, tuple[str, ...]]] = {
            "critics": (self.critics, critic_lr, (*self.CRITIC_STATISTICS, "grad_norm_critic")),
            "policy": (self.policy, config.lr, (*self.POLICY_STATISTICS, "grad_norm_policy")),
        }
        """Learners by name, each with its learning rate and the names of its averages; the last average is
        the norm of the gradient."""
        # Exponential averages of each learner, numbers or a tensor, by the name of the last one.
        self._averages: dict[str, Any] = {}
        self._weight: Any = AVERAGING  # weight of the next update in averages on a GPU
        # Functions that follow each update of a learner: the agent's own, and one that also averages.
        self._finish: dict[str, tuple[Any, Callable[[Tensor, Any], None]]] = {}

    @classmethod
    def fits(cls, space: gym.Space[Any]) -> bool:
        """Return whether the agent supports an action space; a Box must have bounds and real numbers."""
        return super().fits(space) and (not isinstance(space, gym.spaces.Box) or BoxActions.fits(space))

    @classmethod
    def for_rank(cls, config: Any, ranks: int) -> Any:
        """Return one rank's share of the options. Raises InputError if they cannot be divided equally."""
        return experience_for_rank(config, ranks)

    def layout(self, observation: NDArray) -> Any:
        """Return observations, [n, *obs], in the networks' layout, as an array or a tensor."""
        return self.policy.layout(observation)

    def act(self, observation: Observation) -> NDArray:
        """Draw actions from the policy, or uniformly random ones at the start. [num_envs, ...]"""
        count, mask, stream = len(observation.array), observation.mask, self.policy_stream
        if self.experience.acts_at_random:
            if mask is None:
                action = self.actions.random(count, stream)
            else:
                action = uniform_valid(mask, stream.random(count))
        elif self._held is None:
            outputs = mask_logits(self.policy.forward(self.layout(observation.array)), mask)
            action = self.actions.sample_or_mode(outputs, self.actions.noise(outputs, stream))
        else:
            both = self.policy.forward(self.layout(observation.array), self._held.sample(stream))
            action = self.actions.sample_or_mode(*np.split(both, [self.actions.num_parameters], axis=1))
        self._observation, self._action = observation, action
        return self.actions.to_env(action)

    def observe(self, step: Step) -> None:
        """Store the outcome of the last actions."""
        self.experience.memory.add(self._observation.array, self._action, step, self._observation.mask)

    def learn(self) -> int:
        """Make the updates that are due after this vector step. Returns the number of updates."""
        before, experience = self.clock.frame, self.experience
        for target in self.targets.values():
            target.frames_passed(before, before + experience.frames_per_step)
        count = experience.due()
        for _ in range(count):
            batch = experience.sample(self.policy, self.layout)
            error = self.update(batch)
            if experience.prioritized:
                experience.update_priorities(batch.index, error.cpu().numpy())
        return count

    @abstractmethod
    def update(self, batch: Transitions) -> Tensor:
        """Make one update of all networks. Returns the error of each row of the minibatch. [batch]"""

    def descend(
        self,
        name: str,
        loss: Loss[Transitions],
        batch: Transitions,
        after: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """Make one update of a learner, and count it if it is an update of the critics.

        name: name of the learner in `follows`; after: function that is called with the statistics of the
        loss; a CUDA graph that repeats the update includes this call. Returns the statistics of the loss:
        means, [k], or statistics of each row, [k, rows]. Raises NonFiniteError, and InputError if the
        statistics are more or fewer than their names.
        """
        learner, lr, names = self.follows[name]
        if name not in self._finish or self._finish[name][0] != after:

            def finish(statistics: Tensor, norm: Any) -> None:
                self._average(name, statistics, norm)
                if after is not None:
                    after(statistics)

            self._finish[name] = after, finish  # always the same function, by which graphs are found
        if not learner.waits and names[-1] not in self._averages:
            self._averages[names[-1]] = torch.zeros(len(names), device=learner.device)
            self._weight = learner.scalar("averaging", 1.0)
        elif not learner.waits:
            self._weight = learner.scalar("averaging", AVERAGING)
        lr_now = value_at(lr, self.clock.frame)
        statistics, _ = learner.update(loss, batch, lr_now, after=self._finish[name][1])
        self.experience.updates += name == "critics"
        return statistics

    def _average(self, name: str, statistics: Tensor, norm: Any) -> None:
        """Add the statistics and the gradient's norm of an update to the averages of a learner.

        On a GPU, nothing waits for the averages until a row or a checkpoint needs them.
        """
        names = self.follows[name][2]
        if statistics.shape[0] != len(names) - 1:
            attribute = f"{name.removesuffix('s').upper()}_STATISTICS"
            raise wrong_statistics(self, attribute, names[:-1], len(statistics))
        means = statistics.mean(1) if statistics.ndim == 2 else statistics
        if isinstance(norm, Tensor):
            average: Tensor = self._averages[names[-1]]
            average.lerp_(torch.cat((means, norm.view(1))), self._weight)
            return
        if means is not statistics and self._ranks.size > 1:
            self._ranks.all_reduce_mean_(means)
        values = [*means.tolist(), norm]
        if not math.isfinite(norm):
            check_finite(self.clock.frame, {names[0]: values[0], names[-1]: norm})
        if names[-1] not in self._averages:
            self._averages[names[-1]] = values
        averages = self._averages[names[-1]]
        for place, value in enumerate(values):
            averages[place] += AVERAGING * (value - averages[place])

    def evaluation_action(self, observation: Observation, generator: np.random.Generator) -> NDArray:
        """Return the policy's best actions. [num_envs, ...]"""
        return self.greedy_action(observation)

    def greedy_action(self, observation: Observation) -> NDArray:
        """Return the policy's best actions. [num_envs, ...]"""
        outputs = mask_logits(self.policy.forward(self.layout(observation.array)), observation.mask)
        return self.actions.to_env(self.actions.sample_or_mode(outputs))

    def actor(self, sampled: bool) -> Actor:
        """Return the policy as one module."""
        return ReplayActor(self.policy.network, partial(self.actions.forward_torch, sampled=sampled))

    def decision(self) -> dict[str, NDArray]:
        """Return the last actions, in the form in which they are stored."""
        return {"action": self._action}

    def adopt(self, observation: Observation, decision: Mapping[str, NDArray]) -> None:
        """Register the actions that a copy of the agent chose for `observation`."""
        self._observation, self._action = observation, decision["action"]

    def metrics(self) -> dict[str, float]:
        """Return averages over about 100 updates, and coefficients at the current frame."""
        frame = self.clock.frame
        others = {
            "lr": value_at(self.follows["policy"][1], frame),
            "critic_lr": value_at(self.follows["critics"][1], frame),
            "updates": self.experience.updates,
            "memory_size": len(self.experience.memory),
            "weight_norm": self.policy.weight_norm,
            "weight_norm_critic": self.critics.weight_norm,
            **{f"{name}_distance": target.distance for name, target in self.targets.items()},
        }
        return joined(self, self.averages("critics"), self.averages("policy"), others)

    def averages(self, name: str) -> dict[str, float]:
        """Return the averages of a learner's statistics, nan before the first update.

        Raises NonFiniteError.
        """
        names = self.follows[name][2]
        found = self._averages.get(names[-1])
        if found is None:
            return joined(self, ((name, math.nan) for name in names))
        values = found.tolist() if isinstance(found, Tensor) else found
        averages = joined(self, zip(names, values, strict=True))
        check_finite(self.clock.frame, averages)
        return averages

    def modules(self) -> dict[str, nn.Module]:
        """Return the networks that learn, and their targets."""
        targets = {name: target.network for name, target in self.targets.items()}
        return {"policy": self.policy.network, "critics": self.critics.network, **targets}

    def followers(self) -> dict[str, str]:
        """Return the name of the network that each target network follows: policy or critics."""
        return {
            name: "policy" if target.followed is self.policy.flat.vector else "critics"
            for name, target in self.targets.items()
        }

    def acting_modules(self) -> dict[str, nn.Module]:
        """Return the policy."""
        return {"policy": self.policy.network}

    def parts(self) -> dict[str, Any]:
        """Return the parts with a `state_dict`, by their names in the agent's state."""
        learners = {name: learner for name, (learner, _, _) in self.follows.items()}
        noise = {} if self._held is None else {"noise": self._held}
        return {**learners, "experience": self.experience, **noise}

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizers, replay buffer, and the averages for the next metrics row."""
        return {
            **{name: part.state_dict() for name, part in self.parts().items()},
            "targets": {name: target.network.state_dict() for name, target in self.targets.items()},
            "averages": {
                names[-1]: list(self.averages(name).values())
                for name, (_, _, names) in self.follows.items()
                if names[-1] in self._averages
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        for name, part in self.parts().items():
            part.load_state_dict(state[name])
        for name, target in self.targets.items():
            target.network.load_state_dict(state["targets"][name])
        for learner, _, names in self.follows.values():
            saved = state["averages"].get(names[-1])
            if saved is not None:
                on_device = torch.tensor(saved, device=learner.device)
                self._averages[names[-1]] = list(saved) if learner.waits else on_device

    def close(self) -> None:
        """Stop the worker threads and close the replay buffer."""
        for learner, _, _ in self.follows.values():
            learner.close()
        self.experience.close()


def select_q(values: Tensor, action: Tensor) -> Tensor:
    """Return the values of the actions of a minibatch. [critics, batch, ...] -> [critics, batch]

    values: values of all actions if actions are discrete, [critics, batch, actions]; otherwise values of the
    actions taken, [critics, batch].
    """
    if values.dim() == 2:
        return values
    return values.gather(2, action.view(1, -1, 1).expand(len(values), -1, 1)).squeeze(2)


def critic_rows(losses: Tensor, values: Tensor, target: Tensor) -> Tensor:
    """Return the statistics of the critics' loss for each row: loss, mean absolute error and mean value.

    losses, target: [batch]; values: values of the actions taken, [critics, batch]. Returns [3, batch].
    """
    values = values.detach()
    return torch.stack((losses.detach(), (values - target).abs_().mean(0), values.mean(0)))
