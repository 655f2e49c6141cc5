"""Learner on a GPU, whose updates and forward passes are recorded and repeated as CUDA graphs.

For a small minibatch, starting an operation on a GPU takes longer than computing it. A CUDA graph starts all
operations of an update at once. It always repeats them on the same memory, so everything that changes between
two updates is in tensors with fixed addresses: weights, the optimizer's moments, minibatches and
coefficients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.learning.compute import Compute, Record
from labrl.learning.flat import Network, trainable, views
from labrl.learning.kernels.operation import Changes
from labrl.learning.learner import Batch, Learner, Loss, NewOptimizer, as_tensor
from labrl.learning.optimizers import takes_tensors

WARM_UP = 3
"""Number of calls before a function is recorded, during which libraries choose algorithms and allocate
memory."""

MAX_FUNCTIONS = 16
"""Maximum number of functions for which a learner reserves memory; further functions are computed without a
graph."""


@runtime_checkable
class Replaceable(Protocol):
    """A minibatch, which is a dataclass, whose tensors can be replaced with others of equal shapes."""

    @property
    def place(self) -> int:
        """Address of the data that this minibatch shares with other minibatches; 0 if it shares no data."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that differ from those of other minibatches, by field."""


class Fixed:
    """A function of tensors with fixed addresses, so that its operations can be recorded.

    The function must depend only on its arguments and on other tensors with fixed addresses, must change only
    such tensors, and must not wait for results.
    """

    def __init__(
        self,
        function: Callable[[Mapping[str, Tensor]], Any],
        like: Mapping[str, Tensor],
        device: torch.device,
        record: Record,
    ) -> None:
        """like: tensors with the shapes and types of the arguments of every call."""
        self._function, self._record, self._calls = function, record, 0
        self._inputs = {name: torch.empty_like(each, device=device) for name, each in like.items()}
        # Tensors of one kind are copied in one operation.
        kinds: dict[tuple[torch.device, torch.dtype], list[str]] = {}
        for name, each in like.items():
            kinds.setdefault((each.device, each.dtype), []).append(name)
        self._together = [(names, [self._inputs[name] for name in names]) for names in kinds.values()]
        self._repeat: Callable[[], None] | None = None
        self._results: Any = None

    def __call__(self, given: Mapping[str, Tensor]) -> Any:
        """Return the results of the function, which the next call may overwrite."""
        for names, places in self._together:
            # Ordinary memory has been read when this returns.
            torch._foreach_copy_(places, [given[name] for name in names], non_blocking=True)
        self._calls += 1
        if self._calls <= WARM_UP:
            return self._function(self._inputs)
        if self._repeat is None:
            self._repeat, self._results = self._record(lambda: self._function(self._inputs))
        self._repeat()
        return self._results


class DeviceLearner(Learner[Network]):
    """A learner whose updates do not wait for the device, and are recorded as CUDA graphs where possible.

    Learning rates and coefficients are tensors, whose current values the recorded operations read. The
    results equal those of the same functions without graphs bit for bit.
    """

    def __init__(self, network: Network, compute: Compute, new_optimizer: NewOptimizer, images: bool) -> None:
        """images: whether the network's inputs are images."""
        self._all_changes = compute.on_device
        super().__init__(network, compute, new_optimizer, images=images)
        self._scalars: dict[str, tuple[float | None, Tensor]] = {}
        self._fixed: dict[tuple[Any, ...], Fixed] = {}
        self._changes = Changes(network)
        self._weights = trainable(network)
        self._places = views(self._weights, self.flat.gradient)
        self._record = compute.record
        self._why_not = self._reason(compute)
        self.waits = bool(self._why_not)
        if self._record is not None and self._why_not and compute.note is not None:
            compute.note(f"{type(network).__name__} learns without CUDA graphs: {self._why_not}.")

    def _reason(self, compute: Compute) -> str:
        """Return why updates cannot be recorded; an empty string if they can."""
        if not takes_tensors(self._optimizer):
            return "its optimizer needs a learning rate in main memory"
        if vars(self.network).get("state_size"):
            return "minibatches of a recurrent network differ in shape"
        if compute.ranks.size > 1:
            return "several ranks train it together"
        if compute.noise is not None:
            return "the noise scale of its gradients is measured"
        return "torch.compile compiles it" if compute.compiled else ""

    @property
    def _usable(self) -> bool:
        """Whether calls can be recorded or repeated now."""
        off = self._record is None or self._why_not or self._changes.found or self.flat.shared
        # Losses also compute networks of other learners, target networks and copies.
        return not (off or any(each.hooked for each in self._all_changes))

    def accelerate(self, network: nn.Module, vector: nn.Parameter | None = None) -> Callable[..., Any]:
        """Return a function that computes `network`, like `Learner.accelerate`, and watch it for hooks."""
        self._all_changes.append(Changes(network))
        return super().accelerate(network, vector)

    def scalar(self, name: str, value: float | Tensor) -> float | Tensor:
        """Return a number for losses as a tensor, which each call overwrites with the current value."""
        if self._why_not:
            return value
        before, tensor = self._scalars.get(name, (None, None))
        if tensor is None:
            tensor = torch.zeros((), device=self.device)
        if isinstance(value, Tensor):
            self._scalars[name] = None, tensor.copy_(value)
        elif value != before:
            self._scalars[name] = value, tensor.fill_(value)
        return tensor

    def layout(self, observation: NDArray | Tensor) -> NDArray | Tensor:
        """Return observations in the network's layout. Images are converted on the device, for speed."""
        several = isinstance(observation, np.ndarray) and observation.dtype.names
        if self._images and not several:
            observation = self.tensor(observation)
        return super().layout(observation)  # type: ignore[arg-type]  # torsos lay out tensors too

    def tensors(self, arrays: Mapping[str, NDArray]) -> dict[str, Tensor]:
        """Return arrays as tensors on the device. Arrays of the same type are moved together."""
        kinds: dict[np.dtype[Any], list[str]] = {}
        for name, array in arrays.items():
            kinds.setdefault(np.dtype(np.float32) if array.dtype == np.float64 else array.dtype, []).append(
                name
            )
        found: dict[str, Tensor] = {}
        for dtype, names in kinds.items():
            flat = np.concatenate([arrays[name].ravel() for name in names], dtype=dtype)
            parts = self.tensor(flat).split([arrays[name].size for name in names])
            found.update((n, part.view(arrays[n].shape)) for n, part in zip(names, parts, strict=True))
        return found

    def update(
        self,
        loss: Loss[Batch],
        minibatch: Batch,
        lr: float,
        *,
        samples: int = 1,
        after: Callable[[Tensor, Any], None] | None = None,
    ) -> tuple[Tensor, float | Tensor]:
        """Make one update, like `Learner`, without waiting. The next update may overwrite the results."""
        rate: Any = self.scalar("lr", lr)
        compute = partial(super().update, loss, samples=samples, after=after)

        def function(tensors: Mapping[str, Tensor]) -> tuple[Tensor, float | Tensor]:
            at: Any = dataclasses.replace(minibatch, **tensors) if tensors else minibatch  # type: ignore[type-var]
            return compute(at, rate)

        if not (self._usable and isinstance(minibatch, Replaceable)):
            return function({})
        return self._call((loss, after, minibatch.place), function, minibatch.tensors())

    def forward(self, *inputs: NDArray | Tensor | None, **options: Any) -> Any:
        """Compute `network(*inputs, **options)` without gradients, and wait for the device once."""
        replies: dict[int, Tensor] = {}

        def function(tensors: Mapping[str, Tensor]) -> Any:
            arguments: list[Tensor | None] = []
            for place, each in enumerate(inputs):
                empty = each is not None and str(place) not in tensors
                shape = each.shape if empty else ()  # type: ignore[union-attr]
                arguments.append(torch.zeros(shape, device=self.device) if empty else tensors.get(str(place)))
            with torch.no_grad():
                output = self._learns(*arguments, **options)
            if isinstance(output, Tensor):
                return self._sent(output, replies, 0)
            parts = [
                None if part is None else self._sent(part, replies, place)
                for place, part in enumerate(output)
            ]
            return type(output)._make(parts)

        given = {
            str(place): as_tensor(each)
            for place, each in enumerate(inputs)
            if each is not None and 0 not in each.shape
        }
        if self._usable:
            output = self._call(("forward", self.network.training, *options.items()), function, given)
        else:
            output = function(self._on_device(given))
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        # The next call overwrites the results.
        if isinstance(output, Tensor):
            return output.numpy().copy()
        return type(output)._make(None if part is None else part.numpy().copy() for part in output)

    def _differentiate(self, value: Tensor) -> None:
        """Add the gradient of a loss to `flat.gradient`, in one operation unless the network is changed."""
        if self._changes.found:
            value.backward()
            return
        found = torch.autograd.grad(value, self._weights, allow_unused=True)
        pairs = [pair for pair in zip(self._places, found, strict=True) if pair[1] is not None]
        torch._foreach_add_([place for place, _ in pairs], [gradient for _, gradient in pairs])

    def _call(
        self,
        key: tuple[Any, ...],
        function: Callable[[Mapping[str, Tensor]], Any],
        given: Mapping[str, Tensor],
    ) -> Any:
        """Return the results of `function`, run on fixed memory so that it can be recorded and repeated.

        key: value that identifies the function together with the names, shapes, types and devices of its
        inputs.
        """
        key = (*key, *((name, each.shape, each.dtype, each.device) for name, each in given.items()))
        fixed = self._fixed.get(key)
        if fixed is None:
            if len(self._fixed) >= MAX_FUNCTIONS:
                return function(self._on_device(given))
            assert self._record is not None
            fixed = self._fixed[key] = Fixed(function, given, self.device, self._record)
        return fixed(given)

    def _on_device(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors on the learner's device."""
        return {name: each.to(self.device, non_blocking=True) for name, each in given.items()}

    def _sent(self, result: Tensor, replies: dict[int, Tensor], place: int) -> Tensor:
        """Copy a result to main memory without waiting. replies: main memory for each result, by `place`."""
        if self.device.type == "cpu":
            return result
        if place not in replies:
            replies[place] = torch.empty_like(result, device="cpu", pin_memory=True)
        return replies[place].copy_(result, non_blocking=True)
