"""What agents share that learn from what their present policy has just played.

One of them is a configuration, an update of the weights on a full rollout, and nothing else:
`OnPolicyAgent` acts, collects, and prepares each rollout as a batch of advantages and value targets.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.action_spaces import check_actions
from labrl.agents.batch import Batch
from labrl.agents.errors import NonFiniteError
from labrl.agents.self_imitation import SelfImitation
from labrl.agents.share import rollout_share
from labrl.clock import Clock
from labrl.config.component import Component
from labrl.config.types import LogDeviation, NonNegativeSchedule, PositiveFloat, Probability
from labrl.errors import InputError
from labrl.memory.rollout import Rollout, check_room
from labrl.networks.actor_critic import ActorCritic, ActorCriticConfig
from labrl.networks.building import built, num_workers, precise
from labrl.networks.compute import Compute
from labrl.networks.distributions import ActionBounds, distribution_for, masked
from labrl.networks.gradient import FlatParameters, joined
from labrl.networks.in_numpy import InNumpy
from labrl.networks.optimizers import Optimizer
from labrl.networks.spaces import Spaces
from labrl.networks.torso import check_torso
from labrl.networks.trained import Trained, one_for_all
from labrl.schedules import value_at
from labrl.seeding import Streams, derived_seed
from labrl.step import Step


@dataclass(kw_only=True)
class OnPolicyConfig:
    """Options of every agent that learns a policy from its own rollouts."""

    network: ActorCriticConfig
    """Policy and value networks."""
    gamma: Probability
    """Discount factor: the weight of the next step's value, in [0, 1]."""
    optimizer: Component
    """How the weights follow the gradient."""
    lr: NonNegativeSchedule
    """Learning rate, >= 0."""
    entropy_coef: NonNegativeSchedule
    """Weight of the entropy bonus, >= 0."""
    max_grad_norm: PositiveFloat | None
    """Largest Euclidean norm of a gradient, > 0; longer ones are scaled down; null: no limit."""
    action_bounds: ActionBounds | None
    """How continuous actions are kept within their bounds: clip (the sample is clipped to them), rescale (it
    is clipped to [-1, 1] and scaled to them) or squash (its tanh is scaled to them); null: clip."""
    self_imitation: Component | None
    """Learning again from past steps with a higher return than expected; null: none."""
    log_std_init: LogDeviation | None
    """Initial log standard deviation of a Gaussian policy, in [-20, 10], continuous actions only; null: 0."""


class OnPolicyAgent(ABC):
    """Collects a rollout with one policy, learns from it, and begins the next one.

    A derived agent names the mean STATISTICS of its loss, and defines `_update`.
    """

    NAME: ClassVar[str]
    """What messages call it."""
    REMEMBERS: ClassVar[bool] = False
    """Whether it carries a state of its network from step to step."""
    STATISTICS: ClassVar[tuple[str, ...]]
    _gae_lambda: float = 1.0

    def __init__(
        self,
        config: OnPolicyConfig,
        spaces: Spaces,
        clock: Clock,
        streams: Streams,
        compute: Compute,
        new_rollout: Callable[..., Rollout],
        has_value: bool = True,
    ) -> None:
        """new_rollout: makes the storage, given a first observation and the kind of the actions; has_value:
        whether the values of states are learned."""
        self._compute = compute = precise(spaces, compute)
        self._config, self._spaces, self._clock = config, spaces, clock
        self._distribution = distribution_for(spaces.action, self.NAME, config.action_bounds)
        gaussian = isinstance(spaces.action, gym.spaces.Box)
        log_std_init = (config.log_std_init or 0.0) if gaussian else None
        num_parameters = self._distribution.num_parameters
        (self.network,) = built(
            lambda: (ActorCritic(config.network, spaces, num_parameters, log_std_init, has_value),),
            derived_seed(streams.seed, "initialization"),
            spaces,
            compute,
        )
        self._trained = Trained(self.network, compute, num_workers(spaces, compute), self._new_optimizer)
        self._policy_stream = streams.numpy("policy")
        self._make_rollout = new_rollout
        self._rollout: Rollout | None = None
        self._observation: NDArray | None = None
        self._imitation: SelfImitation | None = None
        if config.self_imitation is not None:
            self._imitation = config.self_imitation.build(
                spaces=spaces,
                distribution=self._distribution,
                gamma=config.gamma,
                compute=compute,
                generator=streams.numpy("self-imitation"),
            )
        self._metrics = self._no_metrics()

    @property
    def weights(self) -> FlatParameters:
        """All that is learned, for sessions that train it together (`meta.distributed`)."""
        return self._trained.flat

    @classmethod
    def share(cls, config: OnPolicyConfig, ranks: int) -> OnPolicyConfig:
        """What one of several ranks learns with. Raises InputError if they would not update together."""
        return rollout_share(config, ranks)

    @classmethod
    def check(cls, config: OnPolicyConfig, spaces: Spaces) -> None:
        """Raises InputError for options that have no meaning in the environment's spaces."""
        check_actions(cls.NAME.lower().replace(" ", "_"), spaces.action)
        distribution_for(spaces.action, cls.NAME, config.action_bounds)
        check_torso(config.network.torso, spaces, cls.REMEMBERS)
        if (horizon := getattr(config, "horizon", None)) is not None:
            check_room(horizon, spaces.observation, spaces.num_envs)
        if isinstance(spaces.action, gym.spaces.Box):
            return
        for option in ("log_std_init", "action_bounds"):
            if getattr(config, option) is not None:
                raise InputError(
                    f"agent.{option} is for continuous actions, and this environment's actions are "
                    f"{spaces.action}. Set agent.{option}=null.",
                    code="unsupported",
                    key=f"agent.{option}",
                )

    def act(self, observation: NDArray, mask: NDArray[np.bool_] | None = None) -> NDArray:
        """Sampled actions for the environments, among the valid ones. [num_envs, ...]"""
        seen, observation = observation, self.network.layout(observation)
        if self._rollout is None:
            self._rollout = self._new_rollout(observation)
        parameters, value = self._forward(observation)
        if mask is not None:
            parameters = masked(parameters, mask)
        action = self._distribution.sample(parameters, self._policy_stream)
        self._choice = seen, action, mask
        self._rollout.add_choice(observation, action, parameters, value, mask)
        return self._distribution.to_env(action)

    def evaluation_action(
        self, observation: NDArray, generator: np.random.Generator, mask: NDArray[np.bool_] | None = None
    ) -> NDArray:
        """Actions sampled with `generator`, among the valid ones. [num_envs, ...]"""
        parameters = self._parameters(observation, mask)
        return self._distribution.to_env(self._distribution.sample(parameters, generator))

    def greedy_action(self, observation: NDArray, mask: NDArray[np.bool_] | None = None) -> NDArray:
        """The most likely actions, among the valid ones. [num_envs, ...]"""
        return self._distribution.to_env(self._distribution.mode(self._parameters(observation, mask)))

    def policy_numbers(
        self, observation: NDArray, mask: NDArray[np.bool_] | None = None
    ) -> dict[str, NDArray]:
        """What actions are drawn by: probabilities, or means and deviations. [num_envs, ...] each"""
        return self._distribution.numbers(self._parameters(observation, mask))

    def observe(self, step: Step) -> None:
        """Store the outcome of the last actions."""
        rollout = self._rollout
        assert rollout is not None, "observe() follows act()"
        if step.truncated.any():
            rollout.add_cuts(step, self.network.layout(step.next_observation))
        rollout.add_outcome(step.reward, step.terminated, step.episode_over)
        self._observation = step.observation
        if self._imitation is not None:
            self._imitation.observe(*self._choice, step, lambda seen: self._values(self.network.layout(seen)))

    def learn(self) -> int:
        """Update on a full rollout. Returns the number of optimizer updates."""
        if self._rollout is None or not self._rollout.full:
            return 0
        batch = self._prepare(self._rollout)
        updates = self._update(batch)
        self._rollout.clear()
        if self._imitation is not None:
            updates += self._imitation.learn(
                self._trained, self._evaluate_kept, self._descend, self._clock.frame
            )
        return updates

    def metrics(self) -> dict[str, float]:
        """Means over the updates of the last rollout; coefficients at this frame."""
        return {
            **self._metrics,
            **self._coefficients(self._clock.frame),
            **({} if self._imitation is None else self._imitation.metrics()),
            "weight_norm": self._trained.norm,
        }

    def modules(self) -> dict[str, nn.Module]:
        """The one network of policy and values."""
        return {"actor_critic": self.network}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer and the rollout as far as it is filled."""
        return {
            **self._trained.state_dict(),
            "rollout": None if self._rollout is None else self._rollout.state_dict(),
            "observation": self._observation,
            "metrics": self._metrics,
            "imitation": None if self._imitation is None else self._imitation.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state, in the middle of a rollout too."""
        self._trained.load_state_dict(state)
        self._metrics = dict(state["metrics"])
        self._observation = state["observation"]
        if state["rollout"] is not None:
            assert self._observation is not None
            self._rollout = self._new_rollout(self.network.layout(self._observation))
            self._rollout.load_state_dict(state["rollout"])
        if self._imitation is not None:
            self._imitation.load_state_dict(state["imitation"])

    def close(self) -> None:
        """End the worker threads and let go of what is kept."""
        self._trained.close()
        if self._imitation is not None:
            self._imitation.close()

    def _new_optimizer(self, weights: FlatParameters) -> Optimizer:
        """Of all weights together, where a derived agent has no other."""
        return one_for_all(self._config.optimizer, self._config.max_grad_norm)(weights)

    @abstractmethod
    def _update(self, batch: Batch) -> int:
        """Change the weights by what a rollout taught. Returns the number of optimizer updates."""

    def _backward(self, loss: Callable[[ActorCritic, slice], tuple[Tensor, Tensor]], size: int) -> Tensor:
        """As GradientWorkers.backward: the gradient of a mean loss over `size` rows of a batch."""
        return self._trained.backward(loss, size)

    def _descend(self) -> float:
        """One step down the gathered gradient. Returns its Euclidean norm. Raises NonFiniteError."""
        norm = self._trained.step(value_at(self._config.lr, self._clock.frame))
        if not math.isfinite(norm):
            raise NonFiniteError("grad_norm", self._clock.frame)
        return norm

    def _coefficients(self, frame: int) -> dict[str, float]:
        """What a metrics row says of the schedules at `frame`."""
        config = self._config
        return {"lr": value_at(config.lr, frame), "entropy_coef": value_at(config.entropy_coef, frame)}

    def _new_rollout(self, observation: NDArray) -> Rollout:
        """Room for a rollout; observation: a first one, for shape and type. [num_envs, *obs]"""
        return self._make_rollout(*self._shapes(observation))

    def _shapes(self, observation: NDArray) -> tuple[Any, ...]:
        """What a rollout is to hold, as Rollout takes it."""
        kind = self._distribution
        return observation, kind.action_shape, kind.action_dtype, kind.num_parameters, self._spaces.masked

    def _parameters(self, observation: NDArray, mask: NDArray[np.bool_] | None) -> NDArray:
        """What the distributions of valid actions are given by. [num_envs, parameters]"""
        parameters, _ = self._forward(self.network.layout(observation))
        return parameters if mask is None else masked(parameters, mask)

    def _forward(self, observation: NDArray) -> tuple[NDArray, NDArray | float]:
        """Distribution parameters, and values where they come for free with a shared torso."""
        if self._in_numpy is not None and (quick := self._in_numpy(observation)) is not None:
            return quick, 0.0
        inputs = self._compute.tensor(observation)
        shares = self._trained.map(lambda net, rows: self._outputs(net, inputs, rows), len(inputs))
        parameters, value = (joined(parts) for parts in zip(*shares, strict=True))
        return parameters, value if self.network.shared else 0.0

    @cached_property
    def _in_numpy(self) -> InNumpy | None:
        # Made when first wanted: by then the weights lie where they stay. Both sides of a ratio of
        # probabilities need as many digits.
        return self.network.in_numpy() if self._compute.precision == torch.float32 else None

    def _outputs(self, network: ActorCritic, inputs: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """As the network gives them; of two separate ones the policy alone, with no values."""
        seen = inputs[rows]
        with torch.inference_mode(), self._compute.autocast():
            return network.forward(seen) if network.shared else (network.policy(seen), seen[:0])

    def _values(self, observation: NDArray) -> NDArray:
        """State values of any number of observations, [n, *obs] -> [n]."""
        if not self.network.has_value:
            return np.zeros(len(observation), np.float32)
        chunks = []
        for start in range(0, len(observation), 4096):
            inputs = self._compute.tensor(observation[start : start + 4096])

            def work(network: ActorCritic, share: slice, inputs: Tensor = inputs) -> Tensor:
                with torch.inference_mode(), self._compute.autocast():
                    return network.value(inputs[share])

            chunks += self._trained.map(work, len(inputs))
        return joined(chunks)

    def _evaluate(self, network: ActorCritic, batch: Batch, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Distribution parameters and values of rows of a batch, to be differentiated."""
        with self._compute.autocast():
            parameters, value = network(batch.seen(rows))
        return parameters if batch.mask is None else masked(parameters, batch.mask[rows]), value

    def _evaluate_kept(
        self, network: ActorCritic, observation: NDArray, mask: NDArray[np.bool_] | None
    ) -> tuple[Tensor, Tensor]:
        """The same of observations as the environment gives them, [n, *obs]."""
        with self._compute.autocast():
            parameters, value = network(self._compute.tensor(network.layout(observation)))
        valid = None if mask is None else torch.from_numpy(mask).to(parameters.device)
        return parameters if valid is None else masked(parameters, valid), value

    def _beyond(self, rollout: Rollout) -> NDArray:
        """Observations that are not in the rows: what the last row led to, then the final ones of cuts."""
        assert self._observation is not None
        last = self.network.layout(self._observation)
        return np.concatenate([last, *(final[None] for final in rollout.cut.values())])

    def _complete(self, rollout: Rollout) -> NDArray:
        """Fill in the values of a full rollout that are not there yet. Returns those of `_beyond`, [n]."""
        if not self.network.shared:
            # The policy has not changed since the first row, so all values are had in one pass.
            rollout.set_values(self._values(rollout.flat("observation").numpy()))
        return self._values(self._beyond(rollout))

    def _prepare(self, rollout: Rollout) -> Batch:
        """Advantages and value targets of a full rollout, as one flat batch."""
        beyond = self._complete(rollout)
        advantage = rollout.advantages(beyond, self._config.gamma, self._gae_lambda)
        value = rollout.flat("value").numpy()
        target = advantage + value
        residual, spread = float(np.var(target - value)), float(np.var(target))
        self._metrics["explained_variance"] = 1 - residual / spread if spread > 0 else math.nan
        self._metrics.update(value_mean=float(value.mean()), value_std=float(value.std()))
        action, parameters = rollout.flat("action"), rollout.flat("parameters")
        self._metrics.update(self._distribution.statistics(parameters, action))
        log_prob = self._distribution.log_prob_entropy(parameters, action)[0]
        flat = [torch.from_numpy(column) for column in (advantage, target, value)]
        device = self._compute.device
        return Batch(
            rollout.flat("observation").to(device),
            action.to(device),
            torch.stack([*flat, log_prob], dim=1).to(device),
            rollout.flat("mask").to(device) if rollout.masked else None,
        )

    def _record(self, statistics: Tensor, grad_norm: float) -> None:
        """Keep the means for the next row. Raises NonFiniteError where one is not a finite number."""
        means = dict(zip(self.STATISTICS, statistics.tolist(), strict=True))
        terms = {**means, "grad_norm": grad_norm, "weights": float(self._trained.weights.detach().sum())}
        for term, value in terms.items():
            if not math.isfinite(value):
                raise NonFiniteError(term, self._clock.frame)
        self._metrics.update(means, grad_norm=grad_norm)

    def _no_metrics(self) -> dict[str, float]:
        names = (*self.STATISTICS, "grad_norm", "explained_variance", "value_mean", "value_std")
        empty = torch.zeros((1, self._distribution.num_parameters))
        action = torch.zeros((1, *self._distribution.action_shape), dtype=self._distribution.action_dtype)
        return dict.fromkeys((*names, *self._distribution.statistics(empty, action)), math.nan)
