"""Action values: acting with a Q network, and the meaning of its outputs (`agent/value`).

The outputs for an action are the mean of its return, the distribution of its return, or the quantiles of its
return. In all functions, `reward` is the discounted sum of the rewards in the n steps of a transition, and
`discount` is the factor of the value of the state after these steps: gamma^n, or 0 if the task ended within
them. Both are [batch].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, Protocol

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field
from torch import Tensor

from labrl.agents.agent import Actor
from labrl.agents.parts.exploration import Exploration, Values, uniform_valid
from labrl.clock import Clock
from labrl.component import Component
from labrl.learning.compute import Compute
from labrl.learning.make import make_learner
from labrl.networks.actions import INVALID
from labrl.networks.building import build_networks
from labrl.networks.layers import factor_noise
from labrl.networks.q_network import QNetwork, QNetworkConfig
from labrl.schedules import LARGEST, value_at
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.step import Masks, States
from labrl.types import NonNegativeFloat, NonNegativeSchedule, PositiveFloat, PositiveInt, whole_number

EPSILON = 2.0**-23
"""Relative distance between neighboring numbers in float32."""

Atoms = Annotated[int, BeforeValidator(whole_number), Field(ge=2)]


class ActionValues(Protocol):
    """Maps network outputs to values, targets and losses. Built as `Target(config, device=torch.device)`."""

    num_outputs: int
    """Number of outputs of the network for each action."""

    def expected(self, outputs: Tensor) -> Tensor:
        """Return the mean return. [..., num_outputs] -> [...]"""
        ...

    def target(self, next_outputs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the target that the outputs approach.

        next_outputs: outputs of the action chosen in the state after n steps, [batch, num_outputs].
        """
        ...

    def loss(self, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each sample, and the error that determines its priority. [batch] each

        outputs: outputs of the action taken, [batch, num_outputs]; target: result of `target`.
        """
        ...


@dataclass(kw_only=True)
class ValuePolicyConfig:
    """Options of all agents that act with action values."""

    network: QNetworkConfig
    """Network from observations to outputs for each action."""
    exploration: Component
    """Choice of actions in training."""
    optimizer: Component
    """Optimizer of the weights."""
    lr: NonNegativeSchedule
    """Learning rate, >= 0."""
    max_grad_norm: PositiveFloat | None
    """Maximum Euclidean norm of the gradient, > 0; gradients with a larger norm are scaled down; null: no
    limit."""


class ValuePolicy:
    """A Q network with its learner, and the choice of actions by their values.

    Observations are in the network's layout, and actions are counted from 0.
    """

    def __init__(
        self,
        config: ValuePolicyConfig,
        value: ActionValues,
        spaces: Spaces,
        clock: Clock,
        streams: Streams,
        compute: Compute,
    ) -> None:
        assert isinstance(spaces.action, gym.spaces.Discrete)
        self._config, self._value, self._clock = config, value, clock
        self.num_actions, self._first_action = int(spaces.action.n), int(spaces.action.start)
        self.exploration: Exploration = config.exploration.build()
        (self.network,) = build_networks(
            lambda: (QNetwork(config.network, spaces, self.num_actions, value.num_outputs),),
            streams.seed_of("initialization"),
            spaces,
        )
        self.learner = make_learner(self.network, spaces, compute, config.optimizer, config.max_grad_norm)
        self._stream = streams.numpy("policy")
        self._noise_stream = streams.torch("noise", compute.device)

    def choose(
        self,
        observation: NDArray,
        mask: Masks = None,
        state: States = None,
        at_random: bool = False,
    ) -> tuple[NDArray[np.int64], NDArray]:
        """Choose valid actions, with exploration.

        observation: [n, *obs]; mask: valid actions, [n, actions], None if all are valid; state: recurrent
        state before the step, [n, state_size], None for the initial state; at_random: whether all valid
        actions are equally likely. Returns actions, [n], and the recurrent state after the step.
        """
        after = before = self._fresh(observation) if state is None else state
        count: int = observation.shape[0]

        def compute() -> NDArray:
            nonlocal after
            noise = self.noise(count) if self.network.num_noise else None
            output = self.learner.forward(observation, before, None, noise)
            after = output.state
            return self._expected(output.outputs, mask)

        if self.network.state_size:  # advance the state, however actions are chosen
            compute = cache(compute)
            compute()
        if not at_random:
            values = Values(compute, (count, self.num_actions), mask)
            action = self.exploration.choose(values, self._clock.frame, self._stream)
        elif mask is None:
            action = self._stream.integers(self.num_actions, size=count)
        else:
            action = uniform_valid(mask, self._stream.random(count))
        return action, after

    def values(
        self, observation: NDArray, mask: Masks = None, state: States = None
    ) -> tuple[NDArray, NDArray]:
        """Compute expected returns with the mean weights of the network.

        The arguments are those of `choose`. Returns values, [n, actions], with minus infinity for invalid
        actions, and the recurrent state after the step.
        """
        output = self.learner.forward(observation, self._fresh(observation) if state is None else state)
        return self._expected(output.outputs, mask), output.state

    def actor(self) -> ValueActor:
        """Return the greedy policy as one module."""
        return ValueActor(self.network, self._value, self._first_action)

    def noise(self, rows: int, place: Tensor | None = None) -> Tensor | None:
        """Draw noise, [rows, num_noise], for a noisy network; None for other networks.

        place: earlier result, which is overwritten; None: a new tensor.
        """
        if not self.network.num_noise:
            return None
        noise = factor_noise((rows, self.network.num_noise), self._noise_stream)
        return noise if place is None else place.copy_(noise)

    def to_env(self, action: NDArray) -> NDArray:
        """Return actions for the environment. [n]"""
        return action + self._first_action if self._first_action else action

    def coefficients(self) -> dict[str, float]:
        """Return the current exploration coefficient and learning rate, as columns of a metrics row."""
        frame = self._clock.frame
        return {"exploration": self.exploration.strength(frame), "lr": value_at(self._config.lr, frame)}

    def _fresh(self, observation: NDArray) -> NDArray:
        return np.zeros((len(observation), self.network.state_size), np.float32)

    def _expected(self, outputs: NDArray, mask: Masks) -> NDArray:
        values = self._value.expected(torch.from_numpy(outputs)).numpy()
        return values if mask is None else np.where(mask, values, -np.inf)


class ValueActor(Actor):
    """Policy that chooses the actions with the highest expected return, with the network's mean weights."""

    def __init__(self, network: QNetwork, value: ActionValues, first_action: int) -> None:
        super().__init__()
        self.network, self.state_size = network, network.state_size
        self._value, self._first_action = value, first_action

    def forward(
        self, inputs: Tensor, mask: Tensor | None, state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return actions, values and the next state."""
        outputs, state = self.network(inputs, state)
        values = self._value.expected(outputs)
        if mask is not None:
            values = torch.where(mask, values, INVALID)
        return values.argmax(1) + self._first_action, values, state


def select_outputs(outputs: Tensor, action: Tensor) -> Tensor:
    """Return the outputs for one action per row, [batch, n].

    outputs: [batch, actions, n]; action: [batch].
    """
    index = action.view(-1, 1, 1).expand(-1, 1, outputs.shape[2])
    return outputs.gather(1, index).squeeze(1)


def td_target(next_value: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """Compute the n-step target r + gamma^n V(s') (Sutton & Barto, 2018, eq. 7.4).

    next_value: [batch] or [batch, n], for instance n quantiles. Returns the same shape.
    """
    if next_value.dim() == 2:
        reward, discount = reward.unsqueeze(1), discount.unsqueeze(1)
    return torch.addcmul(reward, discount, next_value)


def categorical_target(probability: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """Compute the distribution of r + gamma^n Z, projected onto the support (Bellemare et al., 2017, eq. 7).

    Atom i receives the share [1 - |clip(r + gamma^n z_j) - z_i| / dz], if positive, of each p_j: probability
    between two atoms is divided between them, with the larger share for the nearer one.

    probability: probabilities of the atoms of Z, [batch, atoms]; support: evenly spaced atoms z, [atoms].
    Returns [batch, atoms].
    """
    moved = td_target(support.expand_as(probability), reward, discount)
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    distance = (moved.clamp(support[0], support[-1]).unsqueeze(1) - support.unsqueeze(1)).abs()
    # Use all pairs of atoms instead of adding at two rounded places: this is exact at the edges, and the
    # order of the sums is fixed, even on a GPU. [batch, atoms, atoms]
    share = (1 - distance / spacing).clamp_(min=0)
    return torch.bmm(share, probability.unsqueeze(2)).squeeze(2)


def categorical_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """Compute D_KL(target || softmax(logits)), the loss of C51 (Bellemare et al., 2017, section 4.2).

    This is the cross entropy minus the entropy of the target. It has the same gradient, and is 0 if the
    distributions are equal, as the priorities of Rainbow require (Hessel et al., 2018, section 3).

    logits, target: [batch, atoms]. Returns [batch].
    """
    cross_entropy = -(target * torch.log_softmax(logits, dim=1)).sum(1)
    return cross_entropy - torch.special.entr(target).sum(1)


def quantile_huber_loss(quantile: Tensor, target: Tensor, fraction: Tensor, kappa: float) -> Tensor:
    """Compute the quantile Huber loss (Dabney et al., 2018, arXiv:1710.10044, eq. 10).

    The loss is rho(u) = |tau - 1{u < 0}| L_kappa(u), where u is a sample of the target minus the quantile at
    fraction tau, summed over the quantiles and averaged over the samples. L is divided by kappa, as in the
    authors' later work (arXiv:1806.06923, eq. 3): this changes nothing for kappa=1, and the limit for kappa=0
    is |tau - 1{u < 0}| |u|, eq. 8.

    quantile: [batch, n]; target: samples, [batch, m]; fraction: tau of each quantile, [n]. Returns [batch].
    """
    each, sample = torch.broadcast_tensors(quantile.unsqueeze(2), target.unsqueeze(1))  # [batch, n, m]
    if kappa > 0:
        losses = torch.nn.functional.huber_loss(each, sample, reduction="none", delta=kappa)
    else:
        losses, kappa = torch.nn.functional.l1_loss(each, sample, reduction="none"), 1.0
    tau = fraction.unsqueeze(1)
    weight = torch.where(sample < each, 1 - tau, tau)
    # torch.linalg.vecdot halves the time of the product and the mean, including the gradient.
    return torch.linalg.vecdot(weight, losses).sum(1) / (target.shape[1] * kappa)


@dataclass(kw_only=True)
class ExpectedValueConfig:
    """Expected return of each action (Watkins, 1989; Mnih et al., 2015)."""

    loss: Literal["huber", "squared"]
    """Loss: squared (half the squared error) or huber (half the squared error up to an error of 1,
    linear above)."""


class ExpectedValue:
    """Q(s, a) with the error e = Q - (r + gamma^n Q') and the loss e^2 / 2, whose derivative is e.

    The Huber loss is |e| - 1/2 for |e| > 1, with the sign of e as its derivative.
    """

    Config = ExpectedValueConfig
    num_outputs = 1

    def __init__(self, config: ExpectedValueConfig, device: torch.device) -> None:
        self.squared = config.loss == "squared"

    def expected(self, outputs: Tensor) -> Tensor:
        """Return the outputs themselves. [..., 1] -> [...]"""
        return outputs.squeeze(-1)

    def target(self, next_outputs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return r + gamma^n Q(s', a'). [batch, 1]"""
        return td_target(next_outputs, reward, discount)

    def loss(self, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the absolute value of the temporal-difference error. [batch] each"""
        value, target = outputs.squeeze(1), target.squeeze(1)
        error = (target - value.detach()).abs_()
        if self.squared:
            return 0.5 * (target - value).square(), error
        return torch.nn.functional.huber_loss(value, target, reduction="none"), error


@dataclass(kw_only=True)
class CategoricalValueConfig:
    """Distribution over fixed returns, C51 (Bellemare et al., 2017, arXiv:1707.06887)."""

    v_min: float
    """Lowest discounted return of the distribution, in units of the rewards that the learner sees."""
    v_max: float
    """Highest return of the distribution, > v_min."""
    atoms: Atoms
    """Number of evenly spaced returns from v_min to v_max, >= 2."""

    def __post_init__(self) -> None:
        if not self.v_min < self.v_max:
            raise ValueError(f"must have v_min < v_max, got v_min={self.v_min:g} and v_max={self.v_max:g}")
        gap, largest = (self.v_max - self.v_min) / (self.atoms - 1), max(abs(self.v_min), abs(self.v_max))
        if not gap > 2 * EPSILON * largest or largest > LARGEST / 2:
            raise ValueError(
                f"must have v_min and v_max far enough apart for {self.atoms} different numbers in float32, "
                f"got v_min={self.v_min:.9g} and v_max={self.v_max:.9g}"
            )


class CategoricalValue:
    """Logits x of the atoms of Z(s, a), with the loss D_KL(t || p) for p = softmax(x) and a target t.

    The derivative with respect to x is p sum(t) - t, where sum(t) is 1 apart from rounding.
    """

    Config = CategoricalValueConfig

    def __init__(self, config: CategoricalValueConfig, device: torch.device) -> None:
        self.num_outputs = config.atoms
        self.support = torch.linspace(config.v_min, config.v_max, config.atoms, device=device)

    def expected(self, outputs: Tensor) -> Tensor:
        """Return the mean of the distribution. [..., atoms] -> [...]"""
        return torch.softmax(outputs, dim=-1) @ self.support

    def target(self, next_outputs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the projected distribution. [batch, atoms]"""
        return categorical_target(torch.softmax(next_outputs, dim=1), reward, discount, self.support)

    def loss(self, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the divergence from the target, as the loss and as the error. [batch] each"""
        divergence = categorical_divergence(outputs, target)
        return divergence, divergence.detach()


@dataclass(kw_only=True)
class QuantileValueConfig:
    """Quantiles of the return, QR-DQN (Dabney et al., 2018, arXiv:1710.10044)."""

    quantiles: PositiveInt
    """Number of quantiles, at the midpoints of equal intervals of probability, >= 1."""
    kappa: NonNegativeFloat
    """Error above which the Huber loss is linear, >= 0; 0: linear everywhere."""


class QuantileValue:
    """Quantiles q_i of the return at the probabilities tau_i = (2 i + 1) / 2 n.

    With samples t_j of the target and u = t_j - q_i, the loss is the mean over j and the sum over i of
    |tau_i - 1{u < 0}| L(u), where L(u) = u^2 / 2 kappa for |u| <= kappa and |u| - kappa / 2 otherwise. Its
    derivative with respect to q_i is the mean over j of -|tau_i - 1{u < 0}| clip(u / kappa, -1, 1), or with
    the sign of u instead of the clipped term for kappa = 0.
    """

    Config = QuantileValueConfig

    def __init__(self, config: QuantileValueConfig, device: torch.device) -> None:
        self.num_outputs = config.quantiles
        self.kappa = config.kappa
        self.fraction = (torch.arange(config.quantiles, device=device) + 0.5) / config.quantiles

    def expected(self, outputs: Tensor) -> Tensor:
        """Return the mean of the quantiles. [..., quantiles] -> [...]"""
        return outputs.mean(-1)

    def target(self, next_outputs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return r + gamma^n q for each quantile q, as samples of the target. [batch, quantiles]"""
        return td_target(next_outputs, reward, discount)

    def loss(self, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the quantile Huber loss, and the absolute difference of the means. [batch] each"""
        with torch.no_grad():
            error = (target.mean(1) - outputs.mean(1)).abs_()
        return quantile_huber_loss(outputs, target, self.fraction, self.kappa), error
