"""Single layers: the activations that may follow one, how weights begin, how outputs are normalized."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

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
