"""Deep Q-networks (Mnih et al., 2015, doi:10.1038/nature14236), and what they grew into.

Double (arXiv:1509.06461), dueling (arXiv:1511.06581), prioritized (arXiv:1511.05952), n-step returns, C51
(arXiv:1707.06887), QR-DQN (arXiv:1710.10044), noisy networks (arXiv:1706.10295), and Rainbow
(arXiv:1710.02298), which has them all but QR-DQN: one update, put together from parts in YAML.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.action_spaces import check_actions
from labrl.agents.action_values import ActionValues
from labrl.agents.errors import NonFiniteError
from labrl.agents.experience import Experience, ExperienceConfig, check_experience, check_memory
from labrl.agents.exploration import Exploration, Values, uniform_valid
from labrl.agents.share import experience_share
from labrl.agents.target_network import Delayed
from labrl.agents.value_learning import chosen
from labrl.clock import Clock
from labrl.config.component import Component
from labrl.config.types import NonNegativeSchedule, PositiveFloat
from labrl.errors import InputError
from labrl.memory.replay import Sample
from labrl.networks.building import built, num_workers, precise
from labrl.networks.compute import Compute
from labrl.networks.gradient import joined
from labrl.networks.in_numpy import InNumpy
from labrl.networks.noisy import factor_noise
from labrl.networks.q_network import QNetwork, QNetworkConfig
from labrl.networks.spaces import Spaces
from labrl.networks.torso import check_torso
from labrl.networks.trained import Trained, one_for_all
from labrl.schedules import value_at
from labrl.seeding import Streams, derived_seed
from labrl.step import Step


@dataclass(kw_only=True)
class DQNConfig(ExperienceConfig):
    """Options of the DQN family."""

    network: QNetworkConfig
    """From observations to outputs for each action."""
    value: Component
    """What the network's outputs are: expected returns, distributions or quantiles."""
    target: Component
    """How the target network follows the online network."""
    exploration: Component
    """How actions are chosen in training."""
    double: bool
    """Whether the online network picks the next action that the target network values."""
    optimizer: Component
    """How the weights follow the gradient."""
    lr: NonNegativeSchedule
    """Learning rate, >= 0."""
    max_grad_norm: PositiveFloat | None
    """Largest Euclidean norm of a gradient, > 0; longer ones are scaled down; null: no limit."""


class DQN:
    """Acts by its action values, remembers, and learns from minibatches of what it remembers."""

    Config = DQNConfig
    NAME: ClassVar[str] = "dqn"
    """As in `agent=`."""
    REMEMBERS: ClassVar[bool] = False
    """Whether it carries a state of its network from step to step."""
    ROWS = ("loss", "td_error", "q_mean")
    """What is kept of each sample of a minibatch; td_error is what priorities follow."""
    AVERAGING = 0.01
    """Weight of the latest update in the averages of a metrics row: they reach some 100 updates back."""

    def __init__(
        self, config: DQNConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        self.check(config, spaces)
        assert isinstance(spaces.action, gym.spaces.Discrete)
        self._config, self._clock = config, clock
        self._num_actions = int(spaces.action.n)
        self._first_action = int(spaces.action.start)
        self._value: ActionValues = config.value.build(device=compute.device)
        self._exploration: Exploration = config.exploration.build()
        self._compute = compute = precise(spaces, compute)
        (self.network,) = built(
            lambda: (QNetwork(config.network, spaces, self._num_actions, self._value.num_outputs),),
            derived_seed(streams.seed, "initialization"),
            spaces,
            compute,
        )
        new_optimizer = one_for_all(config.optimizer, config.max_grad_norm)
        self._trained = Trained(self.network, compute, num_workers(spaces, compute), new_optimizer)
        self.target = Delayed(self._trained, config.target.build())
        self._policy_stream = streams.numpy("policy")
        self._noise_stream = streams.torch("noise", compute.device)
        self._experience = Experience(
            config,
            spaces,
            clock,
            streams,
            compute,
            num_masked=self._num_actions if spaces.masked else 0,
            state_size=self.network.state_size if self.REMEMBERS else 0,
        )
        self._rows = torch.full((len(self.ROWS), config.batch_size), math.nan, device=compute.device)
        self._average, self._average_norm = self._rows.clone(), math.nan

    @classmethod
    def check_config(cls, config: DQNConfig, env: Any) -> None:
        """Raises InputError if memory, minibatch, budget and exploration contradict each other."""
        check_experience(config, env, cls.REMEMBERS)
        if getattr(config.exploration.load(), "noisy", False) and config.network.noisy is None:
            raise InputError(
                f"agent.exploration: {config.exploration.target} explores by the noise of the network's "
                "weights, and with agent.network.noisy=null they have none. Set agent.network.noisy=0.5 or "
                "agent/exploration=epsilon_greedy.",
                code="contradiction",
                key="agent.exploration",
            )

    @classmethod
    def check(cls, config: DQNConfig, spaces: Spaces) -> None:
        """Raises InputError for spaces in which it cannot act or that its network cannot read."""
        check_actions(cls.NAME, spaces.action)
        check_torso(config.network.torso, spaces, cls.REMEMBERS)
        check_memory(config, spaces)

    @classmethod
    def share(cls, config: DQNConfig, ranks: int) -> DQNConfig:
        """What one of several ranks learns with. Raises InputError if it has no equal part."""
        return experience_share(config, ranks)

    def act(self, observation: NDArray, mask: NDArray[np.bool_] | None = None) -> NDArray:
        """Exploring actions for the environments, among the valid ones. [num_envs]"""
        self._observation, self._mask = observation, mask
        self._action = self._explore(
            lambda: self._values(observation, self._noise(len(observation)), mask), len(observation), mask
        )
        return self._to_env(self._action)

    def _explore(self, values: Values, count: int, mask: NDArray[np.bool_] | None) -> NDArray:
        """Actions for `count` environments, by chance alone at first. [count]"""
        frame, shape = self._clock.frame, (count, self._num_actions)
        if self._experience.acts_at_random:
            if mask is None:
                return self._policy_stream.integers(shape[1], size=shape[0])
            return uniform_valid(mask, self._policy_stream.random(shape[0]))
        heeded = {} if mask is None else {"mask": mask}
        return self._exploration.choose(values, shape, frame, self._policy_stream, **heeded)

    def decision(self) -> dict[str, NDArray]:
        """Actions, and masks where there are some."""
        return {"action": self._action, **({} if self._mask is None else {"mask": self._mask})}

    def adopt(self, observation: NDArray, decision: Mapping[str, NDArray]) -> None:
        """As if it had acted so itself."""
        self._observation, self._action = observation, decision["action"]
        self._mask = decision.get("mask")

    def evaluation_action(
        self, observation: NDArray, generator: np.random.Generator, mask: NDArray[np.bool_] | None = None
    ) -> NDArray:
        """The best actions, by the mean weights of a noisy network. [num_envs]"""
        return self.greedy_action(observation, mask)

    def greedy_action(self, observation: NDArray, mask: NDArray[np.bool_] | None = None) -> NDArray:
        """The best actions, by the mean weights of a noisy network. [num_envs]"""
        return self._to_env(self._values(observation, None, mask).argmax(1))

    def observe(self, step: Step) -> None:
        """Remember the outcome of the last actions."""
        self._experience.add(self._observation, self._action, step, self._mask)

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
        self.target.frames_passed(before, now)
        count = self._experience.due()
        for _ in range(count):
            self._update()
        return count

    def metrics(self) -> dict[str, float]:
        """Averages over some 100 updates; the largest value of the last one; coefficients at this frame."""
        frame = self._clock.frame
        return {
            **dict(zip(self.ROWS, self._average.mean(1).tolist(), strict=True)),
            "q_max": float(self._rows[-1].max()),
            "grad_norm": self._average_norm,
            "exploration": self._exploration.strength(frame),
            "lr": value_at(self._config.lr, frame),
            "updates": self._experience.updates,
            "memory_size": len(self._experience.memory),
            "target_distance": self.target.distance,
            "weight_norm": self._trained.norm,
        }

    def modules(self) -> dict[str, nn.Module]:
        """The network that learns and its delayed twin."""
        return {"q_network": self.network, "target": self.target.network}

    def acting_modules(self) -> dict[str, nn.Module]:
        """The network that learns."""
        return {"q_network": self.network}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, memory, and the averages of the next metrics row."""
        return {
            **self._trained.state_dict(),
            "target": self.target.network.state_dict(),
            "experience": self._experience.state_dict(),
            "rows": self._rows,
            "average": self._average,
            "average_norm": self._average_norm,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state."""
        self._trained.load_state_dict(state)
        self.target.network.load_state_dict(state["target"])
        self._experience.load_state_dict(state["experience"])
        for rows, saved in ((self._rows, state["rows"]), (self._average, state["average"])):
            # Only their means are reported, which stay right if +force has changed the batch size.
            rows.copy_(saved if saved.shape == rows.shape else saved.mean(1, keepdim=True))
        self._average_norm = float(state["average_norm"])

    def close(self) -> None:
        """End the worker threads and let go of the memory."""
        self._trained.close()
        self._experience.close()

    def _to_env(self, action: NDArray) -> NDArray:
        return action + self._first_action if self._first_action else action

    def _noise(self, rows: int) -> Tensor | None:
        """Fresh noise for a noisy network, None for others. [rows, num_noise]"""
        if not self.network.num_noise:
            return None
        return factor_noise((rows, self.network.num_noise), self._noise_stream)

    def _outputs(self, network: QNetwork, observation: NDArray, noise: Tensor | None) -> Tensor:
        """observation: [n, *obs]. Returns [n, actions, outputs]."""
        inputs = self._compute.tensor(network.layout(observation))
        with self._compute.autocast():
            return network.forward(inputs, noise)

    def _values(
        self, observation: NDArray, noise: Tensor | None, mask: NDArray[np.bool_] | None = None
    ) -> NDArray:
        """observation: [n, *obs]; noise: [n, num_noise]; mask: [n, actions].

        Returns expected returns, [n, actions]; of what is not valid, minus infinity.
        """

        def work(network: QNetwork, share: slice) -> Tensor:
            with torch.inference_mode():
                part = None if noise is None else noise[share]
                return self._value.expected(self._outputs(network, observation[share], part))

        quick = None
        if noise is None and self._in_numpy is not None:
            quick = self._in_numpy(self.network.layout(observation))
        if quick is not None:
            values = self._value.expected(torch.from_numpy(quick)).numpy()
        elif len(observation) < self._trained.num_workers:
            values = joined([work(self.network, slice(None))])
        else:
            values = joined(self._trained.map(work, len(observation)))
        return values if mask is None else np.where(mask, values, -np.inf)

    @cached_property
    def _in_numpy(self) -> InNumpy | None:
        # Made when first wanted: by then the weights lie where they stay.
        return self.network.in_numpy()

    def _update(self) -> None:
        """One step of the optimizer on one minibatch. Raises NonFiniteError."""
        config, frame = self._config, self._clock.frame
        sample = self._experience.sample()
        self._gradient(sample)
        norm = self._trained.step(value_at(config.lr, frame))
        if not math.isfinite(norm):
            finite_loss = math.isfinite(float(self._rows[0].sum()))
            raise NonFiniteError("grad_norm" if finite_loss else "loss", frame)
        if self._experience.updates:
            self._average.lerp_(self._rows, self.AVERAGING)
            self._average_norm += self.AVERAGING * (norm - self._average_norm)
        else:
            self._average.copy_(self._rows)
            self._average_norm = norm
        self._experience.updates += 1
        error = self._rows[self.ROWS.index("td_error")].cpu().numpy()
        self._experience.update_priorities(sample.index, error)
        self.target.updated()

    def _gradient(self, sample: Sample) -> None:
        """Gradient of the weighted mean loss into the flat vector, and ROWS of each sample."""
        columns = (sample.action, sample.reward, sample.discount, sample.weight)
        action, reward, discount, weight = (self._compute.tensor(column) for column in columns)
        # Online network, target network and the choice of the next action: each has noise of its own.
        noise = self._noise(3)
        online, delayed, choosing = (None, None, None) if noise is None else noise.unbind(0)

        def loss(network: QNetwork, share: slice) -> tuple[Tensor, Tensor]:
            following = sample.next_observation[share]
            with torch.no_grad():
                outputs = self._outputs(self.target.network, following, delayed)
                judged = self._outputs(network, following, choosing) if self._config.double else outputs
                expected = self._value.expected(judged)
                if sample.next_mask is not None:
                    valid = torch.from_numpy(sample.next_mask[share]).to(expected.device)
                    expected = expected.masked_fill(~valid, -math.inf)
                best = expected.argmax(1)
                target = self._value.target(chosen(outputs, best), reward[share], discount[share])
            outputs = chosen(self._outputs(network, sample.observation[share], online), action[share])
            losses, errors = self._value.loss(outputs, target)
            with torch.no_grad():
                torch.stack((losses, errors, self._value.expected(outputs)), out=self._rows[:, share])
            mean = torch.dot(losses, weight[share] / len(losses))
            return mean, mean.detach()

        self._trained.backward(loss, len(action))
