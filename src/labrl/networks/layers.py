"""Single layers: the activations that may follow one, how weights begin, how outputs are normalized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


# fmt: off
Activation = Literal[
    "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid",
    "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh",
    "Tanhshrink",
]
# fmt: on
"""Activations of torch.nn that act on each element by itself, draw nothing and learn nothing."""

IN_PLACE = {"ReLU": torch.relu_, "Tanh": torch.tanh_}


def activation(name: Activation) -> Callable[[Tensor], Tensor]:
    """The activation of that name, for outputs of a layer that nobody else reads.

    So the two most common ones act where these lie.
    """
    module: nn.Module = getattr(nn, name)()
    return IN_PLACE.get(name, module.forward)


def activation_layer(name: Activation) -> nn.Module:
    """The same as a module."""
    return nn.ReLU(inplace=True) if name == "ReLU" else getattr(nn, name)()


def check_head(units: Mapping[str, list[int]], layer_norm: bool) -> None:
    """Raises ValueError if layers between torso and outputs are to be normalized and there are none.

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
"""How weights begin: orthogonal with gain sqrt(2); all uniform within 1 / sqrt(inputs), biases too, as in
torch; after Glorot & Bengio (2010), with a variance of 2 / (inputs + outputs); after He et al. (2015,
arXiv:1502.01852), of 2 / inputs. Biases are 0 but for `uniform`.

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
