"""A network that learns: forward to act and to value, the gradient of a loss, and a step of the optimizer.

Everything that makes this fast, or spreads it over threads, processes and number formats, is behind these
three verbs. The network is a plain module and knows none of it; hooks hung on it and parametrizations are
respected.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from labrl.config.component import Component
from labrl.learning.flat import FlatParameters, Network
from labrl.networks.spaces import Spaces, sees_images
from labrl.networks.torso import BY_THE_MINIBATCH, UNSEEDED, refusal

if TYPE_CHECKING:
    from labrl.learning.compute import Compute
    from labrl.learning.kernels.networks import Kernel, RolloutKernel, WatchedKernel
    from labrl.learning.optimizers import Optimizer

DRAWS = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout
"""Layers that draw what they drop, or none where their `p` is 0."""
DROPS = nn.RNNBase, nn.MultiheadAttention
"""Layers with the same inside them, where their `dropout` is not 0."""

Built = TypeVar("Built", bound=tuple[nn.Module, ...])


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


NewOptimizer = Callable[[FlatParameters], "Optimizer"]


def build_networks(
    make: Callable[[], Built], seed: int, spaces: Spaces, compute: Compute, whole_minibatches: bool = False
) -> Built:
    """Return what `make` builds, its weights drawn from `seed` alone, laid out for the observations.

    whole_minibatches: as for `check_torso`. With meta.compile, they and copies of them compute by code that
    torch.compile makes at their first call. Raise InputError for layers with which a run would not repeat.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = make()
    for network in networks:
        _check_layers(network, whole_minibatches)
        if sees_images(spaces.observation):
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in its stubs
        network.to(compute.device)
        if compute.compiled:
            # The class is changed and not the object: a compiled method that an object carries would, in a
            # copy of it, still compute with the weights of the original.
            network.__class__ = _compiled(type(network))  # type: ignore[arg-type]  # a class can be hashed
    return networks


def _check_layers(network: nn.Module, whole_minibatches: bool) -> None:
    """Raise InputError for layers of a user's network that draw numbers, mix the rows of a batch or keep
    something of it: copies of the network, for other threads and as a target, would not have the same."""
    for name, layer in network.named_modules():
        found = f"{name} of {type(network).__name__} is a {type(layer).__name__}"
        if isinstance(layer, DRAWS) and layer.p > 0:
            raise refusal(f"{found}, {UNSEEDED}. Leave it out, or set its p to 0.")
        if isinstance(layer, DROPS) and layer.dropout > 0:
            raise refusal(f"{found} with dropout, {UNSEEDED}. Set dropout to 0.")
        if isinstance(layer, nn.RReLU):
            raise refusal(f"{found}, {UNSEEDED}. Use nn.LeakyReLU.")
        if whole_minibatches:
            continue
        if isinstance(layer, _BatchNorm):
            raise refusal(
                f"{found}: it {BY_THE_MINIBATCH}. Use nn.LayerNorm or nn.GroupNorm, or set agent=crossq."
            )
        if changes := vars(layer).get("changes"):
            raise refusal(
                f"the forward pass of {type(layer).__name__} changes its buffer {changes[0]}, which would "
                "differ between the threads that learn and the target network. Compute with weights and "
                "constants alone, such as weight_norm or LayerNorm instead of spectral_norm."
            )


@cache
def _compiled(kind: type[nn.Module]) -> Any:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**names, "forward": torch.compile(kind.forward)})


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


def _one_optimizer(component: Component, max_grad_norm: float | None, flat: FlatParameters) -> Optimizer:
    """Return an optimizer of all weights together."""
    built: Optimizer = component.build(parameters=[flat.vector], max_grad_norm=max_grad_norm)
    return built


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
