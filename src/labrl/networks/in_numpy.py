"""Small networks computed by NumPy, for acting.

A step of a small environment is bound by the calls of torch, not by the products: a 4-120-84-2 network for
one observation takes 150 us of a session's step in torch and 50 in NumPy. Learning stays with torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from labrl.networks import shortcuts

InNumpy = Callable[[NDArray], NDArray | None]
"""From observations [n, *obs], as its `layout` gives them, to what a network gives; None for more rows than
it is made for."""

Activate = Callable[[NDArray, NDArray], NDArray]
"""An activation, from its inputs and where its outputs go."""

ACTIVATIONS: dict[str, Activate] = {
    "ReLU": lambda x, out: np.maximum(x, 0, out=out),
    "Tanh": lambda x, out: np.tanh(x, out=out),
}
"""By their names in torch.nn."""

Affine = tuple[Tensor, Tensor, Activate | None]
"""Weights [outputs, inputs], biases [outputs], activation."""

MOST_PRODUCTS = 200_000
"""Of a layer: where a matrix product is larger, OpenBLAS starts threads, which would fight with torch's."""


class Chain:
    """Fully connected layers, one after the other, on the very memory of a network's parameters on the CPU.

    So what an optimizer changes in place is changed here too.
    """

    def __init__(self, layers: Iterable[Affine]) -> None:
        self._layers = [
            (weight.detach().numpy().T, bias.detach().numpy(), act) for weight, bias, act in layers
        ]
        self._most_rows = MOST_PRODUCTS // max([weight.size for weight, _, _ in self._layers], default=1)

    def __call__(self, x: NDArray) -> NDArray | None:
        """x: numbers [n, ...]. Returns [n, outputs], float32; None for more rows than it is made for."""
        if len(x) > self._most_rows or not shortcuts.taken():
            return None
        x = x.reshape(len(x), -1).astype(np.float32, copy=False)
        for weight, bias, activate in self._layers:
            x = x @ weight
            x += bias
            if activate is not None:
                activate(x, x)
        return x
