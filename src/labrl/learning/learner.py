"""A network that learns: forward to act and to value, the gradient of a loss, and a step of the optimizer.

Everything that makes this fast, or spreads it over threads, processes and number formats, is behind these
three verbs. The network is a plain module and knows none of it; hooks hung on it and parametrizations are
respected.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.component import Component
from labrl.spaces import Spaces, sees_images

if TYPE_CHECKING:
    from labrl.learning.compute import Compute
    from labrl.learning.kernels.networks import Kernel, RolloutKernel, WatchedKernel
    from labrl.learning.optimizers import Optimizer

Network = TypeVar("Network", bound=nn.Module)

LARGE_PRODUCTS = 2**23
"""Weights times samples of a minibatch from which on a matrix product gains from several threads."""


class Minibatch(Protocol):
    """Data that a loss is computed from, in independent units: rows, or sequences."""

    def __len__(self) -> int:
        """Return the number of units."""
        ...

    def __getitem__(self, units: slice) -> Self:
        """Return some of the units."""
        ...


@dataclass(frozen=True)
class Columns:
    """A minibatch of tensors with one row for each sample; derive a dataclass with the columns from it."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(vars(self).values())))

    def __getitem__(self, rows: slice) -> Self:
        """Return some rows of all columns; a column that is None stays None."""
        columns = dict(vars(self))
        for name, column in columns.items():
            if column is not None:
                columns[name] = column[rows]
        return type(self)(**columns)


Batch = TypeVar("Batch", bound=Minibatch)
Loss = Callable[[Any, Batch], tuple[Tensor, Tensor]]
"""Maps a network and a minibatch, or a slice of one, to the mean loss and its statistics: means [k], or a
column for each row [k, rows]."""


@dataclass(frozen=True)
class DerivedLoss(Generic[Batch]):
    """A loss whose gradient is also derived by hand."""

    by_autograd: Loss[Batch]
    """The loss, to be differentiated by torch."""
    by_hand: Callable[[Any, Batch], NDArray] | None
    """Maps the kernel of the network and a minibatch to the same statistics, float32. It calls `forward` and
    `backward` of the kernel. None where the gradient is not known."""

    def __call__(self, network: Any, minibatch: Batch) -> tuple[Tensor, Tensor]:
        """Compute the loss to be differentiated by torch, and its statistics."""
        return self.by_autograd(network, minibatch)


NewOptimizer = Callable[["FlatParameters"], "Optimizer"]
"""Makes the optimizer of the parameters of a network."""


def make_learner(
    network: Network,
    spaces: Spaces,
    compute: Compute,
    optimizer: Component | NewOptimizer,
    max_grad_norm: float | None = None,
    *,
    batch_size: int = 0,
    whole_minibatches: bool = False,
) -> Learner[Network]:
    """Return the learner that is fastest for a network with the observations and resources of a session.

    optimizer: a component, or a function that makes one for the flat parameters; max_grad_norm: largest
    Euclidean norm of a gradient, None without a limit; batch_size: rows of a minibatch, where matrix products
    may be large enough for several threads; whole_minibatches: never cut one into slices.
    """
    if compute.compiled:
        # The class is changed and not the object: a compiled method that an object carries would, in a copy
        # of it, still compute with the weights of the original.
        network.__class__ = _compiled(type(network))  # type: ignore[arg-type]  # a class can be hashed
    if isinstance(optimizer, Component):
        optimizer = partial(_one_optimizer, optimizer, max_grad_norm)
    if sees_images(spaces.observation):
        from labrl.learning.sliced import SlicedLearner  # only images are worth it

        if compute.precision != torch.float32 or (compute.num_threads > 1 and not whole_minibatches):
            return SlicedLearner(network, compute, optimizer, whole_minibatches)
    elif compute.device.type == "cpu":
        # Values of hundreds with differences of one need all digits, and bfloat16 has three: float32 here.
        large = batch_size * sum(weight.numel() for weight in network.parameters()) >= LARGE_PRODUCTS
        return Learner(network, compute, optimizer, compute.num_threads if large else 1, whole_minibatches)
    return Learner(network, compute, optimizer)


@cache
def _compiled(kind: type[nn.Module]) -> Any:
    """Return the class of a network with a forward pass that torch.compile makes at its first call."""
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**names, "forward": torch.compile(kind.forward)})


def _one_optimizer(component: Component, max_grad_norm: float | None, flat: FlatParameters) -> Optimizer:
    """Return an optimizer of all weights together."""
    built: Optimizer = component.build(parameters=[flat.vector], max_grad_norm=max_grad_norm)
    return built


CACHE_LINE = 16
"""Floats in a cache line: matrix kernels are slower on addresses that are not a multiple of it."""


class FlatParameters:
    """Makes the trainable parameters of `module` views of one vector, and their gradients views of
    another."""

    def __init__(self, module: nn.Module) -> None:
        parameters = trainable(module)
        size = sum(_aligned(parameter.numel()) for parameter in parameters)
        self.vector = nn.Parameter(torch.zeros(size, device=parameters[0].device))
        """All weights, [size]."""
        self.gradient = torch.zeros_like(self.vector.data)
        """Their gradient, [size]; the same as `vector.grad`."""
        self.vector.grad = self.gradient
        self.shared = False
        """Whether others than the optimizer may write the weights at any time."""
        self.moved: list[Callable[[], None]] = []
        """Called when the weights lie in other memory."""
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
        """Use `memory` for the weights from now on, in all copies of the network too. [size]

        Other processes may write there.
        """
        self.vector.data = memory
        self.shared = True
        for parameters in self._bound:
            for parameter, place in zip(parameters, views(parameters, memory), strict=True):
                if parameter.dtype == memory.dtype:  # a copy in bfloat16 follows when it is refreshed
                    parameter.data = place
        for piece, where in self._pieces:
            piece.data = memory[where]
        for tell in self.moved:
            tell()

    def pieces(self, module: nn.Module, owners: Sequence[nn.Module]) -> list[nn.Parameter]:
        """Return the parameters of some modules inside `module`, in as few pieces as possible, with
        gradients."""
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

    def with_gradient(self, module: Network) -> tuple[Network, Tensor]:
        """Return a copy of `module` with the same weights in the same memory, and its gradient. [size]"""
        twin, gradient = self.replica(module, same_buffers=True), torch.zeros_like(self.gradient)
        parameters = trainable(twin)
        for parameter, place in zip(parameters, views(parameters, gradient), strict=True):
            parameter.grad = place
        return twin, gradient

    def replica(self, module: Network, same_buffers: bool = False) -> Network:
        """Return a copy of `module` with the same weights in the same memory, and no gradients yet.

        same_buffers: whether its buffers lie in the memory of the original's too.
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
    """Return the parameters that gradients are computed for."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def views(parameters: Sequence[nn.Parameter], vector: Tensor) -> list[Tensor]:
    """Return pieces of `vector` with the shapes and memory layouts of the parameters."""
    pieces, start = [], 0
    for parameter in parameters:
        pieces.append(vector.as_strided(parameter.shape, parameter.stride(), start))
        start += _aligned(parameter.numel())
    return pieces


def _aligned(count: int) -> int:
    return -(-count // CACHE_LINE) * CACHE_LINE


class MoreThreads:
    """Lets matrix products inside the `with` block have more threads than elsewhere."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(max(self._count, self._before))

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self._before)


class SecondHalf:
    """A thread that differentiates losses by hand over the second half of each minibatch.

    Two threads meet once a gradient so, and not in each product: beside other busy processes, products on two
    threads wait for each other most of the time. The halves and the order of their sum are fixed, so that a
    run repeats bit for bit with the same number of threads.
    """

    def __init__(self) -> None:
        # A new thread would multiply matrices on as many threads as there are cores.
        self._pool = ThreadPoolExecutor(1, "learner", initializer=torch.set_num_threads, initargs=(1,))

    def join(self, kernel: Kernel | None, gradient: Tensor) -> None:
        """Compute with the kernel of a copy of the network from now on. gradient: of the copy, [size]"""
        self._kernel, self._gradient = kernel, gradient

    def gradient(
        self, by_hand: Callable[[Any, Batch], NDArray], kernel: Kernel, minibatch: Batch, out: Tensor
    ) -> NDArray:
        """Compute the gradient over a minibatch, the first half by `kernel`. Returns the statistics.

        out: where the kernel writes its gradient, and that of the minibatch goes. [size]
        """
        size, middle = len(minibatch), len(minibatch) // 2
        if not middle:
            return by_hand(kernel, minibatch)
        waits = self._pool.submit(self._half, by_hand, minibatch[slice(middle, size)])
        try:
            first = by_hand(kernel, minibatch[slice(0, middle)])
        finally:
            wait([waits])
        second, share = waits.result(), np.float32(middle / size)
        out.mul_(float(share)).add_(self._gradient, alpha=float(1 - share))
        if first.ndim == 2:
            return np.concatenate((first, second), axis=1)
        means: NDArray = share * first + (1 - share) * second
        return means

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown()

    def _half(self, by_hand: Callable[[Any, Batch], NDArray], part: Batch) -> NDArray:
        with torch.no_grad(), np.errstate(all="ignore"):
            return by_hand(self._kernel, part)


class Learner(Generic[Network]):
    """A network, the gradients of its losses, and its optimizer, in float32."""

    def __init__(
        self,
        network: Network,
        compute: Compute,
        new_optimizer: NewOptimizer,
        num_threads: int = 1,
        whole_minibatches: bool = True,
    ) -> None:
        """num_threads: that compute a gradient: inside its products, or two on halves of the minibatch where
        there is a kernel; whole_minibatches: never on halves."""
        self.network = network.to(compute.device)
        self.device = compute.device
        self.flat = FlatParameters(self.network)
        self._ranks = compute.ranks
        self._threads: AbstractContextManager[None] = (
            MoreThreads(num_threads) if num_threads > 1 else nullcontext()
        )
        self._noise = None if compute.noise is None else compute.noise.new()
        self._optimizer = new_optimizer(self.flat)
        self.kernel_of = compute.kernel_of
        """Returns the kernel of this network, or of a copy."""
        self._kept: RolloutKernel | None = None
        self._beside = SecondHalf() if num_threads > 1 and not whole_minibatches else None
        self._note: Callable[[str], None] | None = compute.note
        self._make_kernel()
        self.flat.moved.append(self._make_kernel)

    def in_precision(self, network: nn.Module) -> Callable[..., Any]:
        """Return `network` as a function that computes in the precision of this learner."""
        return network

    @property
    def forward_network(self) -> Callable[..., Any]:
        """The network in the precision of this learner, for losses of other learners."""
        return self.in_precision(self.network)

    def forward(self, *inputs: NDArray | Tensor | None, rows: slice | None = None, **options: Any) -> Any:
        """Compute `network(*inputs, **options)` without a gradient.

        inputs: [n, ...] each; None stays None. rows: of the rollout, where `keep_outputs` keeps them. Returns
        what the network returns, with arrays in place of tensors.
        """
        kernel = self._kernel.now
        if kernel is not None:
            kept = None if rows is None else self._kept
            if kept is not None and kept.kernel is kernel and rows is not None:
                output: Any = kept.compute(inputs[0], inputs[1], rows)
            else:
                output = kernel.forward(*inputs, **options)
            # The next call overwrites what the kernel gives.
            return output.copy() if isinstance(output, np.ndarray) else type(output)._make(map(_copy, output))
        tensors = map(self.tensor, inputs)
        with torch.inference_mode():
            return as_arrays(self.network(*tensors, **options))

    def gradient(
        self,
        loss: Loss[Batch],
        minibatch: Batch,
        *,
        samples: int = 1,
        rows: slice | None = None,
        alone: bool = False,
    ) -> Tensor:
        """Compute the gradient of a mean loss over a minibatch, for `step`.

        loss: called once for each slice of the minibatch. samples: in each unit of the minibatch; rows: of
        the rollout, where `keep_outputs` keeps them; alone: of this rank, without measuring noise. Returns
        the statistics of the loss: means over all rows, [k], or those of each row, [k, rows]. With several
        ranks gradient and means are those over all ranks.
        """
        half = None if alone or self._noise is None else self._gradient_of_half(loss, minibatch)
        kernel, by_hand = self._kernel.now, loss.by_hand if isinstance(loss, DerivedLoss) else None
        if kernel is None or by_hand is None:
            statistics = self._by_autograd(loss, minibatch)
        else:
            # What is not finite is noticed by the gradient's norm.
            with torch.no_grad(), np.errstate(all="ignore"):
                if self._beside is None:
                    found = by_hand(
                        self._kept_by(kernel, len(minibatch)) if rows is not None else kernel, minibatch
                    )
                else:
                    found = self._beside.gradient(by_hand, kernel, minibatch, self.flat.gradient)
                statistics = torch.from_numpy(found)
        if self._ranks.size > 1 and not alone:
            self._average(statistics)
        if half is not None:
            self._measure_noise(half, len(minibatch), samples)
        return statistics

    def step(self, lr: float) -> float:
        """Make one update at learning rate `lr`. Returns the norm of the gradient before it was limited."""
        if self._kept is not None:
            self._kept.drop()
        return self._optimizer.step(lr)

    def keep_outputs(self, num_rows: int) -> bool:
        """Keep what layers compute in `forward(rows=...)`, for `gradient(rows=...)` by the same weights.

        num_rows: rows of the rollout. Returns whether that is possible and worth it here; if not, `rows` is
        to be left out.
        """
        if self._beside is None and self._noise is None:
            self._kept = self._kernel.kept(num_rows)
        return self._kept is not None

    def _kept_by(self, kernel: Kernel, num_rows: int) -> Kernel:
        """Return the kernel with what it has kept; without it where rows are missing or weights may have
        changed."""
        kept = self._kept
        if kept is None or kept.kernel is not kernel or kept.complete != num_rows or self.flat.shared:
            return kernel
        return kept

    def twin(self) -> tuple[Network, Tensor]:
        """Return a copy of the network with weights of its own and no gradient, and these weights. [size]"""
        other = copy.deepcopy(self.network)
        vector = FlatParameters(other).vector.detach()
        for parameter in other.parameters():
            parameter.grad = None
        return other.requires_grad_(False), vector

    def frozen(self) -> Network:
        """Return the network, in the same memory, for losses that differentiate through it, not by it."""
        return self.flat.replica(self.network, same_buffers=True).requires_grad_(False)

    def tensor(self, array: Any) -> Any:
        """Return an array on the device, real numbers in float32; in the same memory where possible.

        Tensors and None are returned as they are.
        """
        if array is None or isinstance(array, Tensor):
            return array
        narrow = array.astype(np.float32) if array.dtype == np.float64 else array
        return torch.from_numpy(narrow).to(self.device)

    @property
    def weights(self) -> Tensor:
        """All weights as one vector, without a gradient. [size]"""
        return self.flat.vector.detach()

    @property
    def weight_norm(self) -> float:
        """Euclidean norm of the weights."""
        return float(self.weights.norm())

    def state_dict(self) -> dict[str, Any]:
        """Return weights, buffers and the optimizer's state."""
        return {"network": self.network.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        """End the worker threads, where there are some."""
        if self._beside is not None:
            self._beside.close()

    def _gradient_of_half(self, loss: Loss[Batch], minibatch: Batch) -> float | None:
        """Return the squared norm of the gradient of the first half, if the noise scale wants to know it.

        Buffers of the network stay as they were.
        """
        assert self._noise is not None
        if not self._noise.due(len(minibatch)):
            return None
        before = [buffer.clone() for buffer in self.network.buffers()]
        self._half(loss, minibatch[slice(0, len(minibatch) // 2)])
        with torch.no_grad():
            for buffer, saved in zip(self.network.buffers(), before, strict=True):
                buffer.copy_(saved)
        return float(self.flat.gradient.square().sum())

    def _half(self, loss: Loss[Batch], minibatch: Batch) -> None:
        """Compute the gradient of a part of a minibatch at once."""
        self.gradient(loss, minibatch, alone=True)

    def _by_autograd(self, loss: Loss[Batch], minibatch: Batch) -> Tensor:
        """Compute the gradient of a loss by torch. Returns the statistics."""
        if self._kernel.now is not None:
            self._say_why("the gradient of its loss is not derived by hand")
        self.flat.gradient.zero_()
        with self._threads:
            value, statistics = loss(self.network, minibatch)
            value.backward()
        return statistics

    def _make_kernel(self) -> None:
        """Make the kernel of the network where there is one, and note why where there is none."""
        self._kernel: WatchedKernel = self.kernel_of(self.network)
        if self._kernel.why_not:
            self._say_why(self._kernel.why_not)
        elif self._beside is not None and self._kernel.now is not None:
            copy, gradient = self.flat.with_gradient(self.network)
            self._beside.join(self.kernel_of(copy).now, gradient)

    def _say_why(self, why: str) -> None:
        """Note in the session's log why gradients are computed by autograd, once."""
        if self._note is not None:
            self._note(f"{type(self.network).__name__} learns by autograd and not by a kernel: {why}.")
        self._note = None

    @property
    def kernel(self) -> Kernel | None:
        """The kernel of the network; None where there is none or somebody has altered the network."""
        return self._kernel.now

    def _average(self, statistics: Tensor) -> None:
        """Replace gradient and means by those over all ranks."""
        self._ranks.mean_(self.flat.gradient, *([statistics] if statistics.dim() == 1 else []))

    def _measure_noise(self, half: float, size: int, samples: int) -> None:
        """Add a measurement. half: squared norm of the gradient of half a minibatch; size: units of all."""
        assert self._noise is not None
        whole = float(self.flat.gradient.square().sum())
        self._noise.add(samples * (size // 2), half, samples * size * self._ranks.size, whole)


def as_arrays(output: Any) -> Any:
    """Return what a network gives, a tensor or a named tuple of them, with arrays in place of tensors."""
    return output.cpu().numpy() if isinstance(output, Tensor) else type(output)._make(map(as_array, output))


def as_array(output: Tensor | None) -> NDArray | None:
    """Return a tensor as an array; None stays None."""
    return None if output is None else output.cpu().numpy()


def _copy(output: NDArray | None) -> NDArray | None:
    return None if output is None else output.copy()
