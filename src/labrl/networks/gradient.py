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

from labrl.networks import shortcuts
from labrl.networks.compute import Compute
from labrl.networks.kept import Kept
from labrl.networks.packed import Packed
from labrl.networks.ranks import ALONE

WORTH_A_WORKER = 16
"""Rows for which a worker goes through narrow weights: two for less are slower than one for all."""

WORTH_A_WORKER_PACKED = 8
"""The same where no worker has to lay out these weights."""

Result = TypeVar("Result")
Network = TypeVar("Network", bound=nn.Module)


class FlatParameters:
    """Makes the parameters of `module` views of one vector, `vector`, and their gradients of another."""

    def __init__(self, module: nn.Module) -> None:
        trained = _trained(module)
        size = sum(_aligned(p.numel()) for p in trained)
        self.vector = nn.Parameter(torch.zeros(size, device=trained[0].device))
        self.vector.grad = torch.zeros_like(self.vector.data)
        self.shared = False
        """Whether others may write the weights at any time."""
        self._bound: list[list[nn.Parameter]] = []
        self._pieces: list[tuple[nn.Parameter, slice]] = []
        self._bind(module, copy_values=True)
        for parameter, place in zip(trained, _views(trained, self.vector.grad), strict=True):
            parameter.grad = place

    def _bind(self, module: nn.Module, copy_values: bool) -> None:
        trained = _trained(module)
        for parameter, place in zip(trained, _views(trained, self.vector.data), strict=True):
            if copy_values:
                place.copy_(parameter.data)
            parameter.data = place
        self._bound.append(trained)

    def move_to(self, memory: Tensor) -> None:
        """Let the weights, those of all copies that share them too, be what lies in `memory`, where others
        may write. [size]"""
        self.vector.data = memory
        self.shared = True
        for trained in self._bound:
            for parameter, place in zip(trained, _views(trained, memory), strict=True):
                if parameter.dtype == memory.dtype:  # a narrow copy follows when it is refreshed
                    parameter.data = place
        for piece, where in self._pieces:
            piece.data = memory[where]

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
            self._pieces.append((piece, slice(first, end)))
        return pieces

    def replica(self, module: Network, same_buffers: bool = False) -> Network:
        """A copy of `module` with the same weights in the same memory, and no gradients yet.

        same_buffers: whether what a forward pass keeps is kept in the same memory too.
        """
        twin = copy.deepcopy(module)
        self._bind(twin, copy_values=False)
        for parameter in twin.parameters():
            parameter.grad = None
        if same_buffers:
            for own, buffer in zip(twin.buffers(), module.buffers(), strict=True):
                own.data = buffer.data
        return twin

    def frozen(self, module: Network) -> Network:
        """A copy of `module` that shares its weights and buffers and gathers no gradients."""
        return self.replica(module, same_buffers=True).requires_grad_(False)


class NarrowWeights:
    """The large weight matrices of a network in bfloat16, once for all that compute with them.

    Autocast would make them anew in every forward pass of every worker, and widen their gradients in each: of
    the Nature CNN 1.6 million numbers. Nothing is computed otherwise. They are those of the modules that have
    an attribute `all_in_autocast` that is true, for elsewhere they may meet numbers in float32.
    """

    SMALLEST = 2**18
    """Weights of a matrix that is worth it."""

    def __init__(self, module: nn.Module) -> None:
        self._full = self._large(module)
        self._narrow = [weight.detach().to(torch.bfloat16) for weight in self._full]
        self._watched = list(module.parameters())
        self._versions = self._present()

    @classmethod
    def _large(cls, module: nn.Module) -> list[Tensor]:
        parts = [part for part in module.modules() if getattr(part, "all_in_autocast", False)]
        layers = [layer for part in parts for layer in part.modules() if type(layer) is nn.Linear]
        return [layer.weight for layer in layers if layer.weight.numel() >= cls.SMALLEST]

    def __bool__(self) -> bool:
        return bool(self._full)

    def give_to(self, twin: nn.Module) -> None:
        """Let a copy of the network compute with them."""
        for weight, narrow in zip(self._large(twin), self._narrow, strict=True):
            weight.data = narrow

    @property
    def behind(self) -> bool:
        """Whether something was written into the network's own weights. (The flat vector's are not seen.)"""
        return self._versions != self._present()

    def refresh(self) -> None:
        """Follow the network."""
        for narrow, weight in zip(self._narrow, self._full, strict=True):
            narrow.copy_(weight.detach())
        self._versions = self._present()

    def _present(self) -> list[int]:
        return [weight._version for weight in self._watched]


def share_packed(networks: Sequence[nn.Module]) -> list[Packed]:
    """Let copies of a network act by the same packed torsos, where it has such. Returns these."""
    found = []
    for copies in zip(*(network.modules() for network in networks), strict=True):
        packed = copies[0].pack() if hasattr(copies[0], "pack") else None
        if packed is not None:
            found.append(packed)
            for torso in copies:
                torso.packed = packed
    return found


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

    Two workers of one thread each are faster on a CPU than one with two threads where the products take
    most of the time, since they meet once a minibatch instead of once an operation. Beside other busy
    processes they are so by far: PPO on Pong made 330 frames a second in place of 14. Shares and the order
    of the sum are fixed, so a run repeats bit for bit for a given number of workers.
    """

    def __init__(self, module: Network, num_workers: int, compute: Compute | None = None) -> None:
        """compute: of the session, which may have ranks over which gradients are averaged too, each from a
        minibatch of its own, and may ask for the noise scale."""
        self._ranks = ALONE if compute is None else compute.ranks
        self._noise = None if compute is None or compute.noise is None else compute.noise.new()
        self._module = module
        self.flat = FlatParameters(module)
        assert self.flat.vector.grad is not None
        self._total = self.flat.vector.grad
        self._places = _views(_trained(module), self._total)
        narrows = compute is not None and compute.narrows
        self._narrow = NarrowWeights(module) if narrows else None
        self._direct = not self._narrow
        """Whether the first worker computes with `module` itself, whose gradients lie in the total."""
        networks = [module] if self._direct else [self.flat.replica(module, same_buffers=True)]
        networks += [self.flat.replica(module) for _ in range(num_workers - 1)]
        if self._narrow:
            for network in networks:
                self._narrow.give_to(network)
        self._packed = share_packed(networks) if self._narrow else []
        worthwhile = WORTH_A_WORKER_PACKED if self._packed else WORTH_A_WORKER
        self._least_rows = worthwhile if self._narrow else 1
        self._replicas = [(network, _trained(network)) for network in networks]
        self._pool = ThreadPoolExecutor(num_workers - 1, "gradient") if num_workers > 1 else None

    @property
    def num_workers(self) -> int:
        """How many shares a minibatch is cut into."""
        return len(self._replicas)

    def room_to_keep(self, num_rows: int) -> Kept | None:
        """For what packed layers give for the rows of a rollout; None where there are none, or too many, or
        where others may change the weights between two rows."""
        if len(self._packed) != 1 or self.flat.shared:
            return None
        return Kept.possible(self._packed[0], num_rows)

    def map(self, work: Callable[[Network, slice], Result], size: int, changed: bool = True) -> list[Result]:
        """`work(replica, share)` on all workers at once, the shares cutting `size` rows into slices.

        changed: whether the flat vector may have, since they were last used. Returns the results in the
        order of the shares; with few rows, some have no share.
        """
        self._follow(changed)
        if not shortcuts.taken():
            return [work(self._module, slice(0, size))]
        for packed in self._packed:
            if not packed.fresh:
                packed.refresh()
        return self._map(work, size, self._least_rows)

    def _follow(self, changed: bool) -> None:
        """Let all workers compute as the network does now: its mode, and its weights if they `changed`."""
        for network, _ in self._replicas:
            if network.training != self._module.training:
                network.train(self._module.training)
        if self._narrow and (changed or self._narrow.behind):
            self._narrow.refresh()
            for packed in self._packed:
                packed.fresh = False

    def _map(self, work: Callable[[Network, slice], Result], size: int, least: int = 1) -> list[Result]:
        """least: rows of a share."""
        n = min(self.num_workers, max(size // least, 1))
        if self._pool is None or n == 1:
            return [work(self._replicas[0][0], slice(0, size))]
        shares = [slice(size * i // n, size * (i + 1) // n) for i in range(n)]
        others = [
            self._pool.submit(work, replica, share)
            for (replica, _), share in zip(self._replicas[1:n], shares[1:], strict=True)
        ]
        first = work(self._replicas[0][0], shares[0])
        return [first, *(other.result() for other in others)]

    def backward(
        self,
        loss: Callable[[Network, slice], tuple[Tensor, Tensor]],
        size: int,
        changed: bool = True,
        samples: int = 1,
    ) -> Tensor:
        """Gradient of a mean loss over `size` rows into `flat.vector.grad`.

        loss: from a replica and its share of the rows to the mean loss and mean statistics, [n], of the
        share; changed: as for `map`; samples: in each row, where that is a sequence. Returns the mean
        statistics of all rows, [n]. Of several ranks, each gets the means over all.
        """
        self._follow(changed)
        half = self._of_half(loss, size)
        self._forget()

        def work(replica: Network, share: slice) -> Tensor:
            value, statistics = loss(replica, share)
            weight = (share.stop - share.start) / size
            if weight == 1:
                value.backward()
                return statistics
            (value * weight).backward()
            return statistics * weight

        results = self._map(work, size)
        self._gather(len(results))
        statistics = results[0] if len(results) == 1 else torch.stack(results).sum(0)
        self._ranks.mean_(self._total, statistics)
        if self._noise is not None and half is not None:
            whole = float(self._total.square().sum())
            self._noise.add(samples * (size // 2), half, samples * size * self._ranks.size, whole)
        return statistics

    def _forget(self) -> None:
        """No worker has a gradient."""
        if self._direct:
            self._total.zero_()
        for _, parameters in self._replicas[self._direct :]:
            for parameter in parameters:
                parameter.grad = None  # so that the next one is taken as it is, and not added to zeros

    def _gather(self, num_shares: int) -> None:
        """Add up the gradients of the workers that had a share, in their order."""
        for number in range(int(self._direct), num_shares):
            take = Tensor.copy_ if number == 0 else Tensor.add_
            for place, parameter in zip(self._places, self._replicas[number][1], strict=True):
                if parameter.grad is not None:
                    take(place, parameter.grad)
                elif number == 0:
                    place.zero_()

    def _of_half(self, loss: Callable[[Network, slice], tuple[Tensor, Tensor]], size: int) -> float | None:
        """Where the noise scale is due: the squared norm of the gradient of the first half of the rows.

        The buffers of the network stay as they were.
        """
        if self._noise is None or not self._noise.due(size):
            return None
        module = self._replicas[0][0]
        before = [buffer.clone() for buffer in module.buffers()]
        self._forget()
        loss(module, slice(0, size // 2))[0].backward()
        self._gather(1)
        with torch.no_grad():
            for buffer, saved in zip(module.buffers(), before, strict=True):
                buffer.copy_(saved)
        return float(self._total.square().sum())

    def close(self) -> None:
        """End the worker threads."""
        if self._pool is not None:
            self._pool.shutdown()


def joined(shares: Sequence[Tensor]) -> NDArray:
    """Results of `map` as one array, [sum of the shares, ...]."""
    return (shares[0] if len(shares) == 1 else torch.cat(list(shares))).cpu().numpy()
