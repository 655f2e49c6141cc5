"""Optimizers of flat parameters (`agent/optimizer`)."""

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
    """Takes gradient descent steps. Built as `Target(config, parameters=list, max_grad_norm=float or None)`.

    parameters: parts of a flat vector with gradients, [size] each; max_grad_norm: maximum Euclidean norm of
    the gradient of all parts together, to which gradients with a larger norm are scaled down.
    """

    def step(self, lr: float) -> float:
        """Make one update with learning rate `lr`. Returns the norm of the gradient before clipping.

        If `takes_tensors(self)`, `lr` may be a scalar tensor. The update then waits for no result, and the
        norm is returned as a tensor.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        ...


def gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the gradient of each parameter."""
    found = [parameter.grad for parameter in parameters]
    assert all(gradient is not None for gradient in found)
    return found  # type: ignore[return-value]


def clip_gradients(gradient: Sequence[Tensor], max_norm: float | None) -> float:
    """Clip a gradient in several parts to a maximum Euclidean norm. Returns the norm before clipping."""
    # torch.dot takes a third of the time that torch.linalg.vector_norm takes.
    squares = 0.0
    for piece in gradient:
        squares += float(torch.dot(piece, piece))
    norm = math.sqrt(squares)
    if max_norm is not None and norm > max_norm:
        for piece in gradient:
            piece.mul_(max_norm / norm)
    return norm


@dataclass(kw_only=True)
class AdamConfig:
    """Options of Adam."""

    eps: PositiveFloat
    """Number added to the square root of the second moment, > 0."""
    beta1: Annotated[float, BeforeValidator(real_number), Field(ge=0, lt=1)]
    """Decay rate of the mean gradient, in [0, 1)."""


def clip_gradients_on_device(gradient: Sequence[Tensor], max_norm: float | None) -> Tensor:
    """Clip like `clip_gradients`, without waiting for the norm. Returns the norm as a scalar tensor."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(piece) for piece in gradient]))
    if max_norm is not None:
        scale = (max_norm / norm).clamp(max=1.0)
        for piece in gradient:
            piece.mul_(scale)
    return norm


class Adam:
    """Adam (Kingma & Ba, 2015, arXiv:1412.6980), with a decay of 0.999 for the second moment.

    It calls torch's fused operation directly. Creating torch's class would import a compiler, which takes
    over a second, and the class's bookkeeping in each step takes as long as the operation itself.
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

    def step(self, lr: Any) -> Any:
        """Make one update. lr: a number, or a scalar tensor. Returns the norm before clipping."""
        clip = clip_gradients_on_device if isinstance(lr, Tensor) else clip_gradients
        norm = clip(self._gradients, self._max_grad_norm)
        for update in self._updates:
            update.add_(1)
        torch._fused_adam_(
            list(map(Tensor.detach, self._parameters)),
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
        """Return the moments and the number of updates."""
        return {"means": self._means, "squares": self._squares, "updates": self._updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved moments."""
        for name, own in self.state_dict().items():
            for part, saved in zip(own, state[name], strict=True):
                part.copy_(saved)


@dataclass(kw_only=True)
class RMSPropConfig:
    """Options of RMSProp."""

    decay: Fraction
    """Decay rate of the mean square, alpha, in (0, 1]."""
    eps: PositiveFloat
    """Number added to the mean square under the square root, > 0."""


class RMSProp:
    """RMSProp: g <- alpha g + (1 - alpha) d^2, then w <- w - lr d / sqrt(g + eps), for a gradient d.

    This is the form of Mnih et al. (2016, arXiv:1602.01783, section 4). With eps=1e-10, its steps equal those
    of torch's RMSprop with eps=1e-5 outside the root. The first steps are the largest, 10 lr for each weight
    with a decay of 0.99, because g starts at 0.
    """

    Config = RMSPropConfig

    def __init__(
        self, config: RMSPropConfig, parameters: Sequence[nn.Parameter], max_grad_norm: float | None
    ) -> None:
        self._config, self._max_grad_norm = config, max_grad_norm
        self._parameters = list(parameters)
        self._squares = [torch.zeros_like(parameter.data) for parameter in parameters]

    def step(self, lr: Any) -> Any:
        """Make one update. lr: a number, or a scalar tensor. Returns the norm before clipping."""
        decay, eps = self._config.decay, self._config.eps
        slopes, on_device = gradients(self._parameters), isinstance(lr, Tensor)
        norm = (clip_gradients_on_device if on_device else clip_gradients)(slopes, self._max_grad_norm)
        for parameter, slope, square in zip(self._parameters, slopes, self._squares, strict=True):
            square.mul_(decay).addcmul_(slope, slope, value=1 - decay)
            root = torch.add(square, eps).sqrt_()
            if on_device:
                parameter.data.addcmul_(slope / root, lr, value=-1)
            else:
                parameter.data.addcdiv_(slope, root, value=-lr)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Return the mean squares."""
        return {"squares": list(self._squares)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved mean squares."""
        for square, saved in zip(self._squares, state["squares"], strict=True):
            square.copy_(saved)


# fmt: off
ByName = Literal[
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
]
# fmt: on
"""Optimizers of torch.optim that treat each weight separately, so that they work on a flat vector."""

FUSED_ON_CPU = {"Adagrad", "Adam", "AdamW", "SGD"}
"""Optimizers with a fused operation on the CPU, which takes about 0.6 of the time that separate operations
take."""

_NO_OPTIONS = {"params", "lr", "maximize", "foreach", "capturable", "differentiable", "fused"}


@dataclass(kw_only=True)
class TorchOptimizerConfig:
    """Options of an optimizer of torch.optim."""

    name: ByName
    """Name of the class in torch.optim."""
    options: dict[str, Any]
    """Arguments of the class other than the learning rate, such as {momentum: 0.9, nesterov: true} for SGD;
    all other arguments keep torch's defaults."""

    def __post_init__(self) -> None:
        if not self.options:
            return  # nothing to check, so PyTorch need not be loaded
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
        except Exception as error:  # torch checks some options only in the first step
            raise ValueError(f"options cannot be used by torch.optim.{self.name}: {error}") from None


class TorchOptimizer:
    """An optimizer of torch.optim, selected by name."""

    Config = TorchOptimizerConfig

    def __init__(
        self, config: TorchOptimizerConfig, parameters: Sequence[nn.Parameter], max_grad_norm: float | None
    ) -> None:
        self._parameters, self._max_grad_norm = list(parameters), max_grad_norm
        make: Any = vars(torch.optim)[config.name]
        device = parameters[0].device.type
        # torch's optimizers can read a learning rate from a tensor only on a GPU.
        self.capturable = device == "cuda" and "capturable" in inspect.signature(make).parameters
        """Whether the optimizer accepts the learning rate as a tensor."""
        how = {"capturable": True} if self.capturable else {}
        if config.name in FUSED_ON_CPU and device == "cpu":
            how = {"fused": True}
        self._optimizer: torch.optim.Optimizer = make(self._parameters, lr=1e-3, **how, **config.options)

    def step(self, lr: Any) -> Any:
        """Make one update. lr: a number, or a scalar tensor. Returns the norm before clipping."""
        clip = clip_gradients_on_device if isinstance(lr, Tensor) else clip_gradients
        norm = clip(gradients(self._parameters), self._max_grad_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each part, which is empty before the first update."""
        state = self._optimizer.state
        return {"parts": [dict(state.get(parameter, {})) for parameter in self._parameters]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        parts = {index: dict(part) for index, part in enumerate(state["parts"]) if part}
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": parts, "param_groups": groups})


class Separate:
    """Two optimizers, for policy and value function, with separate learning rates and clipping."""

    def __init__(self, policy: Optimizer, value: Optimizer, value_lr: Callable[[], float]) -> None:
        """value_lr: function that returns the current learning rate of the value function."""
        self._policy, self._value, self._value_lr = policy, value, value_lr

    def step(self, lr: float) -> float:
        """Make one update with each optimizer. Returns the norm of the full gradient before clipping."""
        return math.hypot(self._policy.step(lr), self._value.step(self._value_lr()))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of both optimizers."""
        return {"policy": self._policy.state_dict(), "value": self._value.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of both optimizers."""
        self._policy.load_state_dict(state["policy"])
        self._value.load_state_dict(state["value"])


def takes_tensors(optimizer: Optimizer) -> bool:
    """Return whether the learning rate may be a scalar tensor. Users' classes always get a number."""
    return type(optimizer) in (Adam, RMSProp) or (type(optimizer) is TorchOptimizer and optimizer.capturable)
