"""What the outputs of a Q-network mean: the mean of the return, its distribution, or its quantiles.

A part of the DQN family, chosen by `agent/value`. The network gives `num_outputs` numbers for each action.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from labrl.agents.value_learning import (
    categorical_divergence,
    categorical_target,
    quantile_huber_loss,
    td_target,
)
from labrl.config.types import NonNegativeFloat, PositiveInt, whole_number
from labrl.schedules import LARGEST

EPSILON = 2.0**-23
"""Relative distance of neighbours in float32."""

Atoms = Annotated[int, BeforeValidator(whole_number), Field(ge=2)]


class ActionValues(Protocol):
    """How outputs become values, targets and losses. Built as `Target(config, device=torch.device)`."""

    num_outputs: int
    """Numbers that the network gives for each action."""

    def expected(self, outputs: Tensor) -> Tensor:
        """Mean return: [..., num_outputs] -> [...]."""
        ...

    def target(self, next_outputs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """What the outputs should have been.

        next_outputs: of the action chosen in the state n steps on, [batch, num_outputs]; reward: the
        discounted sum over these steps, [batch]; discount: of the state they lead to, 0 at the end, [batch].
        """
        ...

    def loss(self, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of each sample, and the error that its priority follows, both [batch].

        outputs: of the action taken, [batch, num_outputs]; target: what `target` returned.
        """
        ...


@dataclass(kw_only=True)
class ExpectedValueConfig:
    """One output for each action: its expected return (Watkins, 1989; Mnih et al., 2015)."""

    loss: Literal["huber", "squared"]
    """squared: half the squared error; huber: the same up to an error of 1, and linear beyond."""


class ExpectedValue:
    """Q(s, a)."""

    Config = ExpectedValueConfig
    num_outputs = 1

    def __init__(self, config: ExpectedValueConfig, device: torch.device) -> None:
        self._squared = config.loss == "squared"

    def expected(self, outputs: Tensor) -> Tensor:
        """The outputs themselves. [..., 1] -> [...]"""
        return outputs.squeeze(-1)

    def target(self, next_outputs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """r + gamma^n Q(s', a'). [batch, 1]"""
        return td_target(next_outputs, reward, discount)

    def loss(self, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Of the temporal-difference error, and its size. [batch] both"""
        value, target = outputs.squeeze(1), target.squeeze(1)
        with torch.no_grad():
            error = (target - value).abs_()
        if self._squared:
            return 0.5 * (target - value).square(), error
        return torch.nn.functional.huber_loss(value, target, reduction="none"), error


@dataclass(kw_only=True)
class CategoricalValueConfig:
    """A distribution over fixed returns, C51 (Bellemare et al., 2017, arXiv:1707.06887)."""

    v_min: float
    """Lowest return of the distribution, discounted, of rewards as the learner sees them."""
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
    """Logits of the atoms of Z(s, a)."""

    Config = CategoricalValueConfig

    def __init__(self, config: CategoricalValueConfig, device: torch.device) -> None:
        self.num_outputs = config.atoms
        self._support = torch.linspace(config.v_min, config.v_max, config.atoms, device=device)

    def expected(self, outputs: Tensor) -> Tensor:
        """Mean of the distribution. [..., atoms] -> [...]"""
        return torch.softmax(outputs, dim=-1) @ self._support

    def target(self, next_outputs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """The projected distribution. [batch, atoms]"""
        return categorical_target(torch.softmax(next_outputs, dim=1), reward, discount, self._support)

    def loss(self, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Divergence from the target, which is also the error. [batch] both"""
        divergence = categorical_divergence(outputs, target)
        return divergence, divergence.detach()


@dataclass(kw_only=True)
class QuantileValueConfig:
    """Quantiles of the return, QR-DQN (Dabney et al., 2018, arXiv:1710.10044)."""

    quantiles: PositiveInt
    """Number of quantiles, at the midpoints of equal intervals of probability, >= 1."""
    kappa: NonNegativeFloat
    """Error above which the Huber loss is linear, >= 0; 0: it is linear everywhere."""


class QuantileValue:
    """Returns that are not exceeded with the probabilities (2 i + 1) / 2 n."""

    Config = QuantileValueConfig

    def __init__(self, config: QuantileValueConfig, device: torch.device) -> None:
        self.num_outputs = config.quantiles
        self._kappa = config.kappa
        self._fraction = (torch.arange(config.quantiles, device=device) + 0.5) / config.quantiles

    def expected(self, outputs: Tensor) -> Tensor:
        """Mean of the quantiles. [..., quantiles] -> [...]"""
        return outputs.mean(-1)

    def target(self, next_outputs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Each quantile moved, as samples of the target. [batch, quantiles]"""
        return td_target(next_outputs, reward, discount)

    def loss(self, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Quantile Huber loss, and the difference of the means. [batch] both"""
        with torch.no_grad():
            error = (target.mean(1) - outputs.mean(1)).abs_()
        return quantile_huber_loss(outputs, target, self._fraction, self._kappa), error
