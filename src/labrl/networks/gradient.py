"""Flat parameters, and gradients computed by several workers on shares of one minibatch.

All parameters of a network lie in one vector, and so do their gradients: clipping, averaging and the
optimizer's update are then a few operations for the whole network instead of a few for each layer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.networks.compute import Compute
from labrl.networks.ranks import ALONE

Result = TypeVar("Result")
Network = TypeVar("Network", bound=nn.Module)


class FlatParameters:
    """Makes the parameters of `module` views of one vector, `vector`, and their gradients of another."""

    def __init__(self, module: nn.Module) -> None:
        trained = _trained(module)
        size = sum(_aligned(p.numel()) for p in trained)
        self.vector = nn.Parameter(torch.zeros(size, device=trained[0].device))
        self._bound: list[list[nn.Parameter]] = []
        self._bind(module, copy_values=True)
        self.vector.grad = self.bind_gradients(module)

    def _bind(self, module: nn.Module, copy_values: bool) -> None:
        trained = _trained(module)
        for parameter, place in zip(trained, _views(trained, self.vector.data), strict=True):
            if copy_values:
                place.copy_(parameter.data)
            parameter.data = place
        self._bound.append(trained)

    def move_to(self, memory: Tensor) -> None:
        """Let the weights, those of all copies that share them too, be what lies in `memory`. [size]"""
        self.vector.data = memory
        for trained in self._bound:
            for parameter, place in zip(trained, _views(trained, memory), strict=True):
                parameter.data = place

    def bind_gradients(self, module: nn.Module) -> Tensor:
        """Let the gradients of `module` gather in a new vector, which is returned. [size]"""
        gradient = torch.zeros_like(self.vector.data)
        for parameter, place in zip(_trained(module), _views(_trained(module), gradient), strict=True):
            parameter.grad = place
        return gradient

    def parts(self, module: nn.Module, owners: Sequence[nn.Module]) -> list[nn.Parameter]:
        """The parameters of some modules inside `module`, in as few pieces as they lie in; with gradients."""
        owned = {id(parameter) for owner in owners for parameter in owner.parameters()}
        ranges: list[list[int]] = []
        start = 0
        for parameter in _trained(module):
            stop = start + _aligned(parameter.numel())
            if id(parameter) in owned and ranges and ranges[-1][1] == start:
                ranges[-1][1] = stop
            elif id(parameter) in owned:
                ranges.append([start, stop])
            start = stop
        assert self.vector.grad is not None
        pieces = []
        for first, end in ranges:
            piece = nn.Parameter(self.vector.data[first:end])
            piece.grad = self.vector.grad[first:end]
            pieces.append(piece)
        return pieces

    def replica(self, module: Network) -> tuple[Network, Tensor]:
        """A copy of `module` with the same weights in the same memory and gradients of its own."""
        twin = copy.deepcopy(module)
        self._bind(twin, copy_values=False)
        return twin, self.bind_gradients(twin)

    def frozen(self, module: Network) -> Network:
        """A copy of `module` that shares its weights and buffers and gathers no gradients."""
        twin = copy.deepcopy(module)
        self._bind(twin, copy_values=False)
        for own, buffer in zip(twin.buffers(), module.buffers(), strict=True):
            own.data = buffer.data
        return twin.requires_grad_(False)


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def _views(trained: Sequence[nn.Parameter], vector: Tensor) -> list[Tensor]:
    """Pieces of `vector` shaped and laid out in memory like each of the `trained` parameters."""
    views, start = [], 0
    for parameter in trained:
        views.append(vector.as_strided(parameter.shape, parameter.stride(), start))
        start += _aligned(parameter.numel())
    return views


def _aligned(count: int) -> int:
    """`count` floats rounded up to a cache line, since matrix kernels are slower on odd addresses."""
    return -(-count // 16) * 16


class GradientWorkers(Generic[Network]):
    """Gradients of a mean loss over a minibatch, each worker doing a share of it with one torch thread.

    Two workers of one thread each are faster on a CPU than one worker with two threads, since they
    meet once a minibatch instead of once an operation. Shares and the order of the sum are fixed, so
    a run repeats bit for bit for a given number of workers.
    """

    def __init__(self, module: Network, num_workers: int, compute: Compute | None = None) -> None:
        """compute: of the session, which may have ranks over which gradients are averaged too, each from a
        minibatch of its own, and may ask for the noise scale."""
        self._ranks = ALONE if compute is None else compute.ranks
        self._noise = None if compute is None or compute.noise is None else compute.noise.new()
        self.flat = FlatParameters(module)
        gradient = self.flat.vector.grad
        assert gradient is not None
        self._replicas: list[tuple[Network, Tensor]] = [(module, gradient)]
        self._replicas += [self.flat.replica(module) for _ in range(num_workers - 1)]
        self._pool = ThreadPoolExecutor(num_workers - 1, "gradient") if num_workers > 1 else None

    @property
    def num_workers(self) -> int:
        """How many shares a minibatch is cut into."""
        return len(self._replicas)

    def map(self, work: Callable[[Network, slice], Result], size: int) -> list[Result]:
        """`work(replica, share)` on all workers at once, the shares cutting `size` rows into slices.

        Returns the results in the order of the shares; with fewer rows than workers, some have no share.
        """
        if self._pool is None:
            return [work(self._replicas[0][0], slice(0, size))]
        n = min(self.num_workers, size)
        shares = [slice(size * i // n, size * (i + 1) // n) for i in range(n)]
        others = [
            self._pool.submit(work, replica, share)
            for (replica, _), share in zip(self._replicas[1:n], shares[1:], strict=True)
        ]
        first = work(self._replicas[0][0], shares[0])
        return [first, *(other.result() for other in others)]

    def backward(self, loss: Callable[[Network, slice], tuple[Tensor, Tensor]], size: int) -> Tensor:
        """Gradient of a mean loss over `size` rows into `flat.vector.grad`.

        loss: from a replica and its share of the rows to the mean loss and mean statistics, [n], of the
        share. Returns the mean statistics of all rows, [n]. Of several ranks, each gets the means over all.
        """
        half = None if self._noise is None else self._noise.half(loss, *self._replicas[0], size)
        for _, gradient in self._replicas:
            gradient.zero_()

        def work(replica: Network, share: slice) -> Tensor:
            value, statistics = loss(replica, share)
            weight = (share.stop - share.start) / size
            if weight == 1:
                value.backward()
                return statistics
            (value * weight).backward()
            return statistics * weight

        results = self.map(work, size)
        total = self._replicas[0][1]
        for _, gradient in self._replicas[1:]:
            total.add_(gradient)
        statistics = results[0] if len(results) == 1 else torch.stack(results).sum(0)
        self._ranks.mean_(total, statistics)
        if self._noise is not None and half is not None:
            self._noise.add(size // 2, half, size * self._ranks.size, float(total.square().sum()))
        return statistics

    def close(self) -> None:
        """End the worker threads."""
        if self._pool is not None:
            self._pool.shutdown()


def joined(shares: Sequence[Tensor]) -> NDArray:
    """Results of `map` as one array, [sum of the shares, ...]."""
    return (shares[0] if len(shares) == 1 else torch.cat(list(shares))).cpu().numpy()
