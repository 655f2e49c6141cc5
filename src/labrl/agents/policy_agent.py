"""A stochastic policy with a value function: the base of PPO, A2C and REINFORCE."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.agent import Actor, Agent, Observation, Traits, check_finite, joined, wrong_statistics
from labrl.component import Component
from labrl.learning.make import make_learner
from labrl.memory import Minibatch
from labrl.memory.rollout import Rollout, Segments, reset_states
from labrl.networks.actions import mask_logits
from labrl.networks.actor_critic import ActorCritic, ActorCriticConfig
from labrl.networks.building import build_networks
from labrl.networks.distributions import ActionBounds, ActionDistribution, DiagonalGaussian, distribution_for
from labrl.networks.layers import StateDependentConfig
from labrl.schedules import value_at
from labrl.spaces import Spaces, has_bounds
from labrl.types import LogDeviation, NonNegativeSchedule, PositiveFloat, Probability

if TYPE_CHECKING:
    from labrl.agents.parts.noise import HeldNoise
    from labrl.agents.parts.self_imitation import SelfImitation
    from labrl.agents.transforms import RunningMoments
    from labrl.clock import Clock
    from labrl.learning.compute import Compute
    from labrl.learning.flat import FlatParameters
    from labrl.learning.optimizers import Optimizer
    from labrl.learning.ranks import Ranks
    from labrl.seeding import Streams
    from labrl.step import States, Step

VALUES_AT_ONCE = 4096
"""Number of observations whose values are computed in one pass."""

CONTINUOUS = ("log_std_init", "action_bounds", "sde")
"""Options for continuous actions."""

EPSILON = 1e-5
"""Number added to the running variance of returns. The variance alone is 0 if all returns are equal."""


@dataclass(kw_only=True)
class PolicyConfig:
    """Options of all agents that learn a policy from their own rollouts."""

    network: ActorCriticConfig
    """Policy and value networks."""
    gamma: Probability
    """Discount factor: the weight of the next step's value, in [0, 1]."""
    optimizer: Component
    """Optimizer of the weights."""
    lr: NonNegativeSchedule
    """Learning rate, >= 0."""
    entropy_coef: NonNegativeSchedule
    """Weight of the entropy bonus, >= 0."""
    max_grad_norm: PositiveFloat | None
    """Maximum Euclidean norm of the gradient, > 0; gradients with a larger norm are scaled down; null: no
    limit."""
    normalize_value: bool
    """Whether the value network learns returns that are normalized with their running mean and standard
    deviation, so that `value_coef` and `value_clip_range` have the same effect for rewards of any size."""
    action_bounds: ActionBounds | None
    """Treatment of the bounds of continuous actions: clip (samples of a Gaussian are clipped to the bounds),
    rescale (samples are clipped to [-1, 1] and scaled to the bounds), squash (the tanh of samples is scaled
    to the bounds) or beta (the policy is a Beta distribution between the bounds instead of a Gaussian); null:
    clip."""
    self_imitation: Component | None
    """Additional learning from past steps whose return was higher than expected; null: none."""
    log_std_init: LogDeviation | None
    """Initial log standard deviation of a Gaussian policy, in [-20, 10], continuous actions only; null: 0."""
    sde: StateDependentConfig | None
    """State-dependent exploration of a Gaussian policy, such as {steps: 4, log_std_init: -2}; null:
    independent noise in each step."""


class PolicyActor(Actor):
    """The policy of an actor-critic network, which outputs the parameters of an action distribution."""

    def __init__(self, network: ActorCritic, distribution: ActionDistribution, sampled: bool) -> None:
        super().__init__()
        self.network, self.state_size = network, network.state_size
        self._distribution, self._sampled = distribution, sampled

    def forward(
        self, inputs: Tensor, mask: Tensor | None, state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return actions, parameters and the next state."""
        parameters, _, state = self.network(inputs, state, value=False)
        parameters = mask_logits(parameters, mask)
        return self._distribution.forward_torch(parameters, self._sampled), parameters, state


class PolicyAgent(Agent):
    """Draws actions from a stochastic policy, stores them in a rollout, and computes state values.

    A derived class must create `rollout`, and define `objective` and `learn`. The state of a recurrent
    network is carried from step to step and is 0 at the start of an episode. A lost life does not reset the
    state, because earlier observations remain useful. Evaluation has a separate state.
    """

    TRAITS = Traits(
        actions=(gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary, gym.spaces.Box),
        masks=True,
        greedy=True,
        exports=True,
        policy_numbers=True,
        shares_weights=True,
    )
    STATISTICS: ClassVar[tuple[str, ...]] = ()
    """Names of the mean statistics that `objective` returns."""
    rollout: Rollout
    config: PolicyConfig
    """Options of the agent."""

    def __init__(
        self,
        config: PolicyConfig,
        spaces: Spaces,
        clock: Clock,
        streams: Streams,
        compute: Compute,
        *,
        has_value: bool = True,
        new_optimizer: Callable[[ActorCritic, FlatParameters], Optimizer] | None = None,
    ) -> None:
        """has_value: whether state values are learned; new_optimizer: function that makes the
        optimizer; None: the optimizer of the configuration."""
        self.config = config
        self.clock = clock
        """Number of frames so far, and further counts."""
        self.distribution = distribution_for(
            spaces.action, self.NAME or type(self).__name__, config.action_bounds
        )
        gaussian = isinstance(self.distribution, DiagonalGaussian)
        log_std_init = (config.log_std_init or 0.0) if gaussian else None
        if config.sde is not None:
            log_std_init = config.sde.log_std_init
        num_parameters = self.distribution.num_parameters
        (self.network,) = build_networks(
            lambda: (
                ActorCritic(
                    config.network, spaces, num_parameters, log_std_init, has_value, config.sde is not None
                ),
            ),
            streams.seed_of("initialization"),
            spaces,
        )
        optimizer = config.optimizer if new_optimizer is None else partial(new_optimizer, self.network)
        whole = not self.TRAITS.loss_is_mean
        self.learner = make_learner(
            self.network, spaces, compute, optimizer, config.max_grad_norm, whole_minibatches=whole
        )
        self._stream = streams.numpy("policy")
        self._held: HeldNoise | None = None  # None: noise is drawn in each step
        if config.sde is not None:
            from labrl.agents.parts.noise import HeldNoise  # needed only here

            self._held = HeldNoise(config.sde, spaces.num_envs, self.network.policy_head)
        # Compute values while acting if the torso is shared or recurrent; otherwise all at once later.
        self.values_too = self.network.shared or self.network.state_size > 0
        self._state = np.zeros((spaces.num_envs, self.network.state_size), np.float32)
        self._evaluation_state = self._state
        self._returns: RunningMoments | None = None  # None: values are not scaled
        if config.normalize_value:
            from labrl.agents.transforms import RunningMoments  # needed only here

            self._returns = RunningMoments(())
            self._returns.ranks = compute.ranks
        self._next: NDArray | None = None  # observation after the last row of the rollout
        self.imitation: SelfImitation | None = None
        if config.self_imitation is not None:
            self.imitation = config.self_imitation.build(
                spaces=spaces,
                policy=self,
                gamma=config.gamma,
                clock=clock,
                compute=compute,
                generator=streams.numpy("self-imitation"),
            )
        # Values, advantages and parameters of the last rollout, until its metrics are computed.
        self._learned_from: tuple[NDArray, NDArray, NDArray] | None = None
        names = (*self.STATISTICS, "grad_norm", "explained_variance", "value_mean", "value_std")
        nothing = self.distribution.statistics(torch.zeros((1, num_parameters)))
        self._metrics = joined(self, ((name, math.nan) for name in (*names, *nothing)))

    def act(self, observation: Observation) -> NDArray:
        """Draw valid actions for the environments and store them. [num_envs, ...]"""
        inputs, before, rollout = self.learner.layout(observation.array), self._state, self.rollout
        if self._held is None:
            output = self.learner.forward(inputs, before, value=self.values_too)
            parameters, value, self._state = output
            if observation.mask is not None:
                parameters = mask_logits(parameters, observation.mask)
            noise = self.distribution.noise(parameters, self._stream)
            action = self.distribution.sample_or_mode(parameters, noise)
        else:
            output = self.learner.forward(
                inputs, before, None, self._held.sample(self._stream), value=self.values_too
            )
            both, value, self._state = output
            parameters, drawn = np.split(both, [self.distribution.num_parameters], axis=1)
            action = self.distribution.sample_or_mode(parameters, drawn)
        self._choice = observation.array, action, observation.mask
        known = value if self.values_too else 0.0
        if self.values_too and self._returns is not None:
            known = self._unscaled(value)
        rollout.add_action(inputs, action, parameters, known, observation.mask, before)
        return self.distribution.to_env(action)

    def observe(self, step: Step) -> None:
        """Store the outcome of the last actions, and reset recurrent states where episodes are over."""
        self.rollout.add_result(step, self.network.layout, self._state)
        if self.network.state_size:
            self._state = reset_states(self._state, step.episode_over, len(self._state))
        self._next = step.observation
        if self.imitation is not None:
            self.imitation.observe(*self._choice, step)

    def batch(self, gamma: float, gae_lambda: float, with_log_prob: bool = False) -> Minibatch:
        """Compute values and advantages of a full rollout, and return all of its rows.

        with_log_prob: whether to include the log-probabilities of the actions.
        """
        rollout = self.rollout
        assert self._next is not None
        if not self.values_too:
            # This session updates the weights only after the last row, so one pass computes all values.
            rollout.set_values(self.values(rollout.rows("observation")))
        final = rollout.bootstrap_states(self.network.layout(self._next), self._state)
        advantage = rollout.advantages(self.values(*final), gamma, gae_lambda)
        value, action, parameters = map(rollout.rows, ("value", "action", "parameters"))
        self._learned_from = value.copy(), advantage, parameters.copy()
        log_prob = None
        if with_log_prob:
            both = torch.from_numpy(parameters), torch.from_numpy(action)
            log_prob, _ = self.distribution.log_prob_entropy(*both)
        batch = rollout.batch(advantage, log_prob, self.learner.device)
        if self._returns is not None:
            self._returns.update(advantage + value)
            for column in (batch.value_target, batch.value):
                column.sub_(float(self._returns.mean)).div_(self._spread)
        return batch

    def values(self, observation: NDArray, state: States = None) -> NDArray:
        """Compute the state values of observations in the network's layout. [n, *obs] -> [n]

        state: recurrent state before each observation, [n, state_size].
        """
        if not self.network.has_value:
            return np.zeros(len(observation), np.float32)
        chunks = []
        for begin in range(0, len(observation), VALUES_AT_ONCE):
            rows = slice(begin, begin + VALUES_AT_ONCE)
            before = None if state is None else state[rows]
            chunks.append(self.learner.forward(observation[rows], before, policy=False).value)
        value = np.concatenate(chunks)
        return value if self._returns is None else self._unscaled(value)

    @property
    def _spread(self) -> float:
        """Running standard deviation of the returns."""
        return 1.0 if self._returns is None else math.sqrt(float(self._returns.variance) + EPSILON)

    def _unscaled(self, value: NDArray) -> NDArray:
        """Convert normalized outputs of the value network to state values. [n]"""
        assert self._returns is not None
        return (value * self._spread + float(self._returns.mean)).astype(np.float32)

    def loss(self, network: Callable[..., Any], minibatch: Minibatch) -> tuple[Tensor, Tensor]:
        """Compute the `objective` of a minibatch. Recurrent networks start from its stored states."""
        if minibatch.state.shape[1]:
            segments = Segments.of(minibatch.start)
            output = network(minibatch.observation, segments.states(minibatch.state), segments.lengths)
        else:
            output = network(minibatch.observation)
        parameters = output.parameters
        if minibatch.mask is not None:
            parameters = mask_logits(parameters, minibatch.mask)
        log_prob, entropy = self.distribution.log_prob_entropy(parameters, minibatch.action)
        return self.objective(minibatch, log_prob, entropy, output.value)

    def objective(
        self, minibatch: Minibatch, log_prob: Tensor, entropy: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute what the agent minimizes, a scalar, and the mean STATISTICS, [number of names].

        log_prob, entropy, value: log pi(a|s), the entropy of pi and V(s) of the networks that learn, [batch]
        each. An agent that extends another adds its own term to the scalar, and the mean of the term to the
        statistics.
        """
        raise NotImplementedError

    def descend(self, lr: float) -> float:
        """Make one update with the current gradient. Returns the gradient's norm. Raises NonFiniteError."""
        norm = self.learner.step(lr)
        if not math.isfinite(norm):
            check_finite(self.clock.frame, {"grad_norm": norm})
        return norm

    def record(self, statistics: Tensor, grad_norm: float | Tensor) -> None:
        """Keep the mean statistics of a rollout, and the gradient norm, for the next metrics row.

        Raises NonFiniteError if one is not finite, and InputError unless STATISTICS names each statistic.
        """
        if len(statistics) != len(self.STATISTICS):
            raise wrong_statistics(self, "STATISTICS", self.STATISTICS, len(statistics))
        total = self.learner.flat.vector.detach().sum()
        *values, weights = torch.cat([statistics, total.view(1)]).tolist()
        means = dict(zip((*self.STATISTICS, "grad_norm"), (*values, float(grad_norm)), strict=True))
        if not all(map(math.isfinite, (*means.values(), weights))):
            check_finite(self.clock.frame, {**means, "weights": weights})
        self._metrics.update(means)

    def evaluation_action(self, observation: Observation, generator: np.random.Generator) -> NDArray:
        """Draw valid actions with `generator`. [num_envs, ...]"""
        return self.distribution.to_env(self.distribution.sample(self._parameters(observation), generator))

    def greedy_action(self, observation: Observation) -> NDArray:
        """Return the most likely valid actions. [num_envs, ...]"""
        return self.distribution.to_env(self.distribution.mode(self._parameters(observation)))

    def policy_numbers(self, observation: Observation) -> dict[str, NDArray]:
        """Return the probabilities, or the means and standard deviations, of actions. [num_envs, ...] each"""
        return self.distribution.numbers(self._parameters(observation))

    def _parameters(self, observation: Observation) -> NDArray:
        """Compute the parameters of the action distributions in evaluation. [num_envs, num_parameters]"""
        inputs = self.learner.layout(observation.array)
        before = reset_states(self._evaluation_state, observation.start, len(inputs))
        output = self.learner.forward(inputs, before, value=self.values_too)
        parameters, _, self._evaluation_state = output
        return mask_logits(parameters, observation.mask)

    def actor(self, sampled: bool) -> Actor:
        """Return the policy as one module."""
        return PolicyActor(self.network, self.distribution, sampled)

    @property
    def lr(self) -> float:
        """Learning rate at the current frame."""
        return value_at(self.config.lr, self.clock.frame)

    @property
    def weights(self) -> FlatParameters:
        """All weights, for sessions that train them together (`meta.distributed`)."""
        return self.learner.flat

    def metrics(self) -> dict[str, float]:
        """Return means over the updates of the last rollout, and coefficients at the current frame."""
        config, frame = self.config, self.clock.frame
        others = {
            "lr": self.lr,
            "entropy_coef": value_at(config.entropy_coef, frame),
            **({} if self.imitation is None else self.imitation.metrics()),
            "weight_norm": self.learner.weight_norm,
        }
        return joined(self, self._describe(), others)

    def _describe(self) -> dict[str, float]:
        """Return the metrics, including statistics of the values and distributions of the last rollout.

        They are computed only on demand, because they take half as long as an update of a small network.
        """
        if self._learned_from is not None:
            *numbers, parameters = self._learned_from
            # Single precision would lose the digits of large values.
            value, advantage = (each.astype(np.float64) for each in numbers)
            residual, spread = float(np.var(advantage)), float(np.var(advantage + value))
            self._metrics["explained_variance"] = 1 - residual / spread if spread > 0 else math.nan
            self._metrics.update(value_mean=float(value.mean()), value_std=float(value.std()))
            self._metrics.update(self.distribution.statistics(torch.from_numpy(parameters)))
            self._learned_from = None
        return dict(self._metrics)

    def modules(self) -> dict[str, nn.Module]:
        """Return the network of policy and values."""
        return {"actor_critic": self.network}

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer, recurrent state, last observation, metrics and the partial rollout."""
        return {
            **self.learner.state_dict(),
            "state": self._state.copy(),
            "observation": self._next,
            "metrics": self._describe(),
            "imitation": None if self.imitation is None else self.imitation.state_dict(),
            "noise": None if self._held is None else self._held.state_dict(),
            "returns": None if self._returns is None else self._returns.state_dict(),
            "rollout": self.rollout.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, even one that was saved in the middle of a rollout."""
        self.learner.load_state_dict(state)
        self._state, self._next = state["state"], state["observation"]
        self._metrics, self._learned_from = dict(state["metrics"]), None
        if self.imitation is not None:
            self.imitation.load_state_dict(state["imitation"])
        if self._held is not None:
            self._held.load_state_dict(state["noise"])
        if self._returns is not None and state.get("returns") is not None:
            self._returns.load_state_dict(state["returns"])
        self.rollout.load_state_dict(state["rollout"])

    def close(self) -> None:
        """Stop the worker threads and close the replay buffer of self-imitation."""
        self.learner.close()
        if self.imitation is not None:
            self.imitation.close()


def starts_outside(config: PolicyConfig, space: gym.Space[Any]) -> str:
    """Return what to do if a component of nearly all samples of a new policy is clipped to the same bound.

    The means of a new Gaussian policy are about 0. Returns '' if samples are inside the bounds.
    """
    if not isinstance(space, gym.spaces.Box) or config.action_bounds not in (None, "clip"):
        return ""
    distance = np.maximum(space.low.astype(np.float64), -space.high.astype(np.float64)).max()
    if distance <= 2 * math.exp(config.log_std_init or 0.0):
        return ""
    return "Set agent.action_bounds=rescale" if has_bounds(space) else "Shift the actions in a wrapper"


def normalize_advantages(advantage: Tensor, ranks: Ranks | None = None) -> Tensor:
    """Scale advantages, [n], to mean 0 and standard deviation 1 over all ranks; a single one is unchanged.

    ranks: None for a single rank.
    """
    size = 1 if ranks is None else ranks.size
    if len(advantage) * size < 2:
        return advantage
    if ranks is None or size == 1:
        std, mean = torch.std_mean(advantage)
    else:
        std, mean = (each.squeeze() for each in ranks.std_mean(advantage.unsqueeze(0)))
    return (advantage - mean) / (std + 1e-8)
