"""Faster bfloat16 on a CPU: weights rounded once for all workers, and a Nature CNN with packed weights.

The results are those of autocast, with less work. The learner installs these parts in its workers' copies of
a network; the network itself does not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from labrl.networks.torso import ImageTorso, NatureCNN, PixelConvolution

SMALLEST_MATRIX = 2**18
"""Size of a weight matrix above which a rounded copy is worthwhile."""

MOST_KEPT_BYTES = 2**26
"""Limit of the outputs kept from acting: about 1,500 rows of the Nature CNN; A2C learns from 80."""


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
        self.version = 0
        """Number of times that the weights were packed."""
        self.fresh = False
        """Whether the packed weights are the current ones of the layers."""
        self.refresh()
        self.shapes = [output.shape[1:] for output in self.outputs(example)]
        """Shape of each layer's output for one image."""
        self.fresh = False

    @torch.no_grad()
    def refresh(self) -> None:
        """Pack the current weights of the layers."""
        self._weights = [self._pack(layer) for layer in self._layers]
        self.fresh = True
        self.version += 1

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


class KeptOutputs:
    """Layer outputs of the rows of a rollout, kept from acting for a gradient of the same weights.

    An agent that learns once from each rollout, such as A2C, uses every observation twice before its weights
    change: for acting and for the gradient, which then needs only the backward pass.
    """

    def __init__(self, packed: PackedLayers, num_rows: int) -> None:
        self._packed = packed
        self._outputs = [_room(num_rows, shape) for shape in packed.shapes]
        self._version = np.zeros(num_rows, np.int64)  # version of the packed weights of each row; 0 if none

    def put(self, rows: slice, outputs: Sequence[Tensor]) -> None:
        """Keep the outputs of some rows. Threads may call this for different rows at the same time."""
        for place, output in zip(self._outputs, outputs, strict=True):
            place[rows].copy_(output)
        self._version[rows] = self._packed.version

    def of(self, rows: slice) -> list[Tensor] | None:
        """Return the outputs of some rows; None if a row is missing or the weights have changed."""
        if not self._packed.fresh or (self._version[rows] != self._packed.version).any():
            return None
        return [output[rows] for output in self._outputs]


class FastNatureCNN(nn.Module):
    """Replaces a NatureCNN in a worker's copy of a network, with the same results."""

    def __init__(self, torso: NatureCNN, packed: PackedLayers) -> None:
        super().__init__()
        self.torso, self.packed = torso, packed
        self.kept: KeptOutputs | None = None
        self.rows: slice | None = None
        """Rows of `kept` that the next call computes; None to neither keep nor look up outputs."""

    def forward(self, observation: Tensor) -> Tensor:
        """Compute features. [batch, height, width, channels] -> [batch, features]"""
        if self.packed.fresh and torch.is_inference_mode_enabled() and torch.is_autocast_enabled("cpu"):
            outputs = self.packed.outputs(self.torso.first.pixels(observation, torch.bfloat16))
            if self.kept is not None and self.rows is not None:
                self.kept.put(self.rows, outputs)
            return outputs[-1].flatten(1)
        if self.kept is not None and self.rows is not None and torch.is_grad_enabled():
            known = self.kept.of(self.rows)
            if known is not None:
                pixels = self.torso.first.pixels(observation, torch.bfloat16)
                return _differentiable(_layers_of(self.torso), pixels, known)
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


def keep_outputs(torsos: Sequence[FastNatureCNN], num_rows: int) -> bool:
    """Make the torsos keep outputs for `num_rows` rows. Returns False if that would need too much memory."""
    packed = torsos[0].packed
    if 2 * num_rows * sum(shape.numel() for shape in packed.shapes) > MOST_KEPT_BYTES:
        return False
    kept = KeptOutputs(packed, num_rows)
    for torso in torsos:
        torso.kept = kept
    return True


def _differentiable(layers: Sequence[Layer], x: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    """Return features whose gradients flow through layers with known outputs, without a forward pass.

    x: images, [n, channels, height, width], bfloat16. Returns features, [n, size], bfloat16.
    """
    for layer, output in zip(layers, outputs, strict=True):
        weight = layer.module.weight if layer.divisor == 1 else layer.module.weight / layer.divisor
        assert layer.module.bias is not None
        narrow = weight.to(x.dtype), layer.module.bias.to(x.dtype)
        x = _KnownLayer.apply(x if layer.stride else x.flatten(1), *narrow, output, layer.stride)
    return x.flatten(1)


class _KnownLayer(torch.autograd.Function):
    """A layer and its ReLU with a known output: a convolution if there is a stride, else a linear layer."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, output: Tensor, stride: list[int]
    ) -> Tensor:
        ctx.save_for_backward(x, weight, output)
        ctx.stride = stride
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, output = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, output, 0)
        wanted = list(ctx.needs_input_grad[:3])
        if not ctx.stride:
            back = grad @ weight if wanted[0] else None
            return back, grad.t() @ x, grad.sum(0), None, None
        backward = torch.ops.aten.convolution_backward
        grads = backward(grad, x, weight, [len(weight)], ctx.stride, [0, 0], [1, 1], False, [0, 0], 1, wanted)
        return *grads, None, None


def _room(num_rows: int, shape: torch.Size) -> Tensor:
    """Return an uninitialized bfloat16 tensor, [num_rows, *shape], with channels last for images."""
    room = torch.empty((num_rows, *shape), dtype=torch.bfloat16)
    return room.contiguous(memory_format=torch.channels_last) if len(shape) == 3 else room
