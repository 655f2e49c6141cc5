"""Learner for large products. Worker threads compute slices of a minibatch, in bfloat16 if that is fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.learning.compute import Compute
from labrl.learning.flat import Network, trainable, views
from labrl.learning.kernels.operation import Changes, Threads
from labrl.learning.learner import Batch, Learner, Loss, NewOptimizer, as_array, checked
from labrl.networks.torso import ImageTorso

Result = TypeVar("Result")

MIN_ROWS = 16
"""Minimum number of rows in a slice for which a separate thread is worthwhile when acting in bfloat16."""

MIN_MATRIX_SIZE = 2**18
"""Minimum number of weights in a matrix for which a rounded copy is worthwhile."""


class RoundedWeights:
    """The large weight matrices of a network in bfloat16, shared by all its copies.

    Autocast would round these matrices in every forward pass of every worker, and widen their gradients each
    time. For the Nature CNN, the matrices contain 1.6 million numbers. Only matrices of image torsos are
    included, because autocast rounds every operand of their layers.
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
        """Whether weights have changed since the last refresh other than through the flat vector."""
        return self._versions != self._present()

    def refresh(self) -> None:
        """Round the current weights of the network."""
        for rounded, weight in zip(self._rounded, self._full, strict=True):
            rounded.copy_(weight.detach())
        self._versions = self._present()

    def _present(self) -> list[int]:
        return [weight._version for weight in self._watched]


class SlicedLearner(Learner[Network]):
    """Computes forward passes and gradients on slices, each on a thread with a copy of the network.

    If products take most of the time on a CPU, two threads that each compute half of a minibatch are faster
    than two threads that share every operation, because they synchronize only once per minibatch. The
    difference is largest while other processes are busy: PPO on Pong reached 330 instead of 14 frames per
    second. The slices and the order in which their gradients are added are fixed, so a run with an unchanged
    number of threads is reproducible bit for bit.
    """

    def __init__(
        self,
        network: Network,
        compute: Compute,
        new_optimizer: NewOptimizer,
        whole_minibatches: bool = False,
        images: bool = True,
    ) -> None:
        """whole_minibatches: whether a minibatch must not be sliced; images: whether the network's inputs are
        images, in which case acting is sliced too."""
        self._acts_in_slices = images
        workers = 1 if whole_minibatches else compute.num_threads
        # If products are so fast that reading weights is the bottleneck, all threads share each product.
        together = compute.waits_for_weights and workers > 1
        super().__init__(network, compute, new_optimizer, workers if together else 1, images)
        self._changed = True  # whether an update has changed the weights since they were last used
        self._changes = Changes(network)
        self._altered = False  # whether the network was changed, so that no copy or kernel may compute it
        # Copy the network for each worker; in float32, the first worker uses the network itself.
        count = 1 if together else workers
        rounded = RoundedWeights(self.network) if compute.rounds_weights else None
        self._rounded = rounded or None
        copies = [self.flat.replica(self.network, same_buffers=True)] if rounded else [self.network]
        copies += [self.flat.replica(self.network) for _ in range(count - 1)]
        if rounded:
            for each in copies:
                rounded.give_to(each)
        self._copies = copies
        self._parameters = [trainable(each) for each in copies]
        self._places = views(self._parameters[0], self.flat.gradient)
        first = self._learns if copies[0] is self.network else self.accelerate(copies[0])
        self._functions = [first, *map(self.accelerate, copies[1:])]
        self._workers = Threads(count) if count > 1 else None

    def forward(self, *inputs: NDArray | Tensor | None, **options: Any) -> Any:
        """Compute `network(*inputs, **options)` without gradients, like `Learner.forward`."""
        if not self._acts_in_slices:
            return super().forward(*inputs, **options)
        tensors = [self.tensor(each) for each in inputs]
        size = next(len(each) for each in tensors if each is not None)
        self._follow()

        def work(number: int, part: slice) -> Any:
            sliced = [None if each is None else each[part] for each in tensors]
            with torch.inference_mode():
                return self._network(number)(*sliced, **options)

        return _joined(self._map(work, size, MIN_ROWS if self._rounded else 1))

    def gradient(
        self, loss: Loss[Batch], minibatch: Batch, *, samples: int = 1, measured: bool = True
    ) -> Tensor:
        """Compute the gradient of a mean loss like `Learner`, but on slices of the minibatch."""
        if not self._checked:
            self._check_weights()
        half = self._half_norm(loss, minibatch) if measured and self._noise is not None else None
        self._follow()
        # Gradients of the network itself are in the flat gradient; gradients of its copies are elsewhere.
        self.flat.gradient.zero_()
        for each, parameters in zip(self._copies, self._parameters, strict=True):
            for parameter in () if each is self.network else parameters:
                parameter.grad = None  # the next gradient is then stored instead of added to zeros
        size = len(minibatch)

        def work(number: int, part: slice) -> Tensor:
            weight = (part.stop - part.start) / size
            value, statistics = checked(loss, loss(self._network(number), minibatch[part]))
            (value if weight == 1 else value * weight).backward()
            return statistics * weight if statistics.dim() == 1 and weight != 1 else statistics

        with self._threads:
            parts = self._map(work, size) if measured else [work(0, slice(0, size))]
        # Add the gradients of the workers to the flat gradient, in order.
        for each, parameters in zip(self._copies[: len(parts)], self._parameters, strict=False):
            if each is self.network or self._altered:
                continue
            # A loss may also use the weights of the network itself, whose gradients are there already.
            for place, parameter in zip(self._places, parameters, strict=True):
                if parameter.grad is not None:
                    place.add_(parameter.grad)
        statistics = parts[0]
        if len(parts) > 1:
            statistics = torch.cat(parts, dim=1) if parts[0].dim() == 2 else torch.stack(parts).sum(0)
        if measured:
            self._join_ranks(statistics, half, size, samples)
        return statistics

    def step(self, lr: float) -> float:
        """Make one update with learning rate `lr`. Returns the norm of the gradient before clipping."""
        self._changed = True
        return super().step(lr)

    def _network(self, number: int) -> Callable[..., Any]:
        """Return the network of a worker: its copy, or the original network if that has been altered."""
        return self._learns if self._altered else self._functions[number]

    def _follow(self) -> None:
        """Give all copies the mode and the weights of the network."""
        self._altered = self._changes.found
        for each in self._copies:
            if each.training != self.network.training:
                each.train(self.network.training)
        changed, self._changed = self._changed or self.flat.shared, False
        if self._rounded is not None and (changed or self._rounded.is_stale):
            self._rounded.refresh()

    def _map(self, work: Callable[[int, slice], Result], size: int, least: int = 1) -> list[Result]:
        """Call `work(worker, slice)` on all workers in parallel, and return the results in order.

        least: minimum number of rows in a slice.
        """
        count = 1 if self._altered else min(len(self._copies), max(size // least, 1))
        results: dict[int, Result] = {}

        def compute(number: int) -> None:
            results[number] = work(number, slice(size * number // count, size * (number + 1) // count))

        tasks = [[partial(compute, number)] for number in range(count)]
        if self._workers is None:
            tasks[0][0]()
        else:
            self._workers.run(tasks)
        return [results[number] for number in range(count)]


def _joined(parts: Sequence[Any]) -> Any:
    """Join the results of the slices, as arrays instead of tensors."""
    first = parts[0]
    if first is None or isinstance(first, Tensor):
        return as_array(first if first is None or len(parts) == 1 else torch.cat(list(parts)))
    return type(first)._make(_joined(each) for each in zip(*parts, strict=True))
