"""Optimizers of flat parameters, chosen by `agent/optimizer`: one for all weights, or one for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from labrl.config.types import Fraction, PositiveFloat
from labrl.networks.gradient import Descent


class Optimizer(Protocol):
    """Steps down a gradient. Built as `Target(config, parameters=list, max_grad_norm=float or None)`.

    parameters: pieces of a flat vector, each with a gradient, [size]; max_grad_norm: to which the gradient of
    them all is scaled down.
    """

    def step(self, lr: float) -> float:
        """One update at learning rate `lr`. Returns the gradient's Euclidean norm before the cut."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that it remembers."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state."""
        ...


def gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The gradient of each."""
    found = [parameter.grad for parameter in parameters]
    assert all(gradient is not None for gradient in found)
    return found  # type: ignore[return-value]


def cut(gradient: Sequence[Tensor], largest: float | None) -> float:
    """Scale a gradient in several pieces down to a Euclidean norm. Returns the norm that it had."""
    norm = math.sqrt(sum(float(piece.norm()) ** 2 for piece in gradient))
    if largest is not None and norm > largest:
        for piece in gradient:
            piece.mul_(largest / norm)
    return norm


@dataclass(kw_only=True)
class AdamConfig:
    """Options of Adam."""

    eps: PositiveFloat = 1e-8
    """Added to the root of the second moment, > 0."""


class Adam:
    """Adaptive moments (Kingma & Ba, 2015, arXiv:1412.6980)."""

    Config = AdamConfig

    def __init__(
        self, config: AdamConfig, parameters: Sequence[nn.Parameter], max_grad_norm: float | None
    ) -> None:
        self._parameters, self._max_grad_norm = list(parameters), max_grad_norm
        self._parts = [Descent(parameter, config.eps, None) for parameter in parameters]

    def step(self, lr: float) -> float:
        """One update at learning rate `lr`. Returns the gradient's Euclidean norm before the cut."""
        norm = cut(gradients(self._parameters), self._max_grad_norm)
        for part in self._parts:
            part.step(lr)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Moments and number of updates."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved moments."""
        for part, saved in zip(self._parts, state["parts"], strict=True):
            part.load_state_dict(saved)


@dataclass(kw_only=True)
class RMSPropConfig:
    """Options of RMSProp."""

    decay: Fraction = 0.99
    """Weight of the past in the mean square, alpha, in (0, 1]."""
    eps: PositiveFloat = 1e-5
    """Added to the mean square, under the root, > 0."""


class RMSProp:
    """g <- alpha g + (1 - alpha) d^2, then w <- w - lr d / sqrt(g + eps), for a gradient d.

    As Mnih et al. (2016, arXiv:1602.01783, section 4) have it. The mean square begins with 1, as in the A2C
    of OpenAI Baselines: from 0 the first steps would be ten times as long as the later ones.
    """

    Config = RMSPropConfig

    def __init__(
        self, config: RMSPropConfig, parameters: Sequence[nn.Parameter], max_grad_norm: float | None
    ) -> None:
        self._config, self._max_grad_norm = config, max_grad_norm
        self._parameters = list(parameters)
        self._squares = [torch.ones_like(parameter.data) for parameter in parameters]

    def step(self, lr: float) -> float:
        """One update at learning rate `lr`. Returns the gradient's Euclidean norm before the cut."""
        decay, eps = self._config.decay, self._config.eps
        slopes = gradients(self._parameters)
        norm = cut(slopes, self._max_grad_norm)
        for parameter, slope, square in zip(self._parameters, slopes, self._squares, strict=True):
            square.mul_(decay).addcmul_(slope, slope, value=1 - decay)
            parameter.data.addcdiv_(slope, torch.add(square, eps).sqrt_(), value=-lr)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Mean squares."""
        return {"squares": list(self._squares)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved mean squares."""
        for square, saved in zip(self._squares, state["squares"], strict=True):
            square.copy_(saved)


class Separate:
    """An optimizer for the policy and one for the value function, each with its own learning rate and cut."""

    def __init__(self, policy: Optimizer, value: Optimizer, value_lr: Callable[[], float]) -> None:
        """value_lr: gives the present learning rate of the value function."""
        self._policy, self._value, self._value_lr = policy, value, value_lr

    def step(self, lr: float) -> float:
        """One update of both. Returns the Euclidean norm of the whole gradient before the cuts."""
        return math.hypot(self._policy.step(lr), self._value.step(self._value_lr()))

    def state_dict(self) -> dict[str, Any]:
        """Of both."""
        return {"policy": self._policy.state_dict(), "value": self._value.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Of both."""
        self._policy.load_state_dict(state["policy"])
        self._value.load_state_dict(state["value"])
