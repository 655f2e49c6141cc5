"""Convolutional networks for acting, in bfloat16 on a CPU, their weights as its kernels read them.

These multiply blocks of a weight matrix. torch cuts it into them in every call, which for the Nature CNN and
eight pictures takes longer than the products; between two updates, acting needs it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Packable:
    """A layer that a ReLU follows."""

    layer: nn.Conv2d | nn.Linear
    divisor: float = 1.0
    """By which its weights are divided."""

    @property
    def stride(self) -> list[int]:
        """Of a convolution; of a linear layer none."""
        return list(self.layer.stride) if isinstance(self.layer, nn.Conv2d) else []


class Packed:
    """Layers one after the other, as oneDNN computes them: the same numbers as by torch under autocast."""

    def __init__(self, layers: Sequence[Packable]) -> None:
        self._layers = list(layers)
        self._weights: list[tuple[Tensor, Tensor, list[int]]] = []
        self.fresh = False
        """Whether they are the weights of the layers as these are now."""
        self.version = 0
        """How often they have followed the layers."""
        self.shapes: list[torch.Size] = []
        """What each layer gives for a picture."""

    @classmethod
    def possible(cls, layers: Sequence[Packable], first: Tensor) -> Packed | None:
        """The layers packed; None where one does more, or this build of torch cannot.

        first: some input, [n, channels, height, width].
        """
        if not all(_is_plain(each.layer) for each in layers):
            return None
        packed = cls(layers)
        try:
            packed.refresh()
            packed.shapes = [output.shape[1:] for output in packed.outputs(first)]
        except (AttributeError, RuntimeError):
            return None
        return packed

    @property
    def usable(self) -> bool:
        """Whether it stands for the layers here: nobody differentiates, and they would be rounded too."""
        return self.fresh and torch.is_inference_mode_enabled() and torch.is_autocast_enabled("cpu")

    @torch.no_grad()
    def refresh(self) -> None:
        """Follow the layers."""
        self._weights = [self._pack(each) for each in self._layers]
        self.fresh = True
        self.version += 1

    @staticmethod
    def _pack(each: Packable) -> tuple[Tensor, Tensor, list[int]]:
        layer = each.layer
        assert layer.bias is not None
        weight, bias = layer.weight.detach(), layer.bias.detach().to(torch.bfloat16)
        weight = (weight if each.divisor == 1 else weight / each.divisor).to(torch.bfloat16)
        if isinstance(layer, nn.Linear):
            return torch.ops.mkldnn._reorder_linear_weight(weight), bias, []
        reorder = torch.ops.mkldnn._reorder_convolution_weight
        return reorder(weight, [0, 0], each.stride, [1, 1], 1), bias, each.stride

    def outputs(self, x: Tensor) -> list[Tensor]:
        """x: pictures [n, channels, height, width], bfloat16. Returns what each layer gives, bfloat16."""
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


def _is_plain(layer: nn.Conv2d | nn.Linear) -> bool:
    """Whether a layer has a bias, and a convolution neither padding nor gaps nor groups."""
    if layer.bias is None:
        return False
    return isinstance(layer, nn.Linear) or (
        layer.padding == (0, 0) and layer.dilation == (1, 1) and layer.groups == 1
    )
