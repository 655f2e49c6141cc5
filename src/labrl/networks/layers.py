"""Single layers: reading of observations, activations, initialization and normalization."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.spaces import choices_of, range_of, sees_images

Layer = TypeVar("Layer", bound=nn.Linear | nn.Conv2d)
Result = TypeVar("Result")


# fmt: off
Activation = Literal[
    "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid",
    "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh",
    "Tanhshrink",
]
# fmt: on
"""Activations of torch.nn that act on each element by itself, draw nothing and learn nothing."""


def activation_layer(name: Activation) -> nn.Module:
    """The activation of that name, for outputs of a layer that nobody else reads."""
    return nn.ReLU(inplace=True) if name == "ReLU" else vars(nn)[name]()


def autocast_device() -> str | None:
    """The kind of device that autocast is on for, None without it. (torch.fx can trace this question.)"""
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            return device
    return None


def in_float32(layers: Callable[..., Result], x: Tensor, *others: Tensor | None) -> Result:
    """`layers` of x in float32, whatever autocast says.

    bfloat16 has three digits: too few for values and policies whose small differences decide.
    """
    device = autocast_device()
    if device is None:
        return layers(x, *others)
    with torch.autocast(device, enabled=False):
        return layers(x.float(), *others)


class Output(nn.Linear):
    """A linear layer that computes in float32, whatever autocast says."""

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs] -> [batch, outputs], float32"""
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            return in_float32(super().forward, x)
        return nn.functional.linear(x, self.weight, self.bias)


class Normalized(nn.Module):
    """Layers, each with a layer normalization and an activation after it."""

    def __init__(self, layers: Sequence[nn.Linear], activate: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.LayerNorm(layer.out_features) for layer in layers)
        self.activate = activate

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs] -> [batch, outputs]"""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = self.activate(norm(layer(x)))
        return x


def activated(layers: Sequence[nn.Linear], between: Activation, layer_norm: bool) -> list[nn.Module]:
    """Layers with an activation after each, one after the other."""
    if layer_norm and layers:
        return [Normalized(layers, activation_layer(between))]
    return [part for layer in layers for part in (layer, activation_layer(between))]


def check_head(units: Mapping[str, list[int]], layer_norm: bool) -> None:
    """Raise ValueError if layers between torso and outputs are to be normalized and there are none.

    units: of these layers, by their keys in `agent.network`.
    """
    if layer_norm and not any(units.values()):
        none = " and ".join(f"agent.network.{name}=[]" for name in units)
        raise ValueError(
            f"head_layer_norm=true is for layers between torso and outputs, and {none}: set "
            f"agent.network.{next(iter(units))}=[64] or agent.network.head_layer_norm=false"
        )


def orthogonal(layer: Layer, gain: float) -> Layer:
    """Orthogonal weights (Saxe et al., 2014, arXiv:1312.6120) and zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


Initialization = Literal[
    "orthogonal", "uniform", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"
]
"""Initialization of weights: orthogonal with gain sqrt(2); all uniform within 1 / sqrt(inputs), biases too,
as in torch; after Glorot & Bengio (2010), with a variance of 2 / (inputs + outputs); after He et al. (2015,
arXiv:1502.01852), of 2 / inputs. Biases are 0 except with `uniform`.

With `uniform` features are smallest, so that a step of Adam changes values less: learning action values is
steadier.
"""

DRAWN: dict[str, Callable[[Tensor], Tensor]] = {
    "orthogonal": lambda weight: nn.init.orthogonal_(weight, 2**0.5),
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "kaiming_uniform": lambda weight: nn.init.kaiming_uniform_(weight, nonlinearity="relu"),
    "kaiming_normal": lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"),
}


def initialized(layer: Layer, kind: Initialization) -> Layer:
    """A layer that a ReLU or its like follows, which torch has made uniform."""
    if kind != "uniform":
        DRAWN[kind](layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return layer


def normalization(layer: nn.Linear | nn.Conv2d) -> nn.Module:
    """Layer normalization of what a layer makes of one sample: of an image, over all maps and places."""
    if isinstance(layer, nn.Conv2d):
        return nn.GroupNorm(1, layer.out_channels)
    return nn.LayerNorm(layer.out_features)


def factor_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """f(x) = sgn(x) sqrt(|x|) of standard normal numbers, for `NoisyLinear`, on the generator's device."""
    noise = torch.randn(shape, generator=generator, device=generator.device)
    return noise.sign() * noise.abs().sqrt()


class NoisyLinear(nn.Module):
    """A layer with noise in its weights, so that exploration is learned (NoisyNet).

    y = (mu_w + sigma_w eps_w) x + mu_b + sigma_b eps_b with factorized noise (Fortunato et al., 2018,
    arXiv:1706.10295, eqs. 9 to 11). The noise is handed to `forward` and not kept in the module: whoever
    draws it decides how long it holds, copies of a network for several threads see the same, and there is
    nothing to save but the generator.
    """

    def __init__(self, num_inputs: int, num_outputs: int, sigma: float) -> None:
        """sigma: initial size of the noise, sigma_0, relative to 1 / sqrt(num_inputs)."""
        super().__init__()
        bound = 1 / math.sqrt(num_inputs)
        self.num_inputs = num_inputs
        self.num_noise = num_inputs + num_outputs
        """Noise variables: one for each input and each output."""
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((num_outputs, num_inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((num_outputs,), sigma * bound))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """x: [batch, num_inputs]. Returns [batch, num_outputs].

        noise: made by `factor_noise`, one for all rows [num_noise] or one for each [batch, num_noise];
        None: the mean weights alone.
        """
        mean = nn.functional.linear(x, self.weight, self.bias)
        if noise is None:
            return mean
        inputs, outputs = noise[..., : self.num_inputs], noise[..., self.num_inputs :]
        # eps_w is an outer product: it is applied to inputs and outputs and never made.
        spread = nn.functional.linear(x * inputs, self.weight_sigma, self.bias_sigma)
        return mean + outputs * spread


class Shares(nn.Module):
    """Bytes as shares of their ranges, where these differ or do not begin at 0."""

    low: Tensor
    width: Tensor

    def __init__(self, low: NDArray[np.float32], width: NDArray[np.float32]) -> None:
        """low, width: smallest values and widths of the ranges, in the shape of an observation."""
        super().__init__()
        self.register_buffer("low", torch.tensor(low), persistent=False)
        self.register_buffer("width", torch.tensor(width), persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """[batch, *shape] -> [batch, *shape], in [0, 1]"""
        return (numbers - self.low) / self.width


class Numbers(nn.Module):
    """Observations as rows of numbers, choices one-hot, bytes as shares of the range of their space."""

    def __init__(self, space: gym.Space[Any], shares: bool = True) -> None:
        """shares: otherwise bytes stay as they are."""
        super().__init__()
        self._size, self._choices = math.prod(space.shape or ()), choices_of(space)
        bounds = range_of(space) if shares else 1.0
        self._unit = 1.0 if isinstance(bounds, tuple) else 1 / bounds
        self.shares = Shares(*(part.ravel() for part in bounds)) if isinstance(bounds, tuple) else None

    def forward(self, observation: Tensor) -> Tensor:
        """[batch, *obs] -> [batch, size], float32"""
        rows = observation.reshape(-1, self._size)
        if self._choices:
            columns = [rows[:, i].long() - first for i, (first, _) in enumerate(self._choices)]
            pairs = zip(columns, self._choices, strict=True)
            rows = torch.cat([nn.functional.one_hot(column, n) for column, (_, n) in pairs], dim=1)
        numbers = rows.float()
        if self.shares is not None:
            return self.shares(numbers)
        return numbers if self._unit == 1 else numbers * self._unit


def numbers(space: gym.Space[Any], shares: bool = True) -> list[nn.Module]:
    """The module that makes rows of numbers of observations; none where they are such rows.

    Agents give real numbers as float32.
    """
    if (
        not isinstance(space, gym.spaces.Box)
        or not space.shape
        or space.dtype not in (np.float32, np.float64)
    ):
        return [Numbers(space, shares)]
    return [] if len(space.shape) == 1 else [nn.Flatten()]


def vector_space(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return the space that networks see: for several inputs without images, one vector."""
    if isinstance(space, gym.spaces.Dict) and not sees_images(space):
        return SideBySide(space).space
    return space


class SideBySide:
    """Inputs that are no images as one vector of real numbers, choices one-hot."""

    def __init__(self, space: gym.spaces.Dict) -> None:
        self._parts = [(name, choices_of(inner), range_of(inner)) for name, inner in space.spaces.items()]
        size = sum(gym.spaces.flatdim(inner) for inner in space.spaces.values())
        self.space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        """Space of the vector."""

    def __call__(self, observation: Any) -> Any:
        """A batch with a field for each input -> [batch, size], float32; of tensors by name, a tensor."""
        if isinstance(observation, dict):
            parts = [_tensor(observation[name], choices, bounds) for name, choices, bounds in self._parts]
            return torch.cat(parts, dim=1)
        columns = [_numbers(observation[name], choices, bounds) for name, choices, bounds in self._parts]
        return np.concatenate(columns, axis=1, dtype=np.float32)


def _tensor(values: Tensor, choices: list[tuple[int, int]], bounds: Any) -> Tensor:
    """Return a tensor of values as numbers in float32, as `_numbers` does for an array."""
    if not choices and isinstance(bounds, tuple):
        low, width = map(torch.from_numpy, bounds)
        return ((values - low) / width).flatten(1)
    rows = values.reshape(values.shape[0], -1)
    if not choices:
        return rows.float() if bounds == 1 else rows.float() * (1 / bounds)
    columns = [nn.functional.one_hot(rows[:, i].long() - first, n) for i, (first, n) in enumerate(choices)]
    return torch.cat(columns, dim=1).float()


def _numbers(values: NDArray, choices: list[tuple[int, int]], bounds: Any) -> NDArray:
    """[batch, *input] -> [batch, numbers]; bounds: what `range_of` says of the input's space."""
    if not choices and isinstance(bounds, tuple):
        low, width = bounds
        return ((values - low) / width).reshape(len(values), -1)
    rows = values.reshape(len(values), -1)
    if not choices:
        return rows if bounds == 1 else rows * np.float32(1 / bounds)
    return np.concatenate(
        [rows[:, i, None] == np.arange(first, first + n) for i, (first, n) in enumerate(choices)], axis=1
    )
