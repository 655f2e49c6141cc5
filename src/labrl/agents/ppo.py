"""Proximal policy optimization (Schulman et al., 2017, arXiv:1707.06347)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.errors import NonFiniteError
from labrl.clock import Clock
from labrl.config.errors import ConfigError
from labrl.config.types import NonNegativeFloat, NonNegativeSchedule, PositiveFloat, PositiveInt, Probability
from labrl.memory.rollout import Rollout
from labrl.networks.actor_critic import ActorCritic, ActorCriticConfig
from labrl.networks.compute import Compute
from labrl.networks.distributions import distribution_for
from labrl.networks.gradient import Descent, GradientWorkers, joined
from labrl.networks.spaces import Spaces, is_image
from labrl.schedules import value_at
from labrl.seeding import Streams, derived_seed
from labrl.step import Step


@dataclass(kw_only=True)
class PPOConfig:
    """Options of PPO."""

    network: ActorCriticConfig
    """Policy and value networks."""
    horizon: PositiveInt = 128
    """Agent steps that each environment contributes to one rollout, >= 1."""
    epochs: PositiveInt = 4
    """Passes over each rollout, >= 1."""
    batch_size: PositiveInt = 256
    """Steps in a minibatch; divides horizon * env.num_envs."""
    discount: Probability = 0.99
    """Weight of the next step's value, gamma, in [0, 1]."""
    gae_lambda: Probability = 0.95
    """Decay of the advantage estimator, lambda, in [0, 1]."""
    lr: NonNegativeSchedule = 3e-4
    """Learning rate of Adam."""
    adam_eps: PositiveFloat = 1e-5
    """Epsilon of Adam."""
    clip: NonNegativeSchedule = 0.2
    """Range of the probability ratio, epsilon in eq. 7."""
    value_clip: NonNegativeSchedule | None = None
    """Largest change of a value in one update; null: not clipped."""
    entropy_coef: NonNegativeSchedule = 0.0
    """Weight of the entropy bonus, c2 in eq. 9."""
    value_coef: NonNegativeFloat = 0.5
    """Weight of the value loss, c1 in eq. 9."""
    normalize_advantage: bool = True
    """Whether advantages have mean 0 and deviation 1 in each minibatch."""
    max_grad_norm: PositiveFloat | None = 0.5
    """Gradients are scaled down to this Euclidean norm; null: never."""
    target_kl: PositiveFloat | None = None
    """Stop the epochs of a rollout after one whose mean divergence is 1.5 times this; null: never."""
    log_std_init: float | None = None
    """Initial log standard deviation of a Gaussian policy, continuous actions only; null: 0."""


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Pessimistic policy objective, eq. 7: mean of min(r A, clip(r, 1-eps, 1+eps) A).

    ratio, advantage: [batch]. Returns a scalar to be maximized.
    """
    return torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float | None) -> Tensor:
    """Half the mean squared error, of the worse of the value and the value clipped to its old one.

    The clipping follows the first author's code (Engstrom et al., 2020, arXiv:2005.12729, section 3).
    value, old_value, target: [batch]. Returns a scalar to be minimized.
    """
    error = (value - target).square()
    if clip is not None:
        clipped = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.max(error, (clipped - target).square())
    return 0.5 * error.mean()


class Batch(NamedTuple):
    """A rollout as one flat batch of n = horizon * num_envs steps."""

    observation: Tensor
    """[n, *obs]"""
    action: Tensor
    """[n, *action]"""
    columns: Tensor
    """Advantage, value target, value and log-probability when acting, [n, 4]: one look-up for all."""


class Coefficients(NamedTuple):
    """What the schedules say at the frame of an update."""

    clip: float
    value_clip: float | None
    entropy: float


class PPO:
    """Collects a rollout with one policy, then takes several epochs of minibatch updates on it."""

    Config = PPOConfig
    STATISTICS = ("loss_policy", "loss_value", "entropy", "kl", "clip_fraction")

    def __init__(
        self, config: PPOConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        self._config, self._clock, self._compute = config, clock, compute
        self._distribution = distribution_for(spaces.action, "agent=ppo")
        log_std_init = (config.log_std_init or 0.0) if isinstance(spaces.action, gym.spaces.Box) else None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(streams.seed, "initialization"))
            network = ActorCritic(config.network, spaces, self._distribution.num_parameters, log_std_init)
        if is_image(spaces.observation):
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in its stubs
        self.network = network.to(compute.device)
        # Two threads inside one small matrix product cost more than they bring.
        parallel = compute.device.type == "cpu" and is_image(spaces.observation)
        self._workers = GradientWorkers(self.network, compute.num_threads if parallel else 1)
        self._weights = self._workers.flat.vector
        self._descent = Descent(self._weights, config.adam_eps, config.max_grad_norm)
        self._policy_stream = streams.numpy("policy")
        self._minibatch_stream = streams.torch("minibatches")
        self._rollout: Rollout | None = None
        self._observation: NDArray | None = None
        self._metrics = self._no_metrics()

    @classmethod
    def check_config(cls, config: PPOConfig, env: Any) -> None:
        """Raises ConfigError where rollout, minibatch and budget contradict each other."""
        rollout = config.horizon * env.num_envs
        made_of = f"{rollout} (agent.horizon {config.horizon} x env.num_envs {env.num_envs})"
        if rollout % config.batch_size:
            small = [d for d in range(1, math.isqrt(rollout) + 1) if rollout % d == 0]
            best = min(small + [rollout // d for d in small], key=lambda n: abs(n - config.batch_size))
            raise ConfigError(
                f"agent.batch_size must divide the rollout of {made_of}, got {config.batch_size} "
                f"(the nearest that fits: agent.batch_size={best})."
            )
        if env.max_frame < rollout:
            raise ConfigError(
                f"env.max_frame must be at least one rollout of {made_of}, got {env.max_frame} "
                f"(set env.max_frame={rollout} or a smaller agent.horizon)."
            )

    @classmethod
    def check(cls, config: PPOConfig, spaces: Spaces) -> None:
        """Raises ConfigError for options that the environment's spaces leave without a meaning."""
        distribution_for(spaces.action, "agent=ppo")
        torso = config.network.torso
        if hasattr(torso.load(), "check"):
            torso.load().check(torso.config, spaces.observation)
        if config.log_std_init is not None and not isinstance(spaces.action, gym.spaces.Box):
            raise ConfigError(
                "agent.log_std_init is an option of continuous actions, this environment has "
                f"{spaces.action}. Leave it out or set agent.log_std_init=null."
            )

    def act(self, observation: NDArray) -> NDArray:
        """Sampled actions for the environments. [num_envs, ...]"""
        observation = self.network.layout(observation)
        parameters, value = self._forward(observation)
        action = self._distribution.sample(parameters, self._policy_stream)
        if self._rollout is None:
            self._rollout = self._new_rollout(observation)
        self._rollout.add_choice(observation, action, parameters, value)
        return self._distribution.to_env(action)

    def evaluation_action(self, observation: NDArray, generator: np.random.Generator) -> NDArray:
        """Actions sampled with `generator`. [num_envs, ...]"""
        parameters, _ = self._forward(self.network.layout(observation))
        return self._distribution.to_env(self._distribution.sample(parameters, generator))

    def greedy_action(self, observation: NDArray) -> NDArray:
        """The most likely actions. [num_envs, ...]"""
        parameters, _ = self._forward(self.network.layout(observation))
        return self._distribution.to_env(self._distribution.mode(parameters))

    def observe(self, step: Step) -> None:
        """Store the outcome of the last actions."""
        rollout = self._rollout
        assert rollout is not None, "observe() follows act()"
        if step.truncated.any():
            final = self.network.layout(step.next_observation)
            for env in np.flatnonzero(step.truncated & ~step.terminated):
                rollout.cut[rollout.t, int(env)] = final[env].copy()
        rollout.add_outcome(step.reward, step.terminated, step.episode_over)
        self._observation = step.observation

    def learn(self) -> int:
        """Update on a full rollout. Returns the number of optimizer updates."""
        if self._rollout is None or not self._rollout.full:
            return 0
        batch = self._prepare(self._rollout)
        updates = self._update(batch)
        self._rollout.clear()
        return updates

    def metrics(self) -> dict[str, float]:
        """Means over the updates of the last rollout; coefficients at this frame."""
        frame, config = self._clock.frame, self._config
        return {
            **self._metrics,
            "lr": value_at(config.lr, frame),
            "clip": value_at(config.clip, frame),
            "entropy_coef": value_at(config.entropy_coef, frame),
            "weight_norm": float(self._weights.detach().norm()),
        }

    def modules(self) -> dict[str, nn.Module]:
        """The one network of policy and values."""
        return {"actor_critic": self.network}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer and the rollout as far as it is filled."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self._descent.state_dict(),
            "rollout": None if self._rollout is None else self._rollout.state_dict(),
            "observation": self._observation,
            "metrics": self._metrics,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state, in the middle of a rollout too."""
        self.network.load_state_dict(state["network"])
        self._descent.load_state_dict(state["optimizer"])
        self._metrics = dict(state["metrics"])
        self._observation = state["observation"]
        if state["rollout"] is not None:
            assert self._observation is not None
            self._rollout = self._new_rollout(self.network.layout(self._observation))
            self._rollout.load_state_dict(state["rollout"])

    def close(self) -> None:
        """End the worker threads."""
        self._workers.close()

    def _new_rollout(self, observation: NDArray) -> Rollout:
        kind = self._distribution
        return Rollout(
            self._config.horizon, observation, kind.action_shape, kind.action_dtype, kind.num_parameters
        )

    def _tensor(self, observation: NDArray) -> Tensor:
        if observation.dtype == np.float64:
            observation = observation.astype(np.float32)
        return torch.from_numpy(observation).to(self._compute.device)

    def _forward(self, observation: NDArray) -> tuple[NDArray, NDArray | float]:
        """Distribution parameters, and values where they come for free with a shared torso."""
        inputs = self._tensor(observation)
        if self._workers.num_workers == 1:  # in a small environment every call in a step counts
            parameters, value = self._outputs(self.network, inputs)
        else:
            shares = self._workers.map(lambda net, rows: self._outputs(net, inputs[rows]), len(inputs))
            parameters, value = (torch.cat(parts) for parts in zip(*shares, strict=True))
        return parameters.cpu().numpy(), value.cpu().numpy() if self.network.shared else 0.0

    def _outputs(self, network: ActorCritic, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """As the network gives them; of two separate ones the policy alone, with no values."""
        with torch.inference_mode(), self._compute.autocast():
            return network(inputs) if network.shared else (network.policy(inputs), inputs[:0])

    def _values(self, observation: NDArray) -> NDArray:
        """State values of any number of observations, [n, *obs] -> [n]."""
        chunks = []
        for start in range(0, len(observation), 4096):
            inputs = self._tensor(observation[start : start + 4096])

            def work(network: ActorCritic, share: slice, inputs: Tensor = inputs) -> Tensor:
                with torch.inference_mode(), self._compute.autocast():
                    return network.value(inputs[share])

            chunks += self._workers.map(work, len(inputs))
        return joined(chunks)

    def _prepare(self, rollout: Rollout) -> Batch:
        """Advantages and value targets of a full rollout, as one flat batch."""
        value, shape = rollout["value"], (rollout.horizon, rollout.num_envs)
        if not self.network.shared:
            # The policy has not changed since the first row, so all values are had in one pass.
            value[:] = self._values(rollout.flat("observation").numpy()).reshape(shape)
        assert self._observation is not None
        last = self.network.layout(self._observation)
        beyond = self._values(np.concatenate([last, *(final[None] for final in rollout.cut.values())]))
        advantage = rollout.advantages(beyond, self._config.discount, self._config.gae_lambda)
        target = advantage + value
        residual, spread = float(np.var(target - value)), float(np.var(target))
        self._metrics["explained_variance"] = 1 - residual / spread if spread > 0 else math.nan
        self._metrics["value_mean"] = float(value.mean())
        self._metrics["value_std"] = float(value.std())
        action, parameters = rollout.flat("action"), rollout.flat("parameters")
        self._metrics.update(self._distribution.statistics(parameters, action))
        log_prob = self._distribution.log_prob_entropy(parameters, action)[0]
        flat = [torch.from_numpy(column.reshape(-1)) for column in (advantage, target, value)]
        device = self._compute.device
        return Batch(
            rollout.flat("observation").to(device),
            action.to(device),
            torch.stack([*flat, log_prob], dim=1).to(device),
        )

    def _update(self, batch: Batch) -> int:
        """Epochs of minibatch updates. Returns how many updates were made."""
        config, frame = self._config, self._clock.frame
        coefficients = Coefficients(
            value_at(config.clip, frame),
            None if config.value_clip is None else value_at(config.value_clip, frame),
            value_at(config.entropy_coef, frame),
        )
        lr = value_at(config.lr, frame)
        total, norms, updates = torch.zeros(len(self.STATISTICS), device=self._compute.device), 0.0, 0
        for _ in range(config.epochs):
            epoch, before = torch.zeros_like(total), updates
            for rows, action, columns in self._minibatches(batch):
                epoch += self._gradient(batch.observation, rows, action, columns, coefficients)
                norms += self._descent.step(lr)
                updates += 1
            total += epoch
            kl = epoch[self.STATISTICS.index("kl")] / (updates - before)
            if config.target_kl is not None and float(kl) > 1.5 * config.target_kl:
                break
        self._record(total / updates, norms / updates)
        return updates

    def _minibatches(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """One epoch in random order: rows in the batch, their actions, their columns.

        Advantages are normalized within each minibatch.
        """
        size = self._config.batch_size
        order = torch.randperm(len(batch.observation), generator=self._minibatch_stream)
        rows = order.to(self._compute.device)
        # All minibatches at once: this is cheaper than many small look-ups, and observations are large.
        action, columns = batch.action[rows], batch.columns[rows]
        if self._config.normalize_advantage and size > 1:
            advantage = columns[:, 0].view(-1, size)
            std, mean = torch.std_mean(advantage, dim=1, keepdim=True)
            advantage.sub_(mean).div_(std + 1e-8)
        return zip(rows.split(size), action.split(size), columns.split(size), strict=True)

    def _gradient(
        self, observation: Tensor, rows: Tensor, action: Tensor, columns: Tensor, coefficients: Coefficients
    ) -> Tensor:
        """Gradient of the loss over the minibatch `rows`, [batch_size]. Returns the mean STATISTICS."""

        def loss(network: ActorCritic, share: slice) -> tuple[Tensor, Tensor]:
            with self._compute.autocast():
                parameters, value = network(observation[rows[share]])
            return self._loss(parameters, value, action[share], columns[share], coefficients)

        return self._workers.backward(loss, len(rows))

    def _loss(
        self, parameters: Tensor, value: Tensor, action: Tensor, columns: Tensor, coefficients: Coefficients
    ) -> tuple[Tensor, Tensor]:
        """Eq. 9 with its sign turned, to be minimized, and the mean statistics named in STATISTICS."""
        advantage, target, old_value, old_log_prob = columns.unbind(1)
        log_prob, entropies = self._distribution.log_prob_entropy(parameters, action)
        log_ratio = log_prob - old_log_prob
        ratio = log_ratio.exp()
        policy = -clipped_surrogate(ratio, advantage, coefficients.clip)
        value_error = value_loss(value, old_value, target, coefficients.value_clip)
        entropy = entropies.mean()
        loss = policy + self._config.value_coef * value_error
        if coefficients.entropy:  # a term of weight zero would still be differentiated
            loss = loss - coefficients.entropy * entropy
        with torch.no_grad():
            change = ratio - 1
            # The low-variance estimator of the divergence, http://joschu.net/blog/kl-approx.html (k3).
            kl = (change - log_ratio).mean()
            clipped = (change.abs() > coefficients.clip).float().mean()
            return loss, torch.stack([policy, value_error, entropy, kl, clipped])

    def _record(self, statistics: Tensor, grad_norm: float) -> None:
        """Keep the means for the next row. Raises NonFiniteError where one is not a finite number."""
        means = dict(zip(self.STATISTICS, statistics.tolist(), strict=True))
        terms = {**means, "grad_norm": grad_norm, "weights": float(self._weights.detach().sum())}
        for term, value in terms.items():
            if not math.isfinite(value):
                raise NonFiniteError(term, self._clock.frame)
        self._metrics.update(means, grad_norm=grad_norm)

    def _no_metrics(self) -> dict[str, float]:
        names = (*self.STATISTICS, "grad_norm", "explained_variance", "value_mean", "value_std")
        empty = torch.zeros((1, self._distribution.num_parameters))
        action = torch.zeros((1, *self._distribution.action_shape), dtype=self._distribution.action_dtype)
        return dict.fromkeys((*names, *self._distribution.statistics(empty, action)), math.nan)
