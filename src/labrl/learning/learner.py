"""A network that learns: forward passes for acting and values, gradients of losses, and optimizer steps.

Everything that makes these fast, or distributes them over threads, processes and number formats, is behind
`forward`, `gradient` and `step`. The network is a plain module; its hooks and parametrizations take effect.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.component import Component
from labrl.errors import InputError
from labrl.spaces import Spaces, sees_images

if TYPE_CHECKING:
    from labrl.learning.compute import Compute
    from labrl.learning.kernels.operation import KernelNetwork
    from labrl.learning.optimizers import Optimizer

Network = TypeVar("Network", bound=nn.Module)

LARGE_PRODUCTS = 2**23
"""Number of weights times samples of a minibatch above which several threads speed up a matrix product."""


class Minibatch(Protocol):
    """Data from which a loss is computed, in independent units: rows or sequences."""

    def __len__(self) -> int:
        """Return the number of units."""
        ...

    def __getitem__(self, units: slice) -> Self:
        """Return a slice of the units."""
        ...


Batch = TypeVar("Batch", bound=Minibatch)
Loss = Callable[[Any, Batch], tuple[Tensor, Tensor]]
"""Maps a network and a minibatch, or a slice of one, to the mean loss and its statistics: means, [k], or
statistics of each row, [k, rows]."""


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
    """Return the fastest learner for a network, given the observations and resources of a session.

    optimizer: a component, or a function that makes one for the flat parameters; max_grad_norm: largest
    Euclidean norm of a gradient, None for no limit; batch_size: rows of a minibatch, 0 if its matrix products
    are too small for several threads; whole_minibatches: whether a minibatch must not be sliced.
    """
    if compute.compiled:
        # A compiled method stored on the object would use the weights of the original in a copy of it, so
        # the class is replaced.
        network.__class__ = _compiled(type(network))  # type: ignore[arg-type]  # a class can be hashed
    if isinstance(optimizer, Component):
        build = partial(optimizer.build, max_grad_norm=max_grad_norm)
        optimizer = lambda flat: build(parameters=[flat.vector])  # noqa: E731  # one for all weights
    images = sees_images(spaces.observation)
    # Values in the hundreds that differ by one need more than the three digits of bfloat16: use float32.
    compute = compute if images else replace(compute, precision=torch.float32)
    large = images or batch_size * sum(weight.numel() for weight in network.parameters()) >= LARGE_PRODUCTS
    threads = compute.num_threads if large and compute.device.type == "cpu" else 1
    if compute.precision != torch.float32 or (threads > 1 and not whole_minibatches):
        from labrl.learning.sliced import SlicedLearner  # worthwhile only for large products

        return SlicedLearner(network, compute, optimizer, whole_minibatches, images)
    return Learner(network, compute, optimizer, 1 if images else threads, images)


@cache
def _compiled(kind: type[nn.Module]) -> Any:
    """Return a subclass of a network's class whose forward pass torch.compile compiles at its first call."""
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**names, "forward": torch.compile(kind.forward)})


CACHE_LINE = 16
"""Floats in a cache line: matrix kernels are slower at addresses that are not a multiple of its size."""


class FlatParameters:
    """Make the trainable parameters of `module` views of one vector, and their gradients views of another.

    Clipping, averaging and the optimizer's update are then a few operations for the whole network instead of
    a few for each layer.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = trainable(module)
        size, device = aligned_size(parameters), parameters[0].device
        self.vector = nn.Parameter(torch.zeros(size, device=device))
        """All weights, [size]."""
        self.gradient = torch.zeros_like(self.vector.data)
        """Gradient of all weights, [size]; the same memory as `vector.grad`."""
        self.vector.grad = self.gradient
        self.shared = False
        """Whether other processes may write the weights at any time."""
        self.moved: list[Callable[[], None]] = []
        """Functions to call when the weights have moved to other memory."""
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
        """Use `memory`, [size], for the weights from now on, in all copies of the network too.

        Other processes may write to it.
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

        owners: the submodules.
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

        same_buffers: whether it shares the memory of the buffers too.
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


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """Return contiguous tensors of the shapes of parameters as one vector, like `views` of it. [size]"""
    padded = [nn.functional.pad(t.flatten(), (0, _aligned(t.numel()) - t.numel())) for t in tensors]
    return torch.cat(padded)


def aligned_size(parameters: Sequence[nn.Parameter]) -> int:
    """Return the size of the vector that contains the parameters."""
    return sum(_aligned(parameter.numel()) for parameter in parameters)


def _aligned(count: int) -> int:
    return -(-count // CACHE_LINE) * CACHE_LINE


class MoreThreads:
    """Context in which matrix products use more threads."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(max(self._count, self._before))

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self._before)


class Learner(Generic[Network]):
    """A network with the gradients of its losses and its optimizer, in float32."""

    def __init__(
        self,
        network: Network,
        compute: Compute,
        new_optimizer: NewOptimizer,
        num_threads: int = 1,
        images: bool = False,
    ) -> None:
        """num_threads: threads inside the matrix products of a gradient; images: whether the network sees
        images, for which there are no kernels."""
        self.network = network.to(compute.device)
        self.device = compute.device
        self.flat = FlatParameters(self.network)
        self._ranks, self._note = compute.ranks, compute.note
        self._threads: AbstractContextManager[None] = (
            MoreThreads(num_threads) if num_threads > 1 else nullcontext()
        )
        self._noise = None if compute.noise is None else compute.noise.new()
        self._optimizer = new_optimizer(self.flat)
        self._kernel_network = None if images else compute.kernel_network
        if compute.kernels and images:
            self._say_why("it sees images")
        self._own: KernelNetwork[Any] | None = None
        self._weights_at_first, self._checked = list(self.network.parameters()), False
        self._learns = self.accelerated(self.network, self.flat.vector)

    def accelerated(self, network: nn.Module, vector: nn.Parameter | None = None) -> Callable[..., Any]:
        """Return a function that computes `network`, for losses, as fast as this learner computes its own.

        vector: weights of `network`, whose gradient is computed; None if they are not learned.
        """
        if self._kernel_network is None:
            return network
        found, why_not = self._kernel_network(network, vector)
        if why_not:
            self._say_why(why_not)
        if found is None:
            return network
        self.flat.moved.append(found.forget)
        if network is self.network:
            self._own = found
        return found

    @property
    def forward_network(self) -> Callable[..., Any]:
        """Function that computes the network, for losses of other learners."""
        return self._learns

    def forward(self, *inputs: NDArray | Tensor | None, **options: Any) -> Any:
        """Compute `network(*inputs, **options)` without gradients.

        inputs: [n, ...] each, or None. Returns the outputs of the network as arrays instead of tensors.
        """
        if self._own is not None and not self._own.changes.found:
            return self._own.forward(*inputs, **options)
        tensors = map(self.tensor, inputs)
        with torch.inference_mode():
            return as_arrays(self.network(*tensors, **options))

    def gradient(
        self, loss: Loss[Batch], minibatch: Batch, *, samples: int = 1, alone: bool = False
    ) -> Tensor:
        """Compute the gradient of a mean loss over a minibatch, for `step`.

        loss: is called once for each slice of the minibatch; samples: number of samples in each unit of the
        minibatch; alone: whether to skip the other ranks and the noise scale. Returns the statistics of the
        loss: means over all rows, [k], or statistics of each row, [k, rows]. Gradients and means are averaged
        over all ranks. Raises InputError if the loss contains gradients with respect to weights, which are
        unknown where a kernel computes the network.
        """
        if not self._checked:
            self._check_weights()
        half = None if alone or self._noise is None else self._gradient_of_half(loss, minibatch)
        self.flat.gradient.zero_()
        try:
            # The norm of the gradient reveals numbers that are not finite.
            with self._threads, np.errstate(all="ignore"):
                value, statistics = loss(self._learns, minibatch)
                value.backward()
        except RuntimeError as error:
            raise self._explained(error) from error
        if self._ranks.size > 1 and not alone:
            self._average(statistics)
        if half is not None:
            self._measure_noise(half, len(minibatch), samples)
        return statistics

    def _explained(self, error: RuntimeError) -> Exception:
        """Return an error of a loss, or an InputError if it differentiates with respect to other weights than
        those that computed the loss."""
        if "not have been used in the graph" not in str(error):
            return error
        return InputError(
            f"agent: the loss of {type(self.network).__name__} differentiates with respect to weights. Set "
            "meta.kernels=torch, because a kernel computes a network as one operation, and use the weights "
            "of the network that the loss receives, which may be a copy.",
            code="unsupported",
            key="meta.kernels",
        )

    def _check_weights(self) -> None:
        """Raise InputError, at the first gradient, if the network has weights that would never be learned."""
        self._checked = True
        known = set(map(id, self._weights_at_first))
        weights = self.network.named_parameters()
        new = [name for name, weight in weights if weight.requires_grad and id(weight) not in known]
        if new:
            raise InputError(
                f"agent: {', '.join(new)} of {type(self.network).__name__} were added after its learner was "
                "made, so they would not be learned. Add layers, and parametrizations with new weights, in a "
                "network of your own (agent.network) instead of the agent.",
                code="unsupported",
                key="agent._target_",
            )

    def step(self, lr: float) -> float:
        """Make one update with learning rate `lr`. Returns the norm of the gradient before clipping."""
        return self._optimizer.step(lr)

    def twin(self) -> tuple[Network, Tensor]:
        """Return a copy of the network with separate weights and no gradients, and these weights, [size]."""
        other = copy.deepcopy(self.network)
        vector = FlatParameters(other).vector.detach()
        for parameter in other.parameters():
            parameter.grad = None
        return other.requires_grad_(False), vector

    def frozen(self) -> Network:
        """Return a network that shares the weights' memory, for losses with gradients only for its inputs."""
        return self.flat.replica(self.network, same_buffers=True).requires_grad_(False)

    def tensor(self, array: Any) -> Any:
        """Return an array as a tensor on the device, float64 as float32, without copying if possible.

        Tensors and None are returned unchanged.
        """
        if array is None or isinstance(array, Tensor):
            return array
        narrow = array.astype(np.float32) if array.dtype == np.float64 else array
        return torch.from_numpy(narrow).to(self.device)

    @property
    def weights(self) -> Tensor:
        """All weights as one detached vector. [size]"""
        return self.flat.vector.detach()

    @property
    def weight_norm(self) -> float:
        """Euclidean norm of all weights."""
        return float(self.weights.norm())

    def state_dict(self) -> dict[str, Any]:
        """Return weights, buffers and the optimizer's state."""
        return {"network": self.network.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        """Stop the worker threads, if there are any."""

    def _gradient_of_half(self, loss: Loss[Batch], minibatch: Batch) -> float | None:
        """Return the squared norm of the gradient over the first half, if a measurement of noise is due.

        Buffers of the network are restored.
        """
        assert self._noise is not None
        if not self._noise.due(len(minibatch)):
            return None
        before = [buffer.clone() for buffer in self.network.buffers()]
        self._half(loss, minibatch[slice(0, len(minibatch) // 2)])
        with torch.no_grad():
            for buffer, saved in zip(self.network.buffers(), before, strict=True):
                buffer.copy_(saved)
        return squared_norm(self.flat.gradient)

    def _half(self, loss: Loss[Batch], minibatch: Batch) -> None:
        """Compute the gradient over part of a minibatch without slicing it."""
        self.gradient(loss, minibatch, alone=True)

    def _say_why(self, why: str) -> None:
        """Log once why gradients are computed with autograd."""
        if self._note is not None:
            self._note(f"{type(self.network).__name__} learns by autograd and not by a kernel: {why}.")
        self._note = None

    def _average(self, statistics: Tensor) -> None:
        """Replace gradient and means by averages over all ranks."""
        self._ranks.mean_(self.flat.gradient, *([statistics] if statistics.dim() == 1 else []))

    def _measure_noise(self, half: float, size: int, samples: int) -> None:
        """Add a measurement of noise.

        half: squared norm of the gradient over half the minibatch; size: units of the whole minibatch.
        """
        assert self._noise is not None
        whole = squared_norm(self.flat.gradient)
        self._noise.add(samples * (size // 2), half, samples * size * self._ranks.size, whole)


def squared_norm(vector: Tensor) -> float:
    """Return the squared Euclidean norm, in double precision because noise is a difference of two of them."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64)) ** 2


def as_arrays(output: Any) -> Any:
    """Return a network's output, a tensor or a named tuple of tensors, as arrays."""
    return output.cpu().numpy() if isinstance(output, Tensor) else type(output)._make(map(as_array, output))


def as_array(output: Tensor | None) -> NDArray | None:
    """Return a tensor as an array; None stays None."""
    return None if output is None else output.cpu().numpy()
