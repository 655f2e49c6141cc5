"""Faster bfloat16 on a CPU: large weights rounded once for all workers, with the results of autocast."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labrl.networks.torso import ImageTorso

MIN_MATRIX_SIZE = 2**18
"""Number of weights of a matrix from which a rounded copy is worthwhile."""


class RoundedWeights:
    """The large weight matrices of a network in bfloat16, shared by all its copies.

    Autocast would round them again in every forward pass of every worker and widen their gradients each time:
    1.6 million numbers for the Nature CNN. Only matrices of image torsos are included, because autocast
    rounds every operand of their layers.
    """

    def __init__(self, network: nn.Module) -> None:
        self._full = self._large(network)
        self._rounded = [weight.detach().to(torch.bfloat16) for weight in self._full]
        self._watched = list(network.parameters())
        self._versions = self._present()

    @staticmethod
    def _large(network: nn.Module) -> list[Tensor]:
        torsos = [part for part in network.modules() if isinstance(part, ImageTorso)]
        layers = [layer for torso in torsos for layer in torso.modules() if type(layer) is nn.Linear]
        return [layer.weight for layer in layers if layer.weight.numel() >= MIN_MATRIX_SIZE]

    def __bool__(self) -> bool:
        return bool(self._full)

    def give_to(self, replica: nn.Module) -> None:
        """Make a copy of the network use the rounded weights."""
        for weight, rounded in zip(self._large(replica), self._rounded, strict=True):
            weight.data = rounded

    @property
    def is_stale(self) -> bool:
        """Whether the network's weights have changed since the last refresh, except by the flat vector."""
        return self._versions != self._present()

    def refresh(self) -> None:
        """Round the current weights of the network."""
        for rounded, weight in zip(self._rounded, self._full, strict=True):
            rounded.copy_(weight.detach())
        self._versions = self._present()

    def _present(self) -> list[int]:
        return [weight._version for weight in self._watched]
