"""Single layers: conversion of observations, activations, initialization and normalization.

Agents act with arrays, exported policies with tensors; functions of an `Array` accept both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.spaces import choices_of, range_of, sees_images
from labrl.types import LogDeviation, PositiveInt

Layer = TypeVar("Layer", bound=nn.Linear | nn.Conv2d)
Result = TypeVar("Result")
Array = TypeVar("Array", NDArray, Tensor)


def library_of(array: NDArray | Tensor) -> Any:
    """Return the library, numpy or torch, whose functions compute with `array`."""
    return torch if isinstance(array, Tensor) else np


def tensor_type(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the torch type that corresponds to a NumPy type."""
    # The type is not read from a tensor, because tensors become constants of an exported policy.
    found: torch.dtype = vars(torch)[np.dtype(dtype).name]
    return found


def cast(array: Array, dtype: Any) -> Array:
    """Convert an array to a NumPy type, or a tensor to the corresponding torch type."""
    return array.to(tensor_type(dtype)) if isinstance(array, Tensor) else array.astype(dtype, copy=False)


# fmt: off
Activation = Literal[
    "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid",
    "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh",
    "Tanhshrink",
]
# fmt: on
"""Elementwise activations of torch.nn that have no learned parameters and draw no random numbers."""


def activation_layer(name: Activation) -> nn.Module:
    """Return the activation called `name`. It may overwrite its input."""
    return nn.ReLU(inplace=True) if name == "ReLU" else vars(nn)[name]()


def autocast_device() -> str | None:
    """Return the type of device for which autocast is enabled, or None. torch.fx can trace this function."""
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            return device
    return None


def in_float32(layers: Callable[..., Result], x: Tensor, *others: Tensor | None) -> Result:
    """Compute `layers` of x in float32, even under autocast.

    bfloat16 has only about three digits, which are too few for values and policies, where small differences
    matter.
    """
    device = autocast_device()
    if device is None:
        return layers(x, *others)
    with torch.autocast(device, enabled=False):
        return layers(x.float(), *others)


class Float32Linear(nn.Linear):
    """Linear layer that computes in float32, even under autocast."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs in float32. [batch, inputs] -> [batch, outputs]"""
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            return in_float32(super().forward, x)
        return nn.functional.linear(x, self.weight, self.bias)


class LayerNormMLP(nn.Module):
    """Linear layers, each followed by layer normalization and an activation."""

    def __init__(self, layers: Sequence[nn.Linear], activate: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.LayerNorm(layer.out_features) for layer in layers)
        self.activate = activate

    def forward(self, x: Tensor) -> Tensor:
        """Compute all layers. [batch, inputs] -> [batch, outputs]"""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = self.activate(norm(layer(x)))
        return x


def with_activations(layers: Sequence[nn.Linear], between: Activation, layer_norm: bool) -> list[nn.Module]:
    """Return the layers, each followed by optional layer normalization and an activation."""
    if layer_norm and layers:
        return [LayerNormMLP(layers, activation_layer(between))]
    return [part for layer in layers for part in (layer, activation_layer(between))]


def orthogonal(layer: Layer, gain: float) -> Layer:
    """Initialize orthogonal weights (Saxe et al., 2014, arXiv:1312.6120) and zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


Initialization = Literal[
    "orthogonal", "uniform", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"
]
"""Initialization of weights. orthogonal: gain sqrt(2); uniform: within +-1 / sqrt(inputs), including biases,
as in torch; xavier: a variance of 2 / (inputs + outputs) (Glorot & Bengio, 2010); kaiming: a variance of 2 /
inputs (He et al., 2015, arXiv:1502.01852). Biases are 0 except with `uniform`.

With `uniform`, features are smallest. A step of Adam then changes values less, and action values are learned
more steadily.
"""

DRAWN: dict[str, Callable[[Tensor], Tensor]] = {
    "orthogonal": lambda weight: nn.init.orthogonal_(weight, 2**0.5),
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "kaiming_uniform": lambda weight: nn.init.kaiming_uniform_(weight, nonlinearity="relu"),
    "kaiming_normal": lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"),
}


def initialize(layer: Layer, kind: Initialization) -> Layer:
    """Initialize a new layer that an activation such as a ReLU follows; `uniform` keeps torch's weights."""
    if kind != "uniform":
        DRAWN[kind](layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return layer


def normalization(layer: nn.Linear | nn.Conv2d) -> nn.Module:
    """Return the layer normalization to apply after `layer`; for images, over all channels and pixels."""
    if isinstance(layer, nn.Conv2d):
        return nn.GroupNorm(1, layer.out_channels)
    return nn.LayerNorm(layer.out_features)


def factor_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw f(x) = sgn(x) sqrt(|x|) for standard normal x, for `NoisyLinear`, on the generator's device."""
    noise = torch.randn(shape, generator=generator, device=generator.device)
    return noise.sign() * noise.abs().sqrt()


class NoisyLinear(nn.Module):
    """Linear layer whose weights have noise of a learned magnitude (NoisyNet).

    y = (mu_w + sigma_w eps_w) x + mu_b + sigma_b eps_b with factorized noise (Fortunato et al., 2018,
    arXiv:1706.10295, eqs. 9 to 11). The noise is an argument of `forward`, not state of the module. Therefore
    the caller decides how long to keep the noise, copies of a network on several threads can use the same
    noise, and only the generator of the noise must be saved.
    """

    def __init__(self, num_inputs: int, num_outputs: int, sigma: float) -> None:
        """sigma: initial magnitude of the noise, sigma_0, in units of 1 / sqrt(num_inputs)."""
        super().__init__()
        bound = 1 / math.sqrt(num_inputs)
        self.num_inputs = num_inputs
        self.num_noise = num_inputs + num_outputs
        """Number of noise variables: one for each input and each output."""
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((num_outputs, num_inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((num_outputs,), sigma * bound))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return outputs, [batch, num_outputs]. x: [batch, num_inputs].

        noise: result of `factor_noise`, either one for all rows, [num_noise], or one for each row, [batch,
        num_noise]; None to use the mean weights.
        """
        mean = nn.functional.linear(x, self.weight, self.bias)
        if noise is None:
            return mean
        inputs, outputs = noise[..., : self.num_inputs], noise[..., self.num_inputs :]
        # eps_w is an outer product, so it is applied to inputs and outputs without computing it.
        spread = nn.functional.linear(x * inputs, self.weight_sigma, self.bias_sigma)
        return mean + outputs * spread


SMALLEST_VARIANCE = 1e-6
"""Number added to every variance. The variance alone is 0 where all features are 0."""


@dataclass(kw_only=True)
class StateDependentConfig:
    """State-dependent exploration, gSDE (Raffin et al., 2021, arXiv:2005.05719).

    The noise of an action is a linear function of the policy's features.
    """

    steps: PositiveInt
    """Number of agent steps for which the noise function stays the same, n in the paper, >= 1."""
    log_std_init: LogDeviation
    """Initial log standard deviation of the noise function's weights, in [-20, 10]; -2 suits PPO and A2C, -3
    suits SAC and TQC."""


class ExploringHead(nn.Sequential):
    """Maps features to the parameters of a Gaussian with the noise (theta * eps)^T z (arXiv:2005.05719).

    z are the features before the last layer, theta are learned standard deviations, [features, size], and eps
    are standard normal numbers, [features, size] (section 3). For independent eps, the noise in a state has
    the variance (z^2)^T theta^2. Gradients of the noise do not reach the features, as in the authors' code.
    """

    def __init__(self, layers: list[nn.Module], last: Float32Linear, log_std_init: float) -> None:
        """layers: layers before the last one; last: layer that computes the means; log_std_init: initial log
        standard deviation of the weights of the noise.
        """
        super().__init__(*layers, last)
        self.log_std = nn.Parameter(torch.full((last.in_features, last.out_features), log_std_init))

    def forward(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return means and log standard deviations in float32, [batch, 2 size].

        features: [batch, num_features]. noise: eps for each row, [batch, features, size], None for no noise.
        With `noise`, the noise of the actions, in standard deviations, is appended to the result, which then
        is [batch, 3 size].
        """
        *hidden, last = self
        for layer in hidden:
            features = layer(features)
        return torch.cat([last(features), in_float32(self._spread, features.detach(), noise)], dim=1)

    def _spread(self, features: Tensor, noise: Tensor | None) -> Tensor:
        """Return log standard deviations, followed by the noise of actions in standard deviations, if any."""
        std = self.log_std.exp()
        log_std = 0.5 * (features.square() @ std.square() + SMALLEST_VARIANCE).log()
        if noise is None:
            return log_std
        drawn = torch.einsum("bi,bij->bj", features, noise * std)
        return torch.cat([log_std, drawn * torch.exp(-log_std)], dim=1)


class ScaleBytes(nn.Module):
    """Scales bytes to [0, 1] by their ranges, which may differ and need not start at 0."""

    low: Tensor
    width: Tensor

    def __init__(self, low: NDArray[np.float32], width: NDArray[np.float32]) -> None:
        """low, width: lower bounds and widths of the ranges, in the shape of an observation."""
        super().__init__()
        self.register_buffer("low", torch.tensor(low), persistent=False)
        self.register_buffer("width", torch.tensor(width), persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the scaled numbers. [batch, *shape] -> [batch, *shape]"""
        return (numbers - self.low) / self.width


class OneHot(nn.Module):
    """Converts discrete values to one-hot vectors."""

    values: Tensor

    def __init__(self, choices: list[tuple[int, int]]) -> None:
        """choices: the first value and the number of values of each input."""
        super().__init__()
        self._counts = [count for _, count in choices]
        values = [first + i for first, count in choices for i in range(count)]
        self.register_buffer("values", torch.tensor(values), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return whether each input has each of its values. [batch, inputs] -> [batch, sum of counts]"""
        # torch's one_hot checks its input and waits for the result of the check.
        whole, values = inputs.long(), self.values.split(self._counts)
        return torch.cat([whole[:, i, None] == own for i, own in enumerate(values)], dim=1)


class FlattenInputs(nn.Module):
    """Converts observations to vectors. Discrete values become one-hot, and bytes are scaled to [0, 1]."""

    def __init__(self, space: gym.Space[Any], shares: bool = True) -> None:
        """shares: whether bytes are scaled to [0, 1]."""
        super().__init__()
        self._size, choices = math.prod(space.shape or ()), choices_of(space)
        self.one_hot = OneHot(choices) if choices else None
        bounds = range_of(space) if shares else 1.0
        self._unit = 1.0 if isinstance(bounds, tuple) else 1 / bounds
        self.shares = ScaleBytes(*(part.ravel() for part in bounds)) if isinstance(bounds, tuple) else None

    def forward(self, observation: Tensor) -> Tensor:
        """Return vectors in float32. [batch, *obs] -> [batch, size]"""
        rows = observation.reshape(-1, self._size)
        if self.one_hot is not None:
            rows = self.one_hot(rows)
        numbers = rows.float()
        if self.shares is not None:
            return self.shares(numbers)
        return numbers if self._unit == 1 else numbers * self._unit


def numbers(space: gym.Space[Any], shares: bool = True) -> list[nn.Module]:
    """Return the modules that convert observations to vectors; none if the observations are vectors already.

    Agents pass real numbers as float32.
    """
    if (
        not isinstance(space, gym.spaces.Box)
        or not space.shape
        or space.dtype not in (np.float32, np.float64)
    ):
        return [FlattenInputs(space, shares)]
    return [] if len(space.shape) == 1 else [nn.Flatten()]


def vector_space(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return the space of the network's input: a vector space if there are several inputs without images."""
    if isinstance(space, gym.spaces.Dict) and not sees_images(space):
        return ConcatInputs(space).space
    return space


class ConcatInputs:
    """Converts several inputs without images to one vector, by a `FlattenInputs` for each input."""

    def __init__(self, space: gym.spaces.Dict) -> None:
        self._parts = {name: FlattenInputs(inner) for name, inner in space.spaces.items()}
        size = sum(gym.spaces.flatdim(inner) for inner in space.spaces.values())
        self.space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        """Space of the vector."""

    def __call__(self, observation: Any) -> Any:
        """Convert a structured array with a field for each input, or a dict of tensors. Returns float32.

        [batch] -> [batch, size]
        """
        exported = isinstance(observation, dict)
        columns = []
        for name, flatten in self._parts.items():
            values = observation[name]
            # A field of a structured array is copied, because a tensor cannot view it.
            columns.append(flatten(values if exported else torch.from_numpy(np.array(values, order="C"))))
        joined = torch.cat(columns, dim=1)
        return joined if exported else joined.numpy()


def add_weighted(sum_: Tensor, term: Tensor, weight: float | Tensor, sign: int = 1) -> Tensor:
    """Return `sum_` with a weighted term added, or subtracted for sign=-1, as one operation.

    weight: a number or a scalar tensor. For the number 0, the term is omitted, because torch would still
    differentiate it.
    """
    if isinstance(weight, Tensor):
        return torch.addcmul(sum_, term, weight, value=sign)
    return torch.add(sum_, term, alpha=sign * weight) if weight else sum_
