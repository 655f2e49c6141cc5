"""Deep Q-networks (Mnih et al., 2015, doi:10.1038/nature14236), and what they grew into.

Double (arXiv:1509.06461), dueling (arXiv:1511.06581), prioritized (arXiv:1511.05952), n-step returns, C51
(arXiv:1707.06887), QR-DQN (arXiv:1710.10044), noisy networks (arXiv:1706.10295), and Rainbow
(arXiv:1710.02298), which has them all but QR-DQN: one update, put together from parts in YAML.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.action_values import ActionValues
from labrl.agents.errors import NonFiniteError
from labrl.agents.exploration import Exploration, epsilon_greedy
from labrl.agents.target_network import TargetUpdate
from labrl.agents.value_learning import chosen
from labrl.clock import Clock
from labrl.config.component import Component
from labrl.config.errors import ConfigError
from labrl.config.types import (
    NonNegativeInt,
    NonNegativeSchedule,
    PositiveFloat,
    PositiveInt,
    PositiveRatio,
    Probability,
)
from labrl.memory.replay import Replay, Sample, check_capacity
from labrl.networks.compute import Compute
from labrl.networks.gradient import Descent, FlatParameters, GradientWorkers, joined
from labrl.networks.noisy import factor_noise
from labrl.networks.q_network import QNetwork, QNetworkConfig
from labrl.networks.spaces import Spaces, is_image
from labrl.schedules import value_at
from labrl.seeding import Streams, derived_seed
from labrl.step import Step


@dataclass(kw_only=True)
class DQNConfig:
    """Options of the DQN family."""

    network: QNetworkConfig
    """From observations to outputs for each action."""
    value: Component
    """What the outputs mean: an expected return, a distribution, quantiles."""
    target: Component
    """How the target network follows."""
    memory: Component
    """Where transitions are kept and how they are sampled."""
    exploration: Component
    """How actions are chosen while experience is collected."""
    double: bool = False
    """Whether the online network picks the next action that the target network values."""
    n_step: PositiveInt = 1
    """Rewards in a target before the bootstrap, >= 1."""
    discount: Probability = 0.99
    """Weight of the next step's value, gamma, in [0, 1]."""
    batch_size: PositiveInt = 32
    """Transitions in a minibatch, >= 1."""
    learning_starts: NonNegativeInt = 1000
    """Frames before the first update, >= 0; a whole minibatch is waited for in any case."""
    warmup_actions: Literal["random", "policy"] = "random"
    """Who acts during these frames: chance alone, or the exploring policy."""
    updates_per_frame: PositiveRatio
    """Updates for each frame from then on, > 0, kept exactly: 0.25, 4 or "1/3"."""
    lr: NonNegativeSchedule = 1e-4
    """Learning rate of Adam."""
    adam_eps: PositiveFloat = 1e-8
    """Epsilon of Adam."""
    max_grad_norm: PositiveFloat | None = 10.0
    """Gradients are scaled down to this Euclidean norm; null: never."""
    evaluation_epsilon: Probability = 0.0
    """Probability of a random action under evaluation, in [0, 1]; the network is without noise there."""


def first_update(config: DQNConfig, num_envs: int) -> int:
    """Frame from which on updates fall due: the memory can give a minibatch then."""
    return max(config.learning_starts, config.batch_size + config.n_step * num_envs)


class DQN:
    """Acts by its action values, remembers, and learns from minibatches of what it remembers."""

    Config = DQNConfig
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
        self._num_envs, self._num_actions = spaces.num_envs, int(spaces.action.n)
        self._first_action = int(spaces.action.start)
        self._first_update, self._ratio = first_update(config, spaces.num_envs), config.updates_per_frame
        self._value: ActionValues = config.value.build(device=compute.device)
        self._exploration: Exploration = config.exploration.build()
        self._following: TargetUpdate = config.target.build()
        images = is_image(spaces.observation)
        # Values of hundreds with differences of one need all digits; bfloat16 is for pixels alone.
        self._compute = compute if images else dataclasses.replace(compute, precision=torch.float32)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(streams.seed, "initialization"))
            network = QNetwork(config.network, spaces, self._num_actions, self._value.num_outputs)
        if images:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in its stubs
        self.network = network.to(compute.device)
        self.target = copy.deepcopy(self.network)
        self._target_weights = FlatParameters(self.target).vector.detach()
        # Two threads inside one small matrix product cost more than they bring.
        parallel = compute.device.type == "cpu" and images
        self._workers = GradientWorkers(self.network, compute.num_threads if parallel else 1)
        self._weights = self._workers.flat.vector
        self._descent = Descent(self._weights, config.adam_eps, config.max_grad_norm)
        self._policy_stream = streams.numpy("policy")
        self._noise_stream = streams.torch("noise", compute.device)
        self._memory: Replay = config.memory.build(
            observation_space=spaces.observation,
            action_space=spaces.action,
            num_envs=spaces.num_envs,
            n_step=config.n_step,
            discount=config.discount,
            workspace=compute.workspace,
            generator=streams.numpy("replay"),
        )
        self._updates = 0
        self._rows = torch.full((len(self.ROWS), config.batch_size), math.nan, device=compute.device)
        self._average, self._average_norm = self._rows.clone(), math.nan

    @classmethod
    def check_config(cls, config: DQNConfig, env: Any) -> None:
        """Raises ConfigError where memory, minibatch, budget and exploration contradict each other."""
        capacity = getattr(config.memory.config, "capacity", None)
        if capacity is not None:
            check_capacity(config.memory.config, env.num_envs, config.n_step)
            for name in ("batch_size", "learning_starts"):
                if capacity < getattr(config, name):
                    raise ConfigError(
                        f"agent.memory.capacity must be at least agent.{name} {getattr(config, name)}, got "
                        f"{capacity} (set agent.memory.capacity={getattr(config, name)} or more)."
                    )
        start = first_update(config, env.num_envs)
        if env.max_frame <= start:
            raise ConfigError(
                f"agent.learning_starts must be less than env.max_frame {env.max_frame}, or nothing is "
                f"learned: got {config.learning_starts}, and with agent.batch_size {config.batch_size} the "
                f"first update is after frame {start} (set env.max_frame={2 * start} or more, or a smaller "
                "agent.learning_starts)."
            )
        if getattr(config.exploration.load(), "noisy", False) and config.network.noisy is None:
            raise ConfigError(
                "agent.exploration: NetworkNoise explores by the noise of the network's weights, and "
                "agent.network.noisy is null. Set agent.network.noisy=0.5 or "
                "agent/exploration=epsilon_greedy."
            )

    @classmethod
    def check(cls, config: DQNConfig, spaces: Spaces) -> None:
        """Raises ConfigError for spaces in which it cannot act or that its network cannot read."""
        if not isinstance(spaces.action, gym.spaces.Discrete):
            raise ConfigError(
                "agent: DQN and its kin choose among the values of Discrete actions; this environment's "
                f"actions are {spaces.action}. For continuous actions there is agent=ppo."
            )
        torso = config.network.torso
        if hasattr(torso.load(), "check"):
            torso.load().check(torso.config, spaces.observation)

    def act(self, observation: NDArray) -> NDArray:
        """Exploring actions for the environments. [num_envs]"""
        frame, shape = self._clock.frame, (len(observation), self._num_actions)
        if frame < self._config.learning_starts and self._config.warmup_actions == "random":
            action = self._policy_stream.integers(shape[1], size=shape[0])
        else:
            action = self._exploration.choose(
                lambda: self._values(observation, self._noise(len(observation))),
                shape,
                frame,
                self._policy_stream,
            )
        self._observation, self._action = observation, action
        return self._to_env(action)

    def evaluation_action(self, observation: NDArray, generator: np.random.Generator) -> NDArray:
        """Mostly the best actions, by the mean weights of a noisy network. [num_envs]"""
        shape = (len(observation), self._num_actions)
        epsilon = self._config.evaluation_epsilon
        return self._to_env(
            epsilon_greedy(lambda: self._values(observation, None), shape, epsilon, generator)
        )

    def greedy_action(self, observation: NDArray) -> NDArray:
        """The best actions, by the mean weights of a noisy network. [num_envs]"""
        return self._to_env(self._values(observation, None).argmax(1))

    def observe(self, step: Step) -> None:
        """Remember the outcome of the last actions."""
        self._memory.add(self._observation, self._action, step)

    def learn(self) -> int:
        """Make the updates that fell due by this vector step. Returns how many."""
        before = self._clock.frame
        now = before + self._num_envs  # the clock ticks afterwards
        self._following.frames_passed(self._target_weights, self._weights, before, now)
        due = max(now - self._first_update, 0) * self._ratio.numerator // self._ratio.denominator
        count = max(due - self._updates, 0)
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
            "updates": self._updates,
            "memory_size": len(self._memory),
            "target_distance": float((self._weights.detach() - self._target_weights).norm()),
            "weight_norm": float(self._weights.detach().norm()),
        }

    def modules(self) -> dict[str, nn.Module]:
        """The network that learns and its delayed twin."""
        return {"q_network": self.network, "target": self.target}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, memory, and the averages of the next metrics row."""
        return {
            "network": self.network.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self._descent.state_dict(),
            "memory": self._memory.state_dict(),
            "updates": self._updates,
            "rows": self._rows,
            "average": self._average,
            "average_norm": self._average_norm,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state."""
        self.network.load_state_dict(state["network"])
        self.target.load_state_dict(state["target"])
        self._descent.load_state_dict(state["optimizer"])
        self._memory.load_state_dict(state["memory"])
        self._updates = int(state["updates"])
        self._rows.copy_(state["rows"])
        self._average.copy_(state["average"])
        self._average_norm = float(state["average_norm"])

    def close(self) -> None:
        """End the worker threads and let go of the memory."""
        self._workers.close()
        self._memory.close()

    def _to_env(self, action: NDArray) -> NDArray:
        return action + self._first_action if self._first_action else action

    def _tensor(self, array: NDArray) -> Tensor:
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        return torch.from_numpy(array).to(self._compute.device)

    def _noise(self, rows: int) -> Tensor | None:
        """Fresh noise for a noisy network, None for others. [rows, num_noise]"""
        if not self.network.num_noise:
            return None
        return factor_noise((rows, self.network.num_noise), self._noise_stream)

    def _outputs(self, network: QNetwork, observation: NDArray, noise: Tensor | None) -> Tensor:
        """observation: [n, *obs]. Returns [n, actions, outputs]."""
        inputs = self._tensor(network.layout(observation))
        with self._compute.autocast():
            return network(inputs, noise)

    def _values(self, observation: NDArray, noise: Tensor | None) -> NDArray:
        """observation: [n, *obs]; noise: [n, num_noise]. Returns expected returns, [n, actions]."""

        def work(network: QNetwork, share: slice) -> Tensor:
            with torch.inference_mode():
                part = None if noise is None else noise[share]
                return self._value.expected(self._outputs(network, observation[share], part))

        if len(observation) < self._workers.num_workers:
            return joined([work(self.network, slice(None))])
        return joined(self._workers.map(work, len(observation)))

    def _update(self) -> None:
        """One step of Adam on one minibatch. Raises NonFiniteError."""
        config, frame = self._config, self._clock.frame
        sample = self._memory.sample(config.batch_size, frame)
        self._gradient(sample)
        norm = self._descent.step(value_at(config.lr, frame))
        if not math.isfinite(norm):
            finite_loss = math.isfinite(float(self._rows[0].sum()))
            raise NonFiniteError("grad_norm" if finite_loss else "loss", frame)
        if self._updates:
            self._average.lerp_(self._rows, self.AVERAGING)
            self._average_norm += self.AVERAGING * (norm - self._average_norm)
        else:
            self._average.copy_(self._rows)
            self._average_norm = norm
        self._updates += 1
        self._memory.update_priorities(sample.index, self._rows[self.ROWS.index("td_error")].cpu().numpy())
        self._following.updated(self._target_weights, self._weights)

    def _gradient(self, sample: Sample) -> None:
        """Gradient of the weighted mean loss into the flat vector, and ROWS of each sample."""
        columns = (sample.action, sample.reward, sample.discount, sample.weight)
        action, reward, discount, weight = (self._tensor(column) for column in columns)
        # Online network, target network and the choice of the next action: each has noise of its own.
        noise = self._noise(3)
        online, delayed, choosing = (None, None, None) if noise is None else noise.unbind(0)

        def loss(network: QNetwork, share: slice) -> tuple[Tensor, Tensor]:
            following = sample.next_observation[share]
            with torch.no_grad():
                outputs = self._outputs(self.target, following, delayed)
                judged = self._outputs(network, following, choosing) if self._config.double else outputs
                best = self._value.expected(judged).argmax(1)
                target = self._value.target(chosen(outputs, best), reward[share], discount[share])
            outputs = chosen(self._outputs(network, sample.observation[share], online), action[share])
            losses, errors = self._value.loss(outputs, target)
            with torch.no_grad():
                torch.stack((losses, errors, self._value.expected(outputs)), out=self._rows[:, share])
            mean = torch.dot(losses, weight[share] / len(losses))
            return mean, mean.detach()

        self._workers.backward(loss, len(action))
