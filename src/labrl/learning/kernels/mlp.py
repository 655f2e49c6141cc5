"""Forward and backward passes of fully connected layers, derived by hand.

The bookkeeping of autograd, not arithmetic, limits the speed of small networks: one update of two 4-64-64
networks takes 2.4 ms with autograd. It takes about 0.5 ms here, where every operation writes to a buffer that
was allocated once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Operation = Callable[[], object]
"""An operation on fixed buffers."""

MAX_NUMPY_ELEMENTS = 1024
"""Maximum size of arrays that NumPy adds instead of torch. For small arrays, a call of NumPy takes less
time."""

MAX_NUMPY_RELU_ELEMENTS, MAX_NUMPY_RELU_GRADIENTS = 4096, 20_000
"""Maximum sizes of arrays for which NumPy computes a ReLU, and the gradient through a ReLU."""

MAX_TANH_ELEMENTS = 4096
"""Maximum size of arrays for which NumPy's tanh is faster than the alternative in `_tanh`."""

_aten: Any = torch.ops.aten


@dataclass(frozen=True)
class Weight:
    """Memory of a parameter, and memory of its gradient in the same shape."""

    value: Tensor
    gradient: Tensor | None
    """Memory of the gradient; None if the parameter is not learned."""

    def view(self, change: Callable[[Tensor], Tensor]) -> Weight:
        """Return views of the value and the gradient. change: maps a tensor to a view of it."""
        return Weight(change(self.value), None if self.gradient is None else change(self.gradient))


@dataclass(frozen=True)
class Layer:
    """Layer y = f(x W + b) of one network, or of several networks of the same shape."""

    weight: Weight
    """Weights W. [inputs, outputs] or [networks, inputs, outputs]"""
    bias: Weight
    """Biases b. [1, outputs] or [networks, 1, outputs]"""
    activation: nn.Module | None = None
    """Activation f, one of ACTIVATIONS; None for the identity."""

    def only(self, number: int) -> Layer:
        """Return the layer of network `number` of several networks. [1, ...]"""
        part = slice(number, number + 1)
        return Layer(self.weight.view(lambda w: w[part]), self.bias.view(lambda b: b[part]), self.activation)


def product(left: Tensor, right: Tensor, out: Tensor) -> Operation:
    """Return an operation that writes the matrix product of `left` and `right` to `out`.

    NumPy multiplies, because its calls take less time than torch's, and because it multiplies the matrices of
    several networks in one call.

    left: [a, b] or [networks, a, b]; right: [b, c] or [networks, b, c]; out: [a, c], or [networks, a, c] if
    `left` or `right` has several networks.
    """
    if out.dim() == 3:
        return partial(np.matmul, left.numpy(), right.numpy(), out.numpy())
    if out.is_contiguous():
        return partial(left.numpy().dot, right.numpy(), out.numpy())
    # The gradient of a weight, which is transposed in memory.
    return partial(right.numpy().T.dot, left.numpy().T, out.numpy().T)


class Pass:
    """The computation of layers for a fixed number of rows, in buffers of its own.

    Write to `inputs`, call the `forward_operations` and read `outputs`; then write to `output_gradient`, call
    the `backward_operations`, and read `input_gradient` and the gradients of the weights.
    """

    def __init__(self, layers: Sequence[Layer], inputs: Tensor, input_gradient: Tensor | None = None) -> None:
        """inputs: [rows, inputs], or [networks, rows, inputs] for several networks; input_gradient: buffer
        for the gradient of the inputs, None if it is not needed. Both may be buffers of another Pass."""
        self.inputs, self.input_gradient = inputs, input_gradient
        self._rows = inputs.shape[-2]
        self._layers = [_Bound(layers[0], inputs)] if layers else []
        for layer in layers[1:]:
            self._layers.append(_Bound(layer, self._layers[-1].outputs))
        self.outputs: Tensor = self._layers[-1].outputs if layers else inputs
        """Outputs, [rows, outputs] or [networks, rows, outputs]; the next forward pass overwrites them."""
        self.output_gradient = torch.zeros_like(self.outputs) if layers else input_gradient
        """Gradient with respect to `outputs`, in the same shape; the backward pass overwrites it. None if
        there are neither layers nor an input gradient."""
        self.forward_operations = [operation for layer in self._layers for operation in layer.forward()]
        """Operations that compute `outputs` from `inputs`."""

    @cached_property
    def backward_operations(self) -> list[Operation]:
        """Operations that compute the gradients of the weights and of the inputs from `output_gradient`."""
        ones, gradient = torch.ones(1, self._rows), self.output_gradient
        operations: list[Operation] = []
        between = [torch.zeros_like(layer.outputs) for layer in self._layers[:-1]]
        for layer, before in zip(reversed(self._layers), [*between[::-1], self.input_gradient], strict=False):
            assert gradient is not None
            operations += layer.backward(gradient, before, ones)
            gradient = before
        return operations


class _Bound:
    """A layer with buffers for a fixed number of rows."""

    def __init__(self, layer: Layer, inputs: Tensor) -> None:
        self._layer, self._inputs = layer, inputs
        *networks, _, size = layer.weight.value.shape
        shape = (*networks, inputs.shape[-2], size)
        self._linear = torch.zeros(shape)
        in_place = layer.activation is None or not ACTIVATIONS[type(layer.activation)].needs_inputs
        self.outputs = self._linear if in_place else torch.zeros(shape)

    def forward(self) -> Iterator[Operation]:
        layer, linear = self._layer, self._linear
        yield product(self._inputs, layer.weight.value, linear)
        if linear.numel() <= MAX_NUMPY_ELEMENTS:
            yield partial(np.add, linear.numpy(), layer.bias.value.numpy(), linear.numpy())
        else:
            yield partial(torch.add, linear, layer.bias.value, out=linear)
        if layer.activation is not None:
            yield from ACTIVATIONS[type(layer.activation)].forward(layer.activation, linear, self.outputs)

    def backward(self, gradient: Tensor, before: Tensor | None, ones: Tensor) -> Iterator[Operation]:
        """Yield the operations of the backward pass.

        gradient: gradient with respect to the outputs, which is overwritten; before: buffer for the gradient
        with respect to the inputs, None if it is not needed; ones: array of ones, [1, rows].
        """
        layer = self._layer
        if layer.activation is not None:
            yield from ACTIVATIONS[type(layer.activation)].backward(
                layer.activation, gradient, self._linear, self.outputs
            )
        if layer.weight.gradient is not None:
            yield product(self._inputs.mT, gradient, layer.weight.gradient)
        if layer.bias.gradient is not None:
            yield product(ones, gradient, layer.bias.gradient)
        if before is None:
            return
        weight = layer.weight.value.mT
        if weight.shape[-2] == 1:  # an outer product, for which a matrix product takes four times as long
            yield partial(torch.mul, gradient, weight, out=before)
        else:
            yield product(gradient, weight, before)


@dataclass(frozen=True)
class Activation:
    """An activation f and its derivative, as operations on buffers."""

    forward: Callable[[Any, Tensor, Tensor], list[Operation]]
    """Function that maps the module, x and y to the operations that write y = f(x)."""
    backward: Callable[[Any, Tensor, Tensor, Tensor], list[Operation]]
    """Function that maps the module, a gradient g, x and y to the operations that write g <- g f'(x)."""
    needs_inputs: bool
    """Whether f' is computed from x. Otherwise, f' is computed from y, and y overwrites x."""


def _tanh(module: Any, x: Tensor, y: Tensor) -> list[Operation]:
    """Return operations that write tanh(x), computed as 2 sigmoid(2x) - 1 if that is faster.

    The error is below 2e-7 in all cases. NumPy's tanh is fastest for small arrays, and for all arrays on
    processors with AVX-512. With AVX2, it takes three times as long as torch's sigmoid.
    """
    values, out = x.numpy(), y.numpy()
    if x.numel() <= MAX_TANH_ELEMENTS or torch.backends.cpu.get_cpu_capability() != "AVX2":
        return [partial(np.tanh, values, out)]
    return [
        partial(np.add, values, values, out=out),
        partial(torch.sigmoid_, y),
        partial(np.add, out, out, out=out),
        partial(np.subtract, out, np.float32(1), out=out),
    ]


def _relu(module: Any, x: Tensor, y: Tensor) -> list[Operation]:
    """Return operations that write max(x, 0)."""
    if x.numel() > MAX_NUMPY_RELU_ELEMENTS:
        return [partial(torch.relu_, y)]
    # Use an array of zeros, because the maximum with a scalar is not vectorized.
    return [partial(np.maximum, y.numpy(), np.zeros(y.shape, np.float32), out=y.numpy())]


def _relu_backward(module: Any, g: Tensor, x: Tensor, y: Tensor) -> list[Operation]:
    """Return operations that write g [y > 0]."""
    if x.numel() > MAX_NUMPY_RELU_GRADIENTS:
        return [partial(_aten.threshold_backward.grad_input, g, y, 0, grad_input=g)]
    gradient, positive = g.numpy(), np.zeros(y.shape, np.bool_)
    return [
        partial(np.greater, y.numpy(), np.float32(0), out=positive),
        partial(np.multiply, gradient, positive, out=gradient),
    ]


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Tanh: Activation(
        _tanh,
        lambda module, g, x, y: [partial(_aten.tanh_backward.grad_input, g, y, grad_input=g)],
        needs_inputs=False,
    ),
    nn.ReLU: Activation(
        _relu,
        _relu_backward,
        needs_inputs=False,
    ),
    nn.ELU: Activation(
        lambda module, x, y: [partial(_aten.elu.out, x, module.alpha, out=y)],
        lambda module, g, x, y: [
            partial(_aten.elu_backward.grad_input, g, module.alpha, 1.0, 1.0, True, y, grad_input=g)
        ],
        needs_inputs=False,
    ),
    nn.SiLU: Activation(
        lambda module, x, y: [partial(_aten.silu.out, x, out=y)],
        lambda module, g, x, y: [partial(_aten.silu_backward.grad_input, g, x, grad_input=g)],
        needs_inputs=True,
    ),
    nn.GELU: Activation(
        lambda module, x, y: [partial(_aten.gelu.out, x, approximate=module.approximate, out=y)],
        lambda module, g, x, y: [
            partial(_aten.gelu_backward.grad_input, g, x, approximate=module.approximate, grad_input=g)
        ],
        needs_inputs=True,
    ),
}
"""Activation modules with a kernel."""
