"""Weights that one process publishes and another reads, through memory that both map."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

_HEADER = 64
"""Bytes before the first tensor. They hold the number of starts and ends of writes, and the version."""


def _tensors(modules: Mapping[str, nn.Module]) -> Iterator[Tensor]:
    """Yield weights and buffers in an order that is the same for every copy of the agent."""
    for name in sorted(modules):
        yield from (tensor.detach() for tensor in modules[name].state_dict().values() if tensor.numel())


class WeightsFile:
    """The newest weights, in a file that may be unlinked once both processes have opened it.

    The writer never waits; a reader that meets an unfinished write reads again. `version` is the writer's
    count of optimizer updates.
    """

    def __init__(self, path: Path, modules: Mapping[str, nn.Module], create: bool = False) -> None:
        """modules: networks of the same shapes as those of the other process; create: whether to create the
        file, which the writer does."""
        layout, end = [], _HEADER
        for tensor in _tensors(modules):
            layout.append((tensor.dtype, tensor.shape, end))
            end += -(-tensor.nbytes // _HEADER) * _HEADER
        if create:
            with path.open("wb") as file:
                file.truncate(end)
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), end)
        self._header = torch.frombuffer(memory, dtype=torch.int64, count=2)
        self._places = [
            torch.frombuffer(memory, dtype=dtype, count=shape.numel(), offset=offset).view(shape)
            for dtype, shape, offset in layout
        ]
        self._taken = 0

    def publish(self, modules: Mapping[str, nn.Module], version: int) -> None:
        """Write the weights of `modules`, which the other process uses from its next step on."""
        self._header[0] += 1  # an odd number tells the reader that a write is in progress
        for place, tensor in zip(self._places, _tensors(modules), strict=True):
            place.copy_(tensor)
        self._header[1] = version
        self._header[0] += 1

    def take(self, modules: Mapping[str, nn.Module]) -> int:
        """Copy the latest published weights into `modules` if they are new. Return their version."""
        while (written := int(self._header[0])) != self._taken or written % 2:
            if written % 2 == 0:
                version = int(self._header[1])
                for place, tensor in zip(self._places, _tensors(modules), strict=True):
                    tensor.copy_(place)
                if int(self._header[0]) == written:
                    self._taken, self._version = written, version
                    break
            time.sleep(1e-4)
        return self._version
