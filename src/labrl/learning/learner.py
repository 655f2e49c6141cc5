"""A network that learns: forward passes for acting and values, gradients of losses, and optimizer steps.

`forward`, `gradient` and `step` hide how the computation is made fast, how it is distributed over threads and
processes, and in which number formats it is done. The network is a plain module, whose hooks and
parametrizations take effect.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.errors import InputError
from labrl.learning.compute import Compute
from labrl.learning.flat import FlatParameters, Network
from labrl.learning.kernels.networks import UnknownNetworkError, passes_of
from labrl.learning.kernels.operation import KernelNetwork, Threads

if TYPE_CHECKING:
    from labrl.learning.optimizers import Optimizer


class Minibatch(Protocol):
    """Data from which a loss is computed. It consists of independent units, which are rows or sequences."""

    def __len__(self) -> int:
        """Return the number of units."""
        ...

    def __getitem__(self, units: slice) -> Self:
        """Return the minibatch of a slice of the units."""
        ...


Batch = TypeVar("Batch", bound=Minibatch)
Loss = Callable[[Any, Batch], tuple[Tensor, Tensor]]
"""Maps a network and a minibatch, or a slice of a minibatch, to the mean loss and k statistics, which are
either means, [k], or values for each row, [k, rows]."""


NewOptimizer = Callable[[FlatParameters], "Optimizer"]
"""Makes the optimizer of a network's parameters."""


class MatmulThreads:
    """Context manager within which matrix products use `count` threads, or more if they did before."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(max(self._count, self._before))

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self._before)


class Learner(Generic[Network]):
    """A network with its optimizer and the gradients of its losses, in float32."""

    waits = True
    """Whether the results of an update are known when the update returns."""

    def __init__(
        self,
        network: Network,
        compute: Compute,
        new_optimizer: NewOptimizer,
        num_threads: int = 1,
        images: bool = False,
    ) -> None:
        """num_threads: number of threads for the matrix products of a gradient; images: whether the network's
        inputs are images, which the kernels do not support."""
        self.network = network.to(compute.device)
        self.device, self._images, self._precision = compute.device, images, compute.precision
        self.flat = FlatParameters(self.network)
        self._ranks, self._note = compute.ranks, compute.note
        self._threads: AbstractContextManager[None] = nullcontext()
        self._noise = None if compute.noise is None else compute.noise.new()
        self._optimizer = new_optimizer(self.flat)
        why_no_kernel = "it sees images" if images else "it is compiled" if compute.compiled else ""
        self._kernels = compute.kernels and not why_no_kernel
        if compute.kernels and why_no_kernel:
            self._say_why(why_no_kernel)
        self._own: KernelNetwork[Any] | None = None
        self._workers: Threads | None = None
        if num_threads > 1 and has_kernel(network, compute, images):
            self._workers = Threads(num_threads)
        elif num_threads > 1:
            self._threads = MatmulThreads(num_threads)
        self._weights_at_first, self._checked = list(self.network.parameters()), False
        self._known_loss: Loss[Any] | None = None  # the last loss whose result had the right form
        self._learns = self.accelerate(self.network, self.flat.vector)

    def accelerate(self, network: nn.Module, vector: nn.Parameter | None = None) -> Callable[..., Any]:
        """Return a function that computes `network`, for losses, as fast as this learner computes its own
        network.

        vector: weights of `network`, with respect to which gradients are computed; None if they are not
        learned.
        """
        if self._precision != torch.float32:
            return Autocast(network, self.device.type, self._precision)
        if not self._kernels:
            return network
        try:
            found = KernelNetwork(network, vector, self._workers)
        except UnknownNetworkError as error:
            self._say_why(str(error))
            return network
        self.flat.moved.append(found.forget)
        if network is self.network:
            self._own = found
        return found

    @property
    def forward_network(self) -> Callable[..., Any]:
        """Function that runs the network's forward pass, for the losses of other learners."""
        return self._learns

    def scalar(self, name: str, value: float | Tensor) -> Any:
        """Return a number for losses, as a tensor if this learner's losses need one, otherwise unchanged.

        Call this method before an update, not in a loss.
        """
        return value

    def layout(self, observation: NDArray) -> Any:
        """Return observations, [n, *obs], in the network's layout, as an array or a tensor.

        Rollouts store observations in this layout, because the network has already read them when it acted.
        Replay buffers store observations unchanged, so that each frame is stored once, and
        `Experience.sample` applies the layout.
        """
        return self.network.layout(observation)  # type: ignore[operator]  # a method or a function

    def forward(self, *inputs: NDArray | Tensor | None, **options: Any) -> Any:
        """Compute `network(*inputs, **options)` without gradients.

        inputs: [n, ...] each, or None. Returns the outputs of the network as arrays instead of tensors.
        """
        if self._own is not None and not self._own.changes.found:
            return self._own.forward(*inputs, **options)
        tensors = map(self.tensor, inputs)
        with torch.inference_mode():
            output = self.network(*tensors, **options)
        # A tensor, or a named tuple of tensors.
        return as_array(output) if isinstance(output, Tensor) else type(output)._make(map(as_array, output))

    def gradient(
        self, loss: Loss[Batch], minibatch: Batch, *, samples: int = 1, measured: bool = True
    ) -> Tensor:
        """Compute the gradient of a mean loss over a minibatch, for `step`.

        loss: function that is called once for each slice of the minibatch, which consists of tensors;
        samples: number of samples in each unit of the minibatch; measured: False for a gradient of this
        process alone, which is not counted by the noise scale. Returns the statistics of the loss, which are
        means over all rows, [k], or values for each row, [k, rows]. Gradients and means are averaged over all
        ranks. Raises InputError if the loss differentiates with respect to weights while a kernel computes
        the network, because a kernel does not know such gradients.
        """
        if not self._checked:
            self._check_weights()
        half = self._half_norm(loss, minibatch) if measured and self._noise is not None else None
        self.flat.gradient.zero_()
        try:
            # The norm of the gradient reveals numbers that are not finite.
            with np.errstate(all="ignore"), self._threads:
                result = loss(self._learns, minibatch)
                if loss != self._known_loss:  # the first gradient of this loss
                    checked(loss, result)
                    self._known_loss = loss
                value, statistics = result
                self._differentiate(value)
        except RuntimeError as error:
            if "not have been used in the graph" not in str(error):
                raise
            raise InputError(
                f"agent: the loss of {type(self.network).__name__} differentiates with respect to weights. "
                "Set meta.kernels=torch, because a kernel computes a network as one operation, and use the "
                "weights of the network that the loss receives, which may be a copy",
                code="unsupported",
                key="meta.kernels",
            ) from error
        if measured and (half is not None or self._ranks.size > 1):
            self._join_ranks(statistics, half, len(minibatch), samples)
        return statistics

    def _half_norm(self, loss: Loss[Batch], minibatch: Batch) -> float | None:
        """Return the squared norm of the gradient over half the minibatch, or None if it is not due.

        It shows how noisy gradients are.
        """
        size = len(minibatch)
        if self._noise is None or not self._noise.due(size):
            return None
        before = [buffer.clone() for buffer in self.network.buffers()]
        self.gradient(loss, minibatch[slice(0, size // 2)], measured=False)
        with torch.no_grad():
            for buffer, saved in zip(self.network.buffers(), before, strict=True):
                buffer.copy_(saved)
        return squared_norm(self.flat.gradient)

    def _join_ranks(self, statistics: Tensor, half: float | None, size: int, samples: int) -> None:
        """Average the gradient and means over all ranks, and add a measurement of noise if there is one."""
        if self._ranks.size > 1:
            means = [statistics] if statistics.dim() == 1 else []
            self._ranks.all_reduce_mean_(self.flat.gradient, *means)
        if half is not None and self._noise is not None:
            of_all = samples * size * self._ranks.size
            self._noise.add(samples * (size // 2), half, of_all, squared_norm(self.flat.gradient))

    def update(
        self,
        loss: Loss[Batch],
        minibatch: Batch,
        lr: float,
        *,
        samples: int = 1,
        after: Callable[[Tensor, Any], None] | None = None,
    ) -> tuple[Tensor, Any]:
        """Compute the gradient of a mean loss and take one optimizer step with learning rate `lr`.

        after: function that is called with the results; a CUDA graph that repeats the update includes this
        call. The other arguments are those of `gradient`. Returns the statistics of the loss and the norm of
        the gradient before clipping, which is a number, or a scalar tensor if the learner does not wait for
        its device.
        """
        statistics, norm = self.gradient(loss, minibatch, samples=samples), self.step(lr)
        if after is not None:
            after(statistics, norm)
        return statistics, norm

    def _differentiate(self, value: Tensor) -> None:
        """Add the gradient of a loss to `flat.gradient`, which is zero."""
        value.backward()

    def _check_weights(self) -> None:
        """Raise InputError, at the first gradient, if the network has weights that would never be learned."""
        self._checked = True
        known = set(map(id, self._weights_at_first))
        weights = self.network.named_parameters()
        new = [name for name, weight in weights if weight.requires_grad and id(weight) not in known]
        if new:
            raise InputError.unsupported(
                "agent._target_",
                f"{', '.join(new)} of {type(self.network).__name__} were added after its learner was made, "
                "so they would not be learned",
                "Add layers, and parametrizations with new weights, in your own network (agent.network) "
                "instead of the agent",
            )

    def step(self, lr: float) -> float:
        """Make one update with learning rate `lr`. Returns the norm of the gradient before clipping.

        The optimizer clips the gradient.
        """
        return self._optimizer.step(lr)

    def copy_network(self) -> tuple[Network, Tensor]:
        """Return a copy of the network without gradients, and the separate weights of the copy, [size]."""
        other = copy.deepcopy(self.network)
        vector = FlatParameters(other).vector.detach()
        for parameter in other.parameters():
            parameter.grad = None
        return other.requires_grad_(False), vector

    def frozen(self) -> Network:
        """Return a copy that shares the weights' memory, for gradients with respect to inputs only."""
        return self.flat.replica(self.network, same_buffers=True).requires_grad_(False)

    def tensor(self, array: Any) -> Any:
        """Return an array as a tensor on the device, without copying if possible. float64 becomes float32.

        Tensors and None are returned unchanged.
        """
        if array is None or isinstance(array, Tensor):
            return array
        # The call returns once the array has been read, and does not wait until a GPU has received it.
        return as_tensor(array).to(self.device, non_blocking=True)

    def tensors(self, arrays: Mapping[str, NDArray]) -> dict[str, Tensor]:
        """Return arrays as tensors on the device, like `tensor`."""
        wide = np.float64
        return {
            name: as_tensor(array) if array.dtype == wide else torch.from_numpy(array)
            for name, array in arrays.items()
        }

    @property
    def weights(self) -> Tensor:
        """All weights as one detached vector. [size]"""
        return self.flat.vector.detach()

    @property
    def weight_norm(self) -> float:
        """Euclidean norm of all weights."""
        return float(self.weights.norm())

    def state_dict(self) -> dict[str, Any]:
        """Return the weights, the buffers and the optimizer's state."""
        return {"network": self.network.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        """Stop the worker threads, if there are any."""
        if self._workers is not None:
            self._workers.close()

    def _say_why(self, why: str) -> None:
        """Log, once, why gradients are computed by autograd instead of a kernel."""
        if self._note is not None:
            self._note(f"{type(self.network).__name__} learns by autograd, not by a kernel: {why}.")
        self._note = None


def has_kernel(network: nn.Module, compute: Compute, images: bool) -> bool:
    """Return whether a learner computes `network` by a kernel. images: whether its inputs are images."""
    if not compute.kernels or compute.compiled or images or compute.precision != torch.float32:
        return False
    try:
        passes_of(network, lambda weight: None, rows=1)
    except UnknownNetworkError:
        return False
    return True


class Autocast:
    """Function that computes a network in another number format wherever that format is precise enough."""

    def __init__(self, network: nn.Module, device: str, precision: torch.dtype) -> None:
        self._network, self._device, self._precision = network, device, precision

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        with torch.autocast(self._device, self._precision):
            return self._network(*inputs, **options)


def checked(loss: Loss[Any], result: Any) -> tuple[Tensor, Tensor]:
    """Return what a loss returned. Raises InputError, which names the loss, if it has another form."""
    if isinstance(result, tuple) and len(result) == 2:
        value, statistics = result
        tensors = isinstance(value, Tensor) and isinstance(statistics, Tensor)
        if tensors and value.requires_grad and value.numel() == 1 and statistics.dim() in (1, 2):
            return value, statistics
    # A loss of labrl's agents may leave its result to `objective`, which a derived class overrides.
    function: Any = loss
    if isinstance(loss, MethodType):
        kinds, names = type(loss.__self__).__mro__, (loss.__name__, "objective")
        found = (vars(kind)[name] for kind in kinds for name in names if name in vars(kind))
        function = next(found, loss.__func__)
    known = isinstance(function, FunctionType)
    place = f" ({function.__code__.co_filename}:{function.__code__.co_firstlineno})" if known else ""
    returned = ", ".join(map(form_of, result)) if isinstance(result, tuple) else form_of(result)
    raise InputError.about(
        "agent._target_",
        f"the loss {function.__qualname__ if known else function}{place} returned {returned}",
        "Return a tuple of two tensors: a scalar with a gradient, and the statistics without one, which are "
        "means, [k], or values for each row, [k, rows]",
        code="target",
    )


def form_of(value: object) -> str:
    """Return the type of a value, and the shape of a tensor and whether it has a gradient."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"a tensor {list(value.shape)} with{'' if value.requires_grad else 'out'} a gradient"


def squared_norm(vector: Tensor) -> float:
    """Return the squared Euclidean norm, in double precision.

    Single precision is too coarse, because noise is computed as a difference between two such norms.
    """
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64)) ** 2


def as_tensor(array: NDArray | Tensor) -> Tensor:
    """Return an array as a tensor in main memory; float64 becomes float32. Tensors are returned unchanged."""
    if isinstance(array, Tensor):
        return array
    return torch.from_numpy(array.astype(np.float32) if array.dtype == np.float64 else array)


def as_array(output: Tensor | None) -> NDArray | None:
    """Return a tensor as an array; None stays None."""
    return None if output is None else output.cpu().numpy()
