"""Optimizers of flat parameters, chosen by `agent/optimizer`: one for all weights, or one for each."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from labrl.types import Fraction, PositiveFloat, real_number


class Optimizer(Protocol):
    """Steps down a gradient. Built as `Target(config, parameters=list, max_grad_norm=float or None)`.

    parameters: pieces of a flat vector, each with a gradient, [size]; max_grad_norm: to which the gradient of
    them all is scaled down.
    """

    def step(self, lr: float) -> float:
        """One update at learning rate `lr`. Returns the gradient's Euclidean norm before the cut."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        ...


def gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The gradient of each."""
    found = [parameter.grad for parameter in parameters]
    assert all(gradient is not None for gradient in found)
    return found  # type: ignore[return-value]


def cut(gradient: Sequence[Tensor], largest: float | None) -> float:
    """Scale a gradient in several pieces down to a Euclidean norm. Returns the norm that it had."""
    # In a third of the time of torch.linalg.vector_norm.
    norm = math.sqrt(sum(float(torch.dot(piece, piece)) for piece in gradient))
    if largest is not None and norm > largest:
        for piece in gradient:
            piece.mul_(largest / norm)
    return norm


@dataclass(kw_only=True)
class AdamConfig:
    """Options of Adam."""

    eps: PositiveFloat
    """Added to the root of the second moment, > 0."""
    beta1: Annotated[float, BeforeValidator(real_number), Field(ge=0, lt=1)]
    """Decay of the mean gradient, in [0, 1)."""


class Adam:
    """Adaptive moments (Kingma & Ba, 2015, arXiv:1412.6980), the second with a decay of 0.999.

    torch's fused operation without its class and function around it: the class imports a compiler when it is
    made (over a second), and both do bookkeeping at every step, which takes as long as the operation itself.
    """

    Config = AdamConfig

    def __init__(
        self, config: AdamConfig, parameters: Sequence[nn.Parameter], max_grad_norm: float | None
    ) -> None:
        self._config, self._max_grad_norm = config, max_grad_norm
        self._parameters: list[Tensor] = list(parameters)
        self._gradients = gradients(parameters)
        self._means = [torch.zeros_like(parameter.data) for parameter in parameters]
        self._squares = [torch.zeros_like(parameter.data) for parameter in parameters]
        self._updates = [torch.zeros((), device=parameter.device) for parameter in parameters]

    def step(self, lr: float) -> float:
        """One update at learning rate `lr`. Returns the gradient's Euclidean norm before the cut."""
        norm = cut(self._gradients, self._max_grad_norm)
        for update in self._updates:
            update.add_(1)
        with torch.no_grad():
            torch._fused_adam_(
                self._parameters,
                self._gradients,
                self._means,
                self._squares,
                [],
                self._updates,
                lr=lr,
                beta1=self._config.beta1,
                beta2=0.999,
                weight_decay=0.0,
                eps=self._config.eps,
                amsgrad=False,
                maximize=False,
            )
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Moments and number of updates."""
        return {"means": self._means, "squares": self._squares, "updates": self._updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved moments."""
        for name, own in self.state_dict().items():
            for part, saved in zip(own, state[name], strict=True):
                part.copy_(saved)


@dataclass(kw_only=True)
class RMSPropConfig:
    """Options of RMSProp."""

    decay: Fraction
    """Weight of the past in the mean square, alpha, in (0, 1]."""
    eps: PositiveFloat
    """Added to the mean square, under the root, > 0."""


class RMSProp:
    """g <- alpha g + (1 - alpha) d^2, then w <- w - lr d / sqrt(g + eps), for a gradient d.

    As Mnih et al. (2016, arXiv:1602.01783, section 4) have it. With eps=1e-10 its steps are those of torch's
    RMSprop with an eps of 1e-5 beside the root. The first steps are the longest: 10 lr for each weight with a
    decay of 0.99, because g begins at 0.
    """

    Config = RMSPropConfig

    def __init__(
        self, config: RMSPropConfig, parameters: Sequence[nn.Parameter], max_grad_norm: float | None
    ) -> None:
        self._config, self._max_grad_norm = config, max_grad_norm
        self._parameters = list(parameters)
        self._squares = [torch.zeros_like(parameter.data) for parameter in parameters]

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


# fmt: off
ByName = Literal[
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
]
# fmt: on
"""Optimizers of torch.optim that treat each weight by itself, so that a flat vector is the same to them."""

FUSED_ON_CPU = {"Adagrad", "Adam", "AdamW", "SGD"}
"""Optimizers that torch computes in one operation on the CPU, which takes some 0.6 of the time."""

_NO_OPTIONS = {"params", "lr", "maximize", "foreach", "capturable", "differentiable", "fused"}


@dataclass(kw_only=True)
class TorchOptimizerConfig:
    """Options of an optimizer of torch.optim."""

    name: ByName
    """The class."""
    options: dict[str, Any]
    """Arguments besides the learning rate, such as {momentum: 0.9, nesterov: true} for SGD; others are as
    torch has it."""

    def __post_init__(self) -> None:
        if not self.options:
            return  # nothing to check, and PyTorch need not be loaded for it
        optimizer = vars(torch.optim)[self.name]
        known = sorted(set(inspect.signature(optimizer).parameters) - _NO_OPTIONS)
        for option in self.options:
            if option not in known:
                raise ValueError(
                    f"options.{option} is not an option of torch.optim.{self.name}, which takes "
                    f"{', '.join(known)}"
                )
        weight = nn.Parameter(torch.zeros(1))
        weight.grad = torch.ones(1)
        try:
            optimizer([weight], lr=1e-3, **self.options).step()
        except Exception as error:  # some are not looked at before the first step, which stumbles over them
            raise ValueError(f"options cannot be used by torch.optim.{self.name}: {error}") from None


class TorchOptimizer:
    """Any optimizer of torch.optim by its name."""

    Config = TorchOptimizerConfig

    def __init__(
        self, config: TorchOptimizerConfig, parameters: Sequence[nn.Parameter], max_grad_norm: float | None
    ) -> None:
        self._parameters, self._max_grad_norm = list(parameters), max_grad_norm
        make: Any = vars(torch.optim)[config.name]
        fused = config.name in FUSED_ON_CPU and all(each.device.type == "cpu" for each in parameters)
        how = {"fused": True} if fused else {}
        self._optimizer: torch.optim.Optimizer = make(self._parameters, lr=1e-3, **how, **config.options)

    def step(self, lr: float) -> float:
        """One update at learning rate `lr`. Returns the gradient's Euclidean norm before the cut."""
        norm = cut(gradients(self._parameters), self._max_grad_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each piece, empty before the first update."""
        state = self._optimizer.state
        return {"parts": [dict(state.get(parameter, {})) for parameter in self._parameters]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what was remembered."""
        parts = {index: dict(part) for index, part in enumerate(state["parts"]) if part}
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": parts, "param_groups": groups})


class Separate:
    """An optimizer for the policy and one for the value function, each with its own learning rate and cut."""

    def __init__(self, policy: Optimizer, value: Optimizer, value_lr: Callable[[], float]) -> None:
        """value_lr: gives the present learning rate of the value function."""
        self._policy, self._value, self._value_lr = policy, value, value_lr

    def step(self, lr: float) -> float:
        """One update of both. Returns the Euclidean norm of the whole gradient before the cuts."""
        return math.hypot(self._policy.step(lr), self._value.step(self._value_lr()))

    def state_dict(self) -> dict[str, Any]:
        """Treat the state of both optimizers."""
        return {"policy": self._policy.state_dict(), "value": self._value.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Treat the state of both optimizers."""
        self._policy.load_state_dict(state["policy"])
        self._value.load_state_dict(state["value"])
