"""The weights of a network as one vector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)

CACHE_LINE = 16
"""Number of floats in a cache line. Matrix kernels are slower at addresses that are not multiples of it."""


class FlatParameters:
    """Stores a module's trainable parameters as views of one vector, and their gradients as views of another.

    Clipping, averaging and the optimizer's update are then a few operations for the whole network instead of
    a few for each layer.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = trainable(module)
        size, device = aligned_size(parameters), parameters[0].device
        self.vector = nn.Parameter(torch.zeros(size, device=device))
        """All weights, [size]."""
        self.gradient = torch.zeros_like(self.vector.data)
        """Gradient with respect to all weights, [size]; `vector.grad` uses the same memory."""
        self.vector.grad = self.gradient
        self.shared = False
        """Whether other processes may write the weights at any time."""
        self.moved: list[Callable[[], None]] = []
        """Functions that are called after the weights have moved to other memory."""
        self._bound: list[list[nn.Parameter]] = []
        self._pieces: list[tuple[nn.Parameter, slice]] = []
        self._bind(module, copy_values=True)
        for parameter, place in zip(parameters, views(parameters, self.gradient), strict=True):
            parameter.grad = place

    def _bind(self, module: nn.Module, copy_values: bool) -> None:
        parameters = trainable(module)
        for parameter, place in zip(parameters, views(parameters, self.vector.data), strict=True):
            if copy_values:
                place.copy_(parameter.data)
            parameter.data = place
        self._bound.append(parameters)

    def move_to(self, memory: Tensor) -> None:
        """Use `memory`, [size], as the memory of the weights, in the network and in all of its copies.

        Other processes may write to `memory`.
        """
        self.vector.data = memory
        self.shared = True
        for parameters in self._bound:
            for parameter, place in zip(parameters, views(parameters, memory), strict=True):
                if parameter.dtype == memory.dtype:  # a bfloat16 copy follows when it is refreshed
                    parameter.data = place
        for piece, where in self._pieces:
            piece.data = memory[where]
        for tell in self.moved:
            tell()

    def pieces(self, module: nn.Module, owners: Sequence[nn.Module]) -> list[nn.Parameter]:
        """Return the parameters of some submodules of `module`, with gradients, in as few pieces as possible.

        owners: submodules whose parameters to return.
        """
        owned = {id(parameter) for owner in owners for parameter in owner.parameters()}
        ranges: list[list[int]] = []
        start = 0
        for parameter in trainable(module):
            stop = start + _aligned(parameter.numel())
            if id(parameter) in owned and ranges and ranges[-1][1] == start:
                ranges[-1][1] = stop
            elif id(parameter) in owned:
                ranges.append([start, stop])
            start = stop
        pieces = []
        for first, end in ranges:
            piece = nn.Parameter(self.vector.data[first:end])
            piece.grad = self.gradient[first:end]
            pieces.append(piece)
            self._pieces.append((piece, slice(first, end)))
        return pieces

    def replica(self, module: Network, same_buffers: bool = False) -> Network:
        """Return a copy of `module` that shares its weights' memory and has no gradients yet.

        same_buffers: whether the copy shares the memory of the buffers too.
        """
        twin = copy.deepcopy(module)
        self._bind(twin, copy_values=False)
        for parameter in twin.parameters():
            parameter.grad = None
        if same_buffers:
            for own, buffer in zip(twin.buffers(), module.buffers(), strict=True):
                own.data = buffer.data
        return twin


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that require gradients."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def views(parameters: Sequence[nn.Parameter], vector: Tensor) -> list[Tensor]:
    """Return consecutive parts of `vector` as views with the shapes and memory layouts of the parameters."""
    pieces, start = [], 0
    for parameter in parameters:
        pieces.append(vector.as_strided(parameter.shape, parameter.stride(), start))
        start += _aligned(parameter.numel())
    return pieces


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Return one vector that contains contiguous tensors in the shapes of parameters. [size]"""
    padded = [nn.functional.pad(t.flatten(), (0, _aligned(t.numel()) - t.numel())) for t in tensors]
    return torch.cat(padded)


def aligned_size(parameters: Sequence[nn.Parameter]) -> int:
    """Return the size of the vector that contains the parameters, including padding."""
    return sum(_aligned(parameter.numel()) for parameter in parameters)


def _aligned(count: int) -> int:
    return -(-count // CACHE_LINE) * CACHE_LINE
