"""Kernels as autograd operations: the forward pass of a whole network is a single operation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.learning.flat import Network, aligned_size, flatten, trainable, views
from labrl.learning.kernels.mlp import Operation
from labrl.learning.kernels.networks import Passes, passes_of

transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
"""Returns whether a transform of torch.func is active. Such transforms support only torch's own
operations."""

MAX_SIZES = 8
"""Maximum number of different kinds of calls for which buffers are kept."""


class Threads:
    """Threads that compute parts of a minibatch at the same time; the caller computes the first part.

    NumPy and torch release the interpreter lock within an operation, so several threads help if operations
    are large.
    """

    def __init__(self, count: int) -> None:
        """count: number of threads, including the caller's."""
        self.count = count
        self._tasks: list[SimpleQueue[Sequence[Operation] | None]] = [SimpleQueue() for _ in range(count - 1)]
        self._results: SimpleQueue[BaseException | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._work, args=(tasks,), name="learner", daemon=True) for tasks in self._tasks
        ]
        for thread in self._threads:
            thread.start()

    def run(self, parts: Sequence[Sequence[Operation]]) -> None:
        """Run the operations of each part in order, and different parts at the same time."""
        for tasks, part in zip(self._tasks, parts[1:], strict=False):
            tasks.put(part)
        try:
            for operation in parts[0]:
                operation()
        finally:
            failed = None
            for _ in parts[1:]:
                failed = self._results.get() or failed
        if failed is not None:
            raise failed

    def close(self) -> None:
        """End all threads."""
        for tasks, thread in zip(self._tasks, self._threads, strict=True):
            tasks.put(None)
            thread.join()

    def _work(self, tasks: SimpleQueue[Sequence[Operation] | None]) -> None:
        torch.set_num_threads(1)
        with np.errstate(all="ignore"):
            while (operations := tasks.get()) is not None:
                try:
                    for operation in operations:
                        operation()
                except BaseException as error:
                    self._results.put(error)
                else:
                    self._results.put(None)


@dataclass(frozen=True)
class _Buffers:
    """Passes of a kernel for one part of the rows or several parts, in buffers of their own."""

    parts: list[Passes]
    rows: list[slice]
    """Rows of each part."""
    outputs: list[tuple[NDArray, ...]]
    """Each output of all parts."""
    forward: list[list[Operation]]
    backward: list[list[Operation]]
    weight_gradients: list[Tensor]
    """Gradient of each part with respect to all weights, in the order of `FlatParameters`, [size] each; empty
    if the weights are not learned."""


class KernelNetwork(Generic[Network]):
    """Wrapper that is called like a network, and whose outputs a kernel computes wherever it can.

    The network itself computes them in three cases: while it is changed (by hooks, parametrizations, frozen
    weights, or other weights, as in `torch.func.functional_call`), during transforms of `torch.func`, and if
    gradients with respect to observations, or gradients of only some outputs, are needed. Other attributes
    are those of the network.
    """

    def __init__(self, network: Network, vector: nn.Parameter | None, threads: Threads | None = None) -> None:
        """vector: the network's weights, a leaf of autograd with respect to which gradients are computed;
        None if the weights are not learned; threads: threads for the rows of a minibatch, None for only the
        caller's. Raises UnknownNetworkError if there is no kernel for the network.
        """
        self.network, self._vector, self._threads = network, vector, threads
        self._learned = trainable(network)
        passes = passes_of(network, lambda weight: None, rows=1)
        self._reads_actions = passes.action is not None
        # Buffers by kind of call: those of losses that no graph needs any more, and those for acting.
        self._free: OrderedDict[tuple[Any, ...], list[_Buffers]] = OrderedDict()
        self._acting: dict[tuple[Any, ...], _Buffers] = {}
        self.changes = Changes(network)
        """Detector of changes to the network, after which the kernel must not compute it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)

    def forget(self) -> None:
        """Drop all buffers, because the weights have moved to other memory."""
        self._free.clear()
        self._acting.clear()

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Compute the outputs of the network as tensors. inputs: tensors, [rows, ...], or None."""
        differentiate, observation = torch.is_grad_enabled(), inputs[0]
        learn = differentiate and self._vector is not None
        plain = self.changes.found or transforms_active() or (differentiate and observation.requires_grad)
        if options:
            parts = options.get("policy", True) and options.get("value", True)
            plain = plain or (learn and not parts) or options.get("noise") is not None
        if plain:
            return self.network(*inputs, **options)
        action = inputs[1] if self._reads_actions else None
        to_actions = differentiate and action is not None and action.requires_grad
        rows, threads = observation.shape[0], self._threads
        key: Any = rows, 1 if threads is None or rows < threads.count else threads.count, learn, to_actions
        if options:
            options.pop("noise", None)
            key = *key, *options.items()
        free = self._free.get(key)
        if free is None:
            # Forget the buffers of the oldest kind of calls if there are too many kinds.
            free = self._free[key] = []
            if len(self._free) > MAX_SIZES:
                self._free.popitem(last=False)
        buffers = free.pop() if free else self._new_buffers(*key)
        array = None if action is None else action.numpy(force=True)
        outputs = self._run(buffers, observation.numpy(force=True), array)
        if learn or to_actions:
            call = _Call(self.network, inputs, options, outputs, buffers, free, threads)
            outputs = _Evaluate.apply(call, self._vector if learn else None, action)
        else:
            outputs = [torch.from_numpy(array) for array in outputs]
            free.append(buffers)
        named = buffers.parts[0].named_output
        if named is None:
            return outputs[0]
        return named(*outputs, state=inputs[1] if len(inputs) > 1 else None)

    def forward(self, observation: Any, second: Any = None, *others: Any, **options: Any) -> Any:
        """Compute the outputs of the network as arrays, without gradients. The network must be unchanged.

        observation, others: arrays or tensors, [rows, ...], or None; second: the actions, or the recurrent
        state.
        """
        key: Any = observation.shape[0], 1, False, False
        if options:
            key = *key, *options.items()
        if key not in self._acting:
            if len(self._acting) >= MAX_SIZES:
                self._acting.clear()
            self._acting[key] = self._new_buffers(*key)
        buffers = self._acting[key]
        arrays = self._run(buffers, observation, second if self._reads_actions else None)
        named = buffers.parts[0].named_output
        return arrays[0] if named is None else named(*arrays, state=second)

    def _run(self, buffers: _Buffers, observation: Any, action: NDArray | None) -> Any:
        """Run the forward pass in buffers that no other call uses. Return copies of the outputs."""
        first, *others = buffers.parts
        if first.numbers is not None:
            observation = first.numbers(torch.as_tensor(observation)).numpy()
        if observation.ndim != 2:
            observation = observation.reshape(len(observation), -1)
        for passes, rows in zip(buffers.parts, buffers.rows, strict=True):
            passes.observation[...] = observation[rows]
            if action is not None:
                passes.action[...] = action[rows]  # type: ignore[index]  # not None if the network reads it
        if others:
            self._threads.run(buffers.forward)  # type: ignore[union-attr]  # the threads compute the parts
            return [np.concatenate(pieces, first.row_axis) for pieces in buffers.outputs]
        for operation in buffers.forward[0]:
            operation()
        return list(map(np.array, first.outputs))  # faster than a comprehension

    def _new_buffers(self, size: int, count: int, learn: bool, to_actions: bool, *options: Any) -> _Buffers:
        """Return new buffers for one kind of call.

        size, count: number of rows, and of the parts into which they are divided; learn, to_actions: whether
        gradients with respect to weights and to actions are needed; options: items of the call's options.
        """
        rows = [slice(size * i // count, size * (i + 1) // count) for i in range(count)]
        named, gradients = {**dict(options), **({"to_actions": True} if to_actions else {})}, []
        parts = []
        for part in rows:
            places: dict[int, Tensor] = {}
            if learn:
                gradients.append(torch.zeros(aligned_size(self._learned)))
                places = dict(zip(map(id, self._learned), views(self._learned, gradients[-1]), strict=True))
            place = partial(_place_of, places)
            parts.append(passes_of(self.network, place, part.stop - part.start, **named))
        outputs = list(zip(*(passes.outputs for passes in parts), strict=True))
        backward = [passes.backward() if learn or to_actions else [] for passes in parts]
        return _Buffers(parts, rows, outputs, [passes.forward for passes in parts], backward, gradients)


def _place_of(places: Mapping[int, Tensor], weight: Tensor) -> Tensor | None:
    return places.get(id(weight))


@dataclass
class _Call:
    """One call of a network. It owns its buffers while autograd's graph needs them."""

    network: nn.Module
    inputs: Sequence[Any]
    options: Mapping[str, Any]
    outputs: Sequence[NDArray]
    buffers: _Buffers
    free: list[_Buffers]
    threads: Threads | None

    def __del__(self) -> None:
        self.free.append(self.buffers)

    def by_autograd(
        self, action: Tensor | None, gradients: Sequence[Tensor | None], learn: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return gradients with respect to weights and actions, which can be differentiated again."""
        with torch.enable_grad():
            inputs = self.inputs if action is None else (self.inputs[0], action, *self.inputs[2:])
            result = self.network(*inputs, **self.options)
            outputs = [result] if isinstance(result, Tensor) else list(result)
            # The state of a network without memory, and values that are always 0, are not differentiated.
            pairs = [
                (output, gradient)
                for output, gradient in zip(outputs, gradients, strict=False)
                if output is not None and output.requires_grad and gradient is not None
            ]
            weights = trainable(self.network) if learn else []
            wanted = [*weights, *([] if action is None or not action.requires_grad else [action])]
            of_outputs, given = zip(*pairs, strict=True)
            found = torch.autograd.grad(of_outputs, wanted, given, create_graph=True, allow_unused=True)
            slopes = [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True)]
            vector = flatten(slopes[: len(weights)]) if learn else None
        return vector, slopes[-1] if len(slopes) > len(weights) else None


class _Evaluate(torch.autograd.Function):
    """The outputs of a kernel as one operation on the network's weights and on continuous actions."""

    @staticmethod
    def forward(ctx: Any, call: _Call, vector: Tensor | None, action: Tensor | None) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.call = call
        if action is not None:
            ctx.save_for_backward(action)
        return tuple(map(torch.from_numpy, call.outputs))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        if torch.is_grad_enabled():  # create_graph=True: these gradients will be differentiated again
            (action,) = ctx.saved_tensors or (None,)
            return None, *call.by_autograd(action, gradients, learn=ctx.needs_input_grad[1])
        buffers = call.buffers
        for number, gradient in enumerate(gradients):
            array = None if gradient is None else gradient.numpy()
            for passes, rows in zip(buffers.parts, buffers.rows, strict=True):
                if array is None:
                    passes.output_gradients[number][...] = 0
                else:
                    part = array[:, rows] if passes.row_axis else array[rows]
                    passes.output_gradients[number][...] = part
        first, *others = buffers.parts
        if others:
            call.threads.run(buffers.backward)  # type: ignore[union-attr]  # the threads compute the parts
        else:
            for operation in buffers.backward[0]:
                operation()
        vector = None
        if buffers.weight_gradients:
            vector, *rest = buffers.weight_gradients
            for other in rest:  # always in the same order, so that a run is reproducible
                vector += other
        if first.action_gradient is None:
            return None, vector, None
        slopes: list[Any] = [part.action_gradient for part in buffers.parts]
        of_parts = [torch.from_numpy(np.add.reduce(slope)) for slope in slopes]  # summed over the critics
        return None, vector, torch.cat(of_parts) if others else of_parts[0]


class Changes:
    """Detects whether a network has been changed, for computations that rely on its original form."""

    def __init__(self, network: nn.Module) -> None:
        modules = list(network.modules())
        self._hooks = [
            hooks
            for part in modules
            for hooks in (
                part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks
            )
        ]  # fmt: skip
        self._attributes = [vars(part) for part in modules]
        # A parametrization is a submodule of a layer; layers have no other submodules.
        self._members = [
            members.values() for part in modules for members in (part._modules, part._parameters)
        ]
        self._before = list(map(id, chain.from_iterable(self._members)))
        self._weights = [(weight, weight.requires_grad) for weight in network.parameters()]

    @property
    def hooked(self) -> bool:
        """Whether the network or any of its parts has hooks."""
        return any(self._hooks)

    @property
    def found(self) -> bool:
        """Whether the network has hooks or a replaced `forward`, or its parts have changed.

        A part has changed if it has other modules, parametrizations or weights, or if other weights are
        frozen.
        """
        if list(map(id, chain(*self._members))) != self._before:
            return True
        for hooks in self._hooks:  # faster than any()
            if hooks:
                return True
        for weight, learned in self._weights:
            if weight.requires_grad is not learned or weight._backward_hooks:
                return True
        for attributes in self._attributes:  # noqa: SIM110 - as above
            if "forward" in attributes:
                return True
        return False
