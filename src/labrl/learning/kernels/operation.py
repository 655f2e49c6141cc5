"""Kernels as autograd operations: the forward pass of a whole network is a single operation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.learning.flat import Network, aligned_size, flatten, trainable, views
from labrl.learning.kernels.mlp import Operation
from labrl.learning.kernels.networks import Passes, passes_of
from labrl.networks.layers import transforms_active

MAX_SIZES = 8
"""Maximum number of different kinds of calls for which buffers are kept."""


@dataclass(frozen=True)
class _Buffers:
    """Passes of a kernel, in buffers of their own."""

    passes: Passes
    backward: list[Operation]
    weight_gradient: Tensor | None
    """Gradient with respect to all weights, in the order of `FlatParameters`, [size]; None if the weights are
    not learned."""


class KernelNetwork(Generic[Network]):
    """Wrapper that is called like a network, and whose outputs a kernel computes wherever it can.

    The network itself computes them in three cases: while it is changed (by hooks, parametrizations, frozen
    weights, or other weights, as in `torch.func.functional_call`), during transforms of `torch.func`, and if
    gradients with respect to observations, or gradients of only some outputs, are needed. Other attributes
    are those of the network.
    """

    def __init__(self, network: Network, vector: nn.Parameter | None) -> None:
        """vector: the network's weights, a leaf of autograd with respect to which gradients are computed;
        None if the weights are not learned. Raises UnknownNetworkError if there is no kernel for the network.
        """
        self.network, self._vector = network, vector
        self._learned = trainable(network)
        passes = passes_of(network, lambda weight: None, rows=1)
        self._reads_actions = passes.action is not None
        self._free: OrderedDict[tuple[Any, ...], list[_Buffers]] = OrderedDict()
        self.changes = Changes(network)
        """Detector of changes to the network, after which the kernel must not compute it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)

    def forget(self) -> None:
        """Drop all buffers, because the weights have moved to other memory."""
        self._free.clear()

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
        options.pop("noise", None)
        action = inputs[1] if self._reads_actions else None
        to_actions = differentiate and action is not None and action.requires_grad
        key = len(observation), learn, to_actions, *options.items()
        array = None if action is None else action.detach().numpy()
        buffers, free, arrays = self._run(key, observation.detach().numpy(), array)
        if learn or to_actions:
            call = _Call(self.network, inputs, options, buffers, free)
            tensors = _Evaluate.apply(call, arrays, self._vector if learn else None, action)
        else:
            tensors = tuple(map(torch.from_numpy, arrays))
            free.append(buffers)
        if buffers.passes.named_output is None:
            return tensors[0]
        return buffers.passes.named_output(*tensors, state=inputs[1] if len(inputs) > 1 else None)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Compute the outputs of the network as arrays, without gradients. The network must be unchanged.

        inputs: arrays or tensors, [rows, ...], or None.
        """
        key = len(inputs[0]), False, False, *options.items()
        buffers, free, arrays = self._run(key, inputs[0], inputs[1] if self._reads_actions else None)
        free.append(buffers)
        if buffers.passes.named_output is None:
            return arrays[0]
        return buffers.passes.named_output(*arrays, state=inputs[1] if len(inputs) > 1 else None)

    def _run(
        self, key: tuple[Any, ...], observation: Any, action: NDArray | None
    ) -> tuple[_Buffers, list[_Buffers], list[NDArray]]:
        """Run the forward pass in buffers that no other call uses.

        key: number of rows, whether gradients with respect to weights and to actions are needed, and options
        of the call. Returns the buffers, the list to which they must be added when they are no longer needed,
        and copies of the outputs.
        """
        free = self._free.setdefault(key, [])
        try:
            buffers = free.pop()
        except IndexError:
            # Make buffers for a new kind of calls, and forget those of the oldest kind if there are too many.
            while len(self._free) > MAX_SIZES:
                self._free.popitem(last=False)
            rows, learn, to_actions, *options = key
            gradient, places = None, {}
            if learn:
                gradient = torch.zeros(aligned_size(self._learned))
                places = dict(zip(map(id, self._learned), views(self._learned, gradient), strict=True))
            named = {**dict(options), **({"to_actions": True} if to_actions else {})}
            passes = passes_of(self.network, lambda weight: places.get(id(weight)), rows, **named)
            buffers = _Buffers(passes, passes.backward() if learn or to_actions else [], gradient)
        passes = buffers.passes
        if passes.numbers is not None:
            observation = passes.numbers(torch.as_tensor(observation)).numpy()
        if observation.ndim != 2:
            observation = observation.reshape(len(observation), -1)
        np.copyto(passes.observation, observation)
        if passes.action is not None:
            np.copyto(passes.action, action)  # type: ignore[arg-type]  # not None if the network reads it
        for operation in passes.forward:
            operation()
        return buffers, free, list(map(np.array, passes.outputs))


@dataclass
class _Call:
    """One call of a network. It owns its buffers while autograd's graph needs them."""

    network: nn.Module
    inputs: Sequence[Any]
    options: Mapping[str, Any]
    buffers: _Buffers
    free: list[_Buffers]

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
    def forward(
        ctx: Any, call: _Call, arrays: list[NDArray], vector: Tensor | None, action: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.call = call
        ctx.save_for_backward(action)
        return tuple(map(torch.from_numpy, arrays))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: these gradients will be differentiated again
            (action,) = ctx.saved_tensors
            return None, None, *ctx.call.by_autograd(action, gradients, learn=ctx.needs_input_grad[2])
        buffers: _Buffers = ctx.call.buffers
        for place, gradient in zip(buffers.passes.output_gradients, gradients, strict=True):
            np.copyto(place, 0 if gradient is None else gradient.numpy())
        for operation in buffers.backward:
            operation()
        of_critics = buffers.passes.action_gradient
        to_action = None if of_critics is None else torch.from_numpy(of_critics.sum(0))
        return None, None, buffers.weight_gradient, to_action


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
        if any(self._hooks) or list(map(id, chain.from_iterable(self._members))) != self._before:
            return True
        for weight, learned in self._weights:
            if weight.requires_grad is not learned or weight._backward_hooks:
                return True
        for attributes in self._attributes:  # noqa: SIM110 - faster than any()
            if "forward" in attributes:
                return True
        return False
