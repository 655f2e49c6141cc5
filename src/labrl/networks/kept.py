"""What acting has computed, kept for learning by the same weights: only the way back is left to do.

An agent that learns once from each rollout, as A2C does, meets every observation twice before its weights
change: it acts on it, and differentiates what it then computes again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labrl.networks.packed import Packable, Packed

MOST_BYTES = 2**26
"""Of all that is kept: some 1,500 rows of the Nature CNN, where A2C learns from 80."""


class Kept:
    """Outputs of packed layers for the rows of a rollout."""

    def __init__(self, packed: Packed, num_rows: int) -> None:
        self._packed = packed
        self._outputs = [_room(num_rows, shape) for shape in packed.shapes]
        self._version = np.zeros(num_rows, np.int64)
        """By which of the packed weights each row came about; 0: none yet."""

    @classmethod
    def possible(cls, packed: Packed, num_rows: int) -> Kept | None:
        """Room for `num_rows` of what layers give; None where that is too much."""
        numbers = num_rows * sum(shape.numel() for shape in packed.shapes)
        return None if 2 * numbers > MOST_BYTES else cls(packed, num_rows)

    def put(self, rows: slice, outputs: Sequence[Tensor]) -> None:
        """Keep what the layers gave for some rows; of different ones, several threads at once."""
        for place, output in zip(self._outputs, outputs, strict=True):
            place[rows].copy_(output)
        self._version[rows] = self._packed.version

    def of(self, rows: slice) -> list[Tensor] | None:
        """What the layers give for some rows; None where not all are there, or the weights are others now."""
        if not self._packed.fresh or (self._version[rows] != self._packed.version).any():
            return None
        return [output[rows] for output in self._outputs]

    @contextmanager
    def beside(self, torso: Any, rows: slice) -> Iterator[None]:
        """Within it `torso`, if these are its layers, acts into these rows, and learns from what is there."""
        its_own = getattr(torso, "packed", None) is self._packed
        if its_own:
            torso.kept = self, rows
        try:
            yield
        finally:
            if its_own:
                torso.kept = None


def along(layers: Sequence[Packable], x: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    """What `layers` make of x, to be differentiated, each one's output being known.

    x: pictures [n, channels, height, width], bfloat16. Returns features [n, size], bfloat16.
    """
    for each, output in zip(layers, outputs, strict=True):
        weight = each.layer.weight if each.divisor == 1 else each.layer.weight / each.divisor
        assert each.layer.bias is not None
        narrow = weight.to(x.dtype), each.layer.bias.to(x.dtype)
        x = _Known.apply(x if each.stride else x.flatten(1), *narrow, output, each.stride)
    return x.flatten(1)


class _Known(torch.autograd.Function):
    """A layer and its ReLU: a convolution with a stride, or a linear one with none."""

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
    """Numbers [num_rows, *shape] in bfloat16, of pictures with their channels last, as layers give them."""
    room = torch.empty((num_rows, *shape), dtype=torch.bfloat16)
    return room.contiguous(memory_format=torch.channels_last) if len(shape) == 3 else room
