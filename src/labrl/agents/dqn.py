"""Deep Q-networks (Mnih et al., 2015, doi:10.1038/nature14236) and their extensions.

The extensions are double (arXiv:1509.06461), dueling (arXiv:1511.06581), prioritized (arXiv:1511.05952),
n-step returns, C51 (arXiv:1707.06887), QR-DQN (arXiv:1710.10044), noisy networks (arXiv:1706.10295), and
Rainbow (arXiv:1710.02298), which combines all except QR-DQN. All use the same update, whose parts are
selected in YAML. With a recurrent network, DQN learns from sequences, like R2D2 (Kapturowski et al., 2019).
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
from torch import Tensor, nn

from labrl.agents.agent import Actor, Agent, NonFiniteError, Observation, Traits, joined, wrong_statistics
from labrl.agents.parts.action_values import ActionValues, ValuePolicy, ValuePolicyConfig, select_outputs
from labrl.agents.parts.experience import (
    Experience,
    ExperienceConfig,
    experience_for_rank,
)
from labrl.agents.parts.targets import TargetNetwork
from labrl.clock import Clock
from labrl.component import Component
from labrl.learning.compute import Compute
from labrl.memory import Transitions
from labrl.memory.rollout import Segments, reset_states
from labrl.memory.sequences import SequenceSample
from labrl.networks.q_network import QNetwork
from labrl.schedules import value_at
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.step import Step


@dataclass(kw_only=True)
class DQNConfig(ExperienceConfig, ValuePolicyConfig):
    """Options of the DQN family."""

    value: Component
    """Meaning of the network's outputs: expected returns, or distributions or quantiles of returns."""
    target: Component
    """Update rule of the target network."""
    double: bool
    """Whether the online network chooses the next action (double DQN); otherwise the target network does. In
    both cases, the target network computes the action's value."""


def td_loss(
    value: ActionValues,
    outputs: Tensor,
    next_outputs: Tensor,
    selector_outputs: Tensor,
    reward: Tensor,
    discount: Tensor,
    weight: Tensor,
    next_mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute the weighted mean loss of Z(s, a) against r + gamma^n Z'(s', argmax over a' of E Z''(s', a')).

    outputs: outputs of the online network Z for the actions taken, [n, outputs]; next_outputs,
    selector_outputs: outputs after n steps of the target network Z' and of the network Z'' that chooses the
    next action (Z if `double`, otherwise Z'), [n, actions, outputs] each; reward, discount, weight: [n];
    next_mask: valid next actions, [n, actions]. Returns the mean loss, and DQN.ROWS of each transition,
    [3, n].
    """
    expected = value.expected(selector_outputs.detach())
    if next_mask is not None:
        expected = expected.masked_fill(~next_mask, -math.inf)
    target = value.target(select_outputs(next_outputs.detach(), expected.argmax(1)), reward, discount)
    losses, errors = value.loss(outputs, target)
    rows = torch.stack((losses.detach(), errors.detach(), value.expected(outputs.detach())))
    return torch.dot(losses, weight / losses.shape[0]), rows


class DQN(Agent):
    """Acts with its action values, stores transitions, and learns from minibatches of them.

    With a recurrent network, each sequence is replayed from the recurrent state with which it was collected.
    The burn-in updates this state without gradients, separately for the online and the target network (R2D2,
    section 3). Three parts of R2D2 are not included: rescaled values, the last action and reward as inputs,
    and multiple actors.
    """

    Config = DQNConfig
    NAME = "dqn"
    TRAITS = Traits(
        actions=(gym.spaces.Discrete,),
        masks=True,
        greedy=True,
        exports=True,
        stochastic=False,
        data_parallel=True,
        learns_from_copies=True,
        graphs=True,
    )
    ROWS = ("loss", "td_error", "q_mean")
    """Names of the statistics of each transition in a minibatch; td_error determines priorities."""
    AVERAGING = 0.01
    """Weight of each new update in the running averages of the metrics. 0.01 averages over about 100
    updates."""

    def __init__(
        self, config: DQNConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        self.config = config
        """Options of the agent."""
        self.clock = clock
        """Number of frames so far, and further counts."""
        self.value: ActionValues = config.value.build(device=compute.device)
        """Meaning of the networks' outputs; `value.expected` converts outputs to action values."""
        acting_value: ActionValues = config.value.build(device=torch.device("cpu"))
        self._policy = ValuePolicy(config, acting_value, spaces, clock, streams, compute)
        self.target: TargetNetwork[Any] = config.target.build(learner=self._policy.learner)
        """Target network; `target.forward_network(observation).outputs` are its outputs for all actions."""
        self._recurrent = self._policy.network.state_size > 0
        self.experience = Experience(
            config,
            spaces,
            clock,
            streams,
            compute,
            num_masked=self._policy.num_actions if spaces.masked else 0,
            state_size=self._policy.network.state_size,
        )
        self.pauses = self.experience.pauses
        self._state = np.zeros((spaces.num_envs, self._policy.network.state_size), np.float32)
        self._evaluation_state = self._state
        self._rows = torch.full((len(self.ROWS), config.batch_size), math.nan, device=compute.device)
        self._average, self._average_norm = self._rows.clone(), math.nan
        self._noise: Tensor | None = None

    @classmethod
    def for_rank(cls, config: DQNConfig, ranks: int) -> DQNConfig:
        """Return one rank's share of the options. Raises InputError if they cannot be divided equally."""
        learned = config.memory.config.learned if config.memory.load().TRAITS.sequences else 1
        return experience_for_rank(config, ranks, sequence_length=learned)

    def act(self, observation: Observation) -> NDArray:
        """Choose valid actions for the environments, with exploration. [num_envs]"""
        policy, self._observation, self._before = self._policy, observation, self._state
        self._action, self._state = policy.choose(
            policy.learner.layout(observation.array),
            observation.mask,
            self._before,
            at_random=self.experience.acts_at_random,
        )
        return policy.to_env(self._action)

    def observe(self, step: Step) -> None:
        """Store the outcome of the last actions, and reset recurrent states where episodes are over."""
        seen = self._observation
        self.experience.memory.add(seen.array, self._action, step, seen.mask, self._before)
        if self._recurrent:  # not after a lost life, because earlier observations remain useful
            self._state = reset_states(self._state, step.episode_over, len(self._state))

    def learn(self) -> int:
        """Make the updates that are due after this vector step. Returns the number of updates.

        Raises NonFiniteError.
        """
        before = self.clock.frame  # the clock ticks afterwards
        self.target.frames_passed(before, before + self.experience.frames_per_step)
        count, learner = self.experience.due(), self._policy.learner
        for _ in range(count):
            lr = value_at(self.config.lr, before)
            sample = self.experience.sample(learner)
            # Online network, target network and, for single transitions, the choice of the next action have
            # separate noise.
            self._noise = self._policy.noise(2 if self._recurrent else 3, self._noise)
            if self._recurrent:
                self._rows, norm = learner.update(self.sequence_loss, sample, lr, samples=sample.at.shape[1])
            else:
                self._rows, norm = learner.update(self.loss, sample, lr)
            if self._rows.shape[0] != len(self.ROWS):
                raise wrong_statistics(self, "ROWS", self.ROWS, len(self._rows))
            # On a GPU, the norm is a tensor, which nothing waits for until a row or a checkpoint needs it.
            if not isinstance(norm, Tensor):
                self._check_finite(norm)
            if self.experience.updates:
                self._average.lerp_(self._rows, self.AVERAGING)
                self._average_norm = self._average_norm + self.AVERAGING * (norm - self._average_norm)
            else:
                self._average.copy_(self._rows)
                self._average_norm = norm * 1  # a copy, because the next update may overwrite the tensor
            self.experience.updates += 1
            if self.experience.prioritized:
                error = self._rows[self.ROWS.index("td_error")].cpu().numpy()
                self.experience.update_priorities(sample.index, error)
            self.target.updated()
        return count

    def _check_finite(self, norm: float) -> None:
        """Raise NonFiniteError if the norm of a gradient is not finite."""
        if not math.isfinite(norm):
            finite_loss = math.isfinite(float(self._rows[0].sum()))
            raise NonFiniteError("grad_norm" if finite_loss else "loss", self.clock.frame)

    def _finite_norm(self) -> float:
        """Return the average norm of the gradient, nan before the first update. Raises NonFiniteError."""
        norm = float(self._average_norm)
        if self.experience.updates:
            self._check_finite(norm)
        return norm

    def loss(self, network: QNetwork, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Compute `objective` of transitions, with separate noise for each of the three networks."""
        online, delayed, choosing = (None, None, None) if self._noise is None else self._noise
        with torch.no_grad():
            next_outputs = selector_outputs = self.target.forward_network(
                batch.next_observation, noise=delayed
            ).outputs
            if self.config.double:
                selector_outputs = network(batch.next_observation, noise=choosing).outputs
        outputs = network(batch.observation, noise=online).outputs
        return self.objective(batch, batch.weight, outputs, next_outputs, selector_outputs)

    def sequence_loss(self, network: QNetwork, batch: SequenceSample) -> tuple[Tensor, Tensor]:
        """Compute `objective` of sequences after their burn-in, with separate noise for each network."""
        online, delayed = (None, None) if self._noise is None else self._noise
        first = torch.from_numpy(batch.rows.begin[:-1, None]).to(batch.at.device)
        at, following = (batch.at + first).flatten(), (batch.following + first).flatten()
        with torch.no_grad():
            next_outputs = self._replay(self.target.forward_network, batch, delayed)[following]
        own = self._replay(network, batch, online)
        selector_outputs = own.detach()[following] if self.config.double else next_outputs
        weight = batch.weight.repeat_interleave(batch.at.shape[1])
        return self.objective(batch, weight, own[at], next_outputs, selector_outputs)

    def objective(
        self,
        batch: Transitions | SequenceSample,
        weight: Tensor,
        outputs: Tensor,
        next_outputs: Tensor,
        selector_outputs: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute `td_loss`, the part of the loss that follows the networks.

        batch: minibatch with `action`, `reward`, `discount` and `next_mask`; weight: importance weights, [n];
        outputs: outputs of the online network Z in the states, for all actions; next_outputs,
        selector_outputs: outputs after n steps, of the target network and of the network that chooses the
        next action; [n, actions, outputs] each. Returns a scalar to be minimized, and ROWS of each
        transition, [3, n]. A derived agent adds a term, or replaces the target, and appends its own rows.
        """
        reward, discount, mask = batch.reward, batch.discount, batch.next_mask
        taken = select_outputs(outputs, batch.action)
        return td_loss(self.value, taken, next_outputs, selector_outputs, reward, discount, weight, mask)

    def _replay(self, network: Callable[..., Any], batch: SequenceSample, noise: Tensor | None) -> Tensor:
        """Compute the outputs for the rows of sequences that follow the burn-in. [rows, actions, outputs]"""
        state, before, rows = batch.state, batch.burn_in, batch.rows
        if len(before.observation):
            segments = Segments.of_rows(before.start, before.begin)
            with torch.no_grad():
                after = network(before.observation, segments.states(state), segments.lengths).state
            state = after[torch.from_numpy(segments.last).to(state.device)]
        segments = Segments.of_rows(rows.start, rows.begin)
        return network(rows.observation, segments.states(state), segments.lengths, noise).outputs

    def evaluation_action(self, observation: Observation, generator: np.random.Generator) -> NDArray:
        """Return the best actions, with the mean weights of a noisy network. [num_envs]"""
        return self.greedy_action(observation)

    def greedy_action(self, observation: Observation) -> NDArray:
        """Return the best actions, with the mean weights of a noisy network. [num_envs]"""
        policy, inputs = self._policy, self._policy.learner.layout(observation.array)
        before = reset_states(self._evaluation_state, observation.start, len(inputs))
        values, self._evaluation_state = policy.values(inputs, observation.mask, before)
        return policy.to_env(values.argmax(1))

    def actor(self, sampled: bool) -> Actor:
        """Return the greedy policy as one module."""
        return self._policy.actor()

    def decision(self) -> dict[str, NDArray]:
        """Return the last actions, counted from 0, and the recurrent state before them."""
        return {"action": self._action, **({"state": self._before} if self._recurrent else {})}

    def adopt(self, observation: Observation, decision: Mapping[str, NDArray]) -> None:
        """Register the actions that a copy of the agent chose for `observation`."""
        self._observation, self._action = observation, decision["action"]
        self._before = decision["state"] if self._recurrent else self._state

    def metrics(self) -> dict[str, float]:
        """Return averages over about 100 updates, the last update's largest action value, and coefficients.

        Raises NonFiniteError.
        """
        others = {
            "q_max": float(self._rows[self.ROWS.index("q_mean")].max()),
            "grad_norm": self._finite_norm(),
            **self._policy.coefficients(),
            "updates": self.experience.updates,
            "memory_size": len(self.experience.memory),
            "target_distance": self.target.distance,
            "weight_norm": self._policy.learner.weight_norm,
        }
        return joined(self, zip(self.ROWS, self._average.mean(1).tolist(), strict=True), others)

    def modules(self) -> dict[str, nn.Module]:
        """Return the network that learns and its target network."""
        return {"q_network": self._policy.network, "target": self.target.network}

    def followers(self) -> dict[str, str]:
        """Return a dict from the target network's name to the name of the network that it follows."""
        return {"target": "q_network"}

    def acting_modules(self) -> dict[str, nn.Module]:
        """Return the network that learns."""
        return {"q_network": self._policy.network}

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer, replay buffer, recurrent state, and averages for a metrics row."""
        return {
            **self._policy.learner.state_dict(),
            "target": self.target.network.state_dict(),
            "experience": self.experience.state_dict(),
            "state": self._state,
            "rows": self._rows,
            "average": self._average,
            "average_norm": self._finite_norm(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._policy.learner.load_state_dict(state)
        self.target.network.load_state_dict(state["target"])
        self.experience.load_state_dict(state["experience"])
        self._state = state["state"]
        for rows, saved in ((self._rows, state["rows"]), (self._average, state["average"])):
            # Only the means are reported, which remain correct if +force has changed the batch size.
            rows.copy_(saved if saved.shape == rows.shape else saved.mean(1, keepdim=True))
        self._average_norm = float(state["average_norm"])

    def close(self) -> None:
        """Stop the worker threads and close the replay buffer."""
        self._policy.learner.close()
        self.experience.close()
