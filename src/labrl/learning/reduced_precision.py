"""Faster bfloat16 on a CPU: weights rounded once for all workers, and a Nature CNN with packed weights.

The results are those of autocast, with less work. The learner installs these parts in its workers' copies of
a network; the network itself does not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from labrl.networks.torso import ImageTorso, NatureCNN, PixelConvolution

SMALLEST_MATRIX = 2**18
"""Size of a weight matrix above which a rounded copy is worthwhile."""


class NarrowWeights:
    """The large weight matrices of a network in bfloat16, shared by all its copies.

    Autocast would round them again in every forward pass of every worker and widen their gradients each time:
    1.6 million numbers for the Nature CNN. Only matrices of image torsos are included, because autocast
    rounds every operand of their layers.
    """

    def __init__(self, network: nn.Module) -> None:
        self._full = self._large(network)
        self._narrow = [weight.detach().to(torch.bfloat16) for weight in self._full]
        self._watched = list(network.parameters())
        self._versions = self._present()

    @staticmethod
    def _large(network: nn.Module) -> list[Tensor]:
        torsos = [part for part in network.modules() if isinstance(part, ImageTorso)]
        layers = [layer for torso in torsos for layer in torso.modules() if type(layer) is nn.Linear]
        return [layer.weight for layer in layers if layer.weight.numel() >= SMALLEST_MATRIX]

    def __bool__(self) -> bool:
        return bool(self._full)

    def give_to(self, replica: nn.Module) -> None:
        """Make a copy of the network use the rounded weights."""
        for weight, narrow in zip(self._large(replica), self._narrow, strict=True):
            weight.data = narrow

    @property
    def behind(self) -> bool:
        """Whether the network's weights have changed since the last refresh, except by the flat vector."""
        return self._versions != self._present()

    def refresh(self) -> None:
        """Round the current weights of the network."""
        for narrow, weight in zip(self._narrow, self._full, strict=True):
            narrow.copy_(weight.detach())
        self._versions = self._present()

    def _present(self) -> list[int]:
        return [weight._version for weight in self._watched]


class Layer(NamedTuple):
    """A convolution or linear layer followed by a ReLU."""

    module: nn.Conv2d | nn.Linear
    divisor: float = 1.0
    """Divisor of the weights."""

    @property
    def stride(self) -> list[int]:
        """Stride of a convolution; empty for a linear layer."""
        return list(self.module.stride) if isinstance(self.module, nn.Conv2d) else []


class PackedLayers:
    """Consecutive layers with weights packed into the blocks that oneDNN multiplies.

    torch packs the weights in every call, which takes longer than the products for the Nature CNN and eight
    images. Acting needs to pack them only once between two updates.
    """

    def __init__(self, layers: Sequence[Layer], example: Tensor) -> None:
        """example: an input, [n, channels, height, width]. Raises RuntimeError if torch lacks the kernels."""
        self._layers = list(layers)
        self.fresh = False
        """Whether the packed weights are the current ones of the layers."""
        self.refresh()
        self.outputs(example)
        self.fresh = False

    @torch.no_grad()
    def refresh(self) -> None:
        """Pack the current weights of the layers."""
        self._weights = [self._pack(layer) for layer in self._layers]
        self.fresh = True

    @staticmethod
    def _pack(layer: Layer) -> tuple[Tensor, Tensor, list[int]]:
        assert layer.module.bias is not None
        weight, bias = layer.module.weight.detach(), layer.module.bias.detach().to(torch.bfloat16)
        weight = (weight if layer.divisor == 1 else weight / layer.divisor).to(torch.bfloat16)
        if isinstance(layer.module, nn.Linear):
            return torch.ops.mkldnn._reorder_linear_weight(weight), bias, []
        reorder = torch.ops.mkldnn._reorder_convolution_weight
        return reorder(weight, [0, 0], layer.stride, [1, 1], 1), bias, layer.stride

    def outputs(self, x: Tensor) -> list[Tensor]:
        """Compute each layer's output in bfloat16. x: images, [n, channels, height, width], bfloat16."""
        outputs = []
        for weight, bias, stride in self._weights:
            if stride:
                x = torch.ops.mkldnn._convolution_pointwise(
                    x, weight, bias, [0, 0], stride, [1, 1], 1, "relu", [], ""
                )
            else:
                x = torch.ops.mkldnn._linear_pointwise(x.flatten(1), weight, bias, "relu", [], "")
            outputs.append(x)
        return outputs


class FastNatureCNN(nn.Module):
    """Replaces a NatureCNN in a worker's copy of a network, with the same results."""

    def __init__(self, torso: NatureCNN, packed: PackedLayers) -> None:
        super().__init__()
        self.torso, self.packed = torso, packed

    def forward(self, observation: Tensor) -> Tensor:
        """Compute features. [batch, height, width, channels] -> [batch, features]"""
        if self.packed.fresh and torch.is_inference_mode_enabled() and torch.is_autocast_enabled("cpu"):
            outputs = self.packed.outputs(self.torso.first.pixels(observation, torch.bfloat16))
            return outputs[-1].flatten(1)
        return self.torso(observation)


def install_packed(replicas: Sequence[nn.Module]) -> list[FastNatureCNN]:
    """Replace the NatureCNN of each copy of a network by a FastNatureCNN.

    Returns the new torsos, or an empty list if the network has no or several NatureCNNs, or one with more
    than plain layers and ReLUs.
    """
    found = {module for module in replicas[0].modules() if type(module) is NatureCNN}
    if len(found) != 1:
        return []
    torso = found.pop()
    layers = _layers_of(torso)
    if not _is_plain(torso, layers):
        return []
    height, width, channels = torso.image_shape
    try:
        packed = PackedLayers(layers, torch.zeros(1, channels, height, width, dtype=torch.bfloat16))
    except (AttributeError, RuntimeError):  # a build of torch without these kernels
        return []
    return [_replace(replica, packed) for replica in replicas]


def _replace(network: nn.Module, packed: PackedLayers) -> FastNatureCNN:
    places = [
        (parent, name, child)
        for parent in list(network.modules())
        for name, child in parent._modules.items()  # named_children() omits a torso with two names
        if type(child) is NatureCNN
    ]
    fast = FastNatureCNN(places[0][2], packed)
    for parent, name, _ in places:
        setattr(parent, name, fast)
    return fast


def _layers_of(torso: NatureCNN) -> list[Layer]:
    """Return the layers of a torso, the first of which divides pixels by their range."""
    parts = [*torso.convolutions, *torso.linear.modules()]
    later = [Layer(part) for part in parts if isinstance(part, nn.Conv2d | nn.Linear)]
    return [Layer(torso.first, torso.first.divisor), *later]


def _is_plain(torso: NatureCNN, layers: Sequence[Layer]) -> bool:
    """Return whether the torso consists of these layers and ReLUs, without parametrizations."""
    leaves = [part for part in torso.linear.modules() if not list(part.children())]
    parts = [torso.first, *torso.convolutions, *leaves]
    kinds = [type(part) for part in parts if not isinstance(part, nn.Flatten | nn.Identity)]
    if kinds != [kind for layer in layers for kind in (type(layer.module), nn.ReLU)]:
        return False
    return all(
        type(layer.module) in (PixelConvolution, nn.Conv2d, nn.Linear)
        and layer.module.bias is not None
        and (
            isinstance(layer.module, nn.Linear)
            or (
                layer.module.padding == (0, 0)
                and layer.module.dilation == (1, 1)
                and layer.module.groups == 1
            )
        )
        for layer in layers
    )
