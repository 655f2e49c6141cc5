"""Kernels: forward and backward passes of fully connected networks without autograd.

A kernel uses the memory of its network's weights and of their gradients, so it follows every change of them.
Inputs and outputs are arrays. The next call of `forward` or `backward` for the same number of rows in the
same thread overwrites the outputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.learning.kernels.mlp import ACTIVATIONS, ALL, Layer, Operation, Pass, Weight
from labrl.networks.actor_critic import ActorCritic, ActorCriticOutput, GaussianHead
from labrl.networks.critics import Critics, PolicyNetwork
from labrl.networks.layers import Normalized, Numbers, Output
from labrl.networks.q_network import QNetwork, QOutput, Stream

MOST_SIZES = 8
"""Largest count of different numbers of rows for which a kernel keeps buffers."""


Made = TypeVar("Made")


class Buffers(threading.local, Generic[Made]):
    """Buffers of a kernel for the latest numbers of rows, separate for each thread."""

    last: Made
    """Buffers of the last forward pass."""

    def __init__(self, make: Callable[..., Made]) -> None:
        """make: makes the buffers for a number of rows and further arguments."""
        self.at: Callable[..., Made] = lru_cache(MOST_SIZES)(make)


class UnknownNetworkError(Exception):
    """A network has no kernel; the message gives the reason."""


class Kernel(Protocol):
    """A network without autograd."""

    @property
    def forward(self) -> Callable[..., Any]:
        """Compute the outputs of the network as arrays, which the next call overwrites."""
        ...

    @property
    def backward(self) -> Callable[..., Any]:
        """Compute the gradients of all weights from those of the last outputs of `forward`."""
        ...


def kernel_of(network: nn.Module) -> Kernel:
    """Return the kernel of a network. Raises UnknownNetworkError if there is none."""
    make = KERNELS.get(type(network))
    if make is None:
        raise UnknownNetworkError(f"{type(network).__name__} is not one of labrl's own networks")
    for name, part in network.named_modules():
        if "parametrizations" in part._modules:
            raise UnknownNetworkError(f"{name} has a parametrization")
    for name, weight in network.named_parameters():
        if weight.device.type != "cpu":
            raise UnknownNetworkError(f"its weights are on the device {weight.device}")
        if weight.dtype != torch.float32:
            raise UnknownNetworkError(f"{name} is in {weight.dtype}")
    return make(network)


def hooks_of(network: nn.Module) -> list[Mapping[Any, Any]]:
    """Return the dicts that contain the hooks of all parts of a network during its lifetime."""
    modules = list(network.modules())
    hooks: list[Mapping[Any, Any]] = [part._forward_hooks for part in modules]
    hooks += [part._forward_pre_hooks for part in modules]
    hooks += [part._backward_hooks for part in modules]
    hooks += [part._backward_pre_hooks for part in modules]
    return hooks


class WatchedKernel:
    """The kernel of a network while the network has no hooks and parametrizations."""

    def __init__(self, network: nn.Module | None, why_not: str = "") -> None:
        """network: None for no kernel; why_not: reason for this."""
        self._kernel: Kernel | None = None
        self._alterations: list[Mapping[Any, Any]] = []
        self.why_not = why_not
        """Why there is no kernel, for a message; empty if there is one, or if kernels are switched off."""
        if network is None:
            return
        try:
            self._kernel = kernel_of(network)
        except UnknownNetworkError as error:
            self.why_not = str(error)
        # A parametrization is a submodule of a layer, which otherwise has none.
        leaves = [part._modules for part in network.modules() if not part._modules]
        self._alterations = [*hooks_of(network), *leaves]

    @property
    def now(self) -> Kernel | None:
        """The kernel; None if there is none or the network is currently altered."""
        return None if any(self._alterations) else self._kernel

    def kept(self, num_rows: int) -> RolloutKernel | None:
        """Return the kernel with buffers for the outputs of `num_rows` rows; None if it cannot use them."""
        return self.now.kept(num_rows) if isinstance(self.now, ActorCriticKernel) else None


class ActorCriticKernel:
    """Kernel of a policy and a value function with one shared torso or two torsos."""

    def __init__(self, network: ActorCritic) -> None:
        if network.state_size:
            raise UnknownNetworkError("it is recurrent")
        self.reader, self._policy_torso = _torso(network.policy_torso)
        self._value_torso = _torso(network.value_torso)[1]
        self._one_torso, self._has_value = network.one_torso, network.has_value
        self._policy_head = list(_layers(network.policy_head))
        self._value_head = list(_layers(network.value_head)) if network.has_value else []
        pairs = zip(self._policy_torso, self._value_torso, strict=True)
        beside = [] if self._one_torso else [one.beside(other) for one, other in pairs]
        self._torsos = [layer for layer in beside if layer is not None]  # both torsos as one
        if len(self._torsos) < len(beside):
            self._torsos = []
        self._log_std: Weight | None = None
        if isinstance(network.policy_head, GaussianHead):
            self._log_std = Weight.of(network.policy_head.log_std)
        self.buffers = Buffers(self._make_buffers)
        """Inputs, outputs and gradients, which `backward` uses after `forward`."""

    def kept(self, num_rows: int) -> RolloutKernel:
        """Return this kernel with buffers for `num_rows` rows, which are computed in parts."""
        return RolloutKernel(self, self._make_buffers(num_rows, policy=True, value=True))

    def forward(
        self, observation: Any, state: Any = None, *others: None, policy: bool = True, value: bool = True
    ) -> ActorCriticOutput:
        """Compute distribution parameters, [rows, num_outputs], and values, [rows], if requested."""
        buffers = self.buffers
        at = buffers.last = buffers.at(len(observation), policy, value)
        self.reader(observation, at.inputs)
        for operation in at.forward:
            operation()
        return ActorCriticOutput(at.parameters, at.values, state)  # type: ignore[arg-type]  # arrays

    def backward(self, parameters: NDArray, value: NDArray | None = None) -> None:
        """Compute the gradients of all weights.

        parameters: gradient of the distribution parameters, [rows, num_outputs]; value: gradient of the
        values, [rows], None if they are not learned.
        """
        at = self.buffers.last
        if self._log_std is not None:
            parameters, log_std = np.split(parameters, 2, axis=1)
            if self._log_std.gradient is not None:
                log_std.sum(0, out=self._log_std.gradient.numpy()[0])
        np.copyto(at.parameter_gradient, parameters)
        at.value_gradient[:] = 0 if value is None else value
        for operation in at.backward:
            operation()

    def _make_buffers(self, rows: int, policy: bool, value: bool) -> _ActorCriticBuffers:
        """Make the buffers and operations of the requested parts."""
        inputs, nothing = torch.zeros(rows, self.reader.size), np.zeros(rows, np.float32)
        learned = value and self._has_value
        # With one torso, the gradients from both heads are added.
        merged: list[Operation] = []
        if self._one_torso or not (policy and learned):
            torsos = [Pass(self._policy_torso if self._one_torso or policy else self._value_torso, inputs)]
            outputs, gradient = torsos[0].outputs, torsos[0].output_gradient
            second = None if gradient is None else torch.zeros_like(gradient)
            seen: list[tuple[Tensor, Tensor | None]] = [(outputs, gradient), (outputs, second)]
            if policy and learned and gradient is not None:
                merged = [partial(torch.add, gradient, second, out=gradient)]
        elif self._torsos:
            torsos = [Pass(self._torsos, inputs)]
            assert torsos[0].output_gradient is not None
            seen = list(zip(torsos[0].outputs, torsos[0].output_gradient, strict=True))
        else:
            torsos = [Pass(layers, inputs) for layers in (self._policy_torso, self._value_torso)]
            seen = [(torso.outputs, torso.output_gradient) for torso in torsos]
        heads = [self._policy_head] * policy + [self._value_head] * learned
        own = [Pass(head, *what) for head, what in zip(heads, seen, strict=False)]
        parameters = means = own[0].outputs.numpy() if policy else None
        if means is not None and self._log_std is not None:
            parameters = np.zeros((rows, 2 * means.shape[1]), np.float32)

        def forward_of(some: slice) -> list[Operation]:
            operations = [operation for part in (*torsos, *own) for operation in part.operations_of(some)]
            if means is not None and parameters is not None and self._log_std is not None:
                left, right = np.split(parameters[some], 2, axis=1)
                operations += [
                    partial(np.copyto, left, means[some]),
                    partial(np.copyto, right, self._log_std.value.numpy()),
                ]
            return operations

        backward: list[Operation] = []
        if policy and learned == self._has_value:
            heads_back = [operation for part in own for operation in part.backward_operations]
            torsos_back = [operation for part in torsos for operation in part.backward_operations]
            backward = [*heads_back, *merged, *torsos_back]
        gradients = [part.output_gradient.numpy() for part in own if part.output_gradient is not None]
        return _ActorCriticBuffers(
            inputs=inputs.numpy(),
            parameters=parameters,
            values=own[-1].outputs.numpy()[:, 0] if learned else nothing if value else None,
            parameter_gradient=gradients[0],
            value_gradient=gradients[-1][:, 0] if learned else nothing.copy(),
            forward=forward_of(ALL),
            backward=backward,
            forward_of=forward_of,
        )


class RolloutKernel:
    """Kernel of an actor-critic that keeps the outputs of consecutive forward passes over parts of the rows.

    A gradient of the same weights then needs no other forward pass.
    """

    def __init__(self, kernel: ActorCriticKernel, buffers: _ActorCriticBuffers) -> None:
        self.kernel, self._buffers = kernel, buffers
        self.backward = kernel.backward
        self._read = np.zeros_like(buffers.inputs)
        self._operations_of = cache(lambda begin, end: buffers.forward_of(slice(begin, end)))
        self._count = 0  # rows computed with the current weights

    @property
    def complete(self) -> int:
        """Number of rows if all are computed since the last `drop`; otherwise 0."""
        return self._count if self._count == len(self._buffers.inputs) else 0

    def drop(self) -> None:
        """Discard the outputs, because the weights have changed."""
        self._count = 0

    def compute(self, observation: Any, state: Any, rows: slice) -> ActorCriticOutput:
        """Compute rows that follow those of the previous call. [rows, ...]"""
        self._count = rows.stop if rows.start in (0, self._count) else -1
        at = self._buffers
        self.kernel.reader(observation, at.inputs[rows])
        for operation in self._operations_of(rows.start, rows.stop):
            operation()
        assert at.parameters is not None
        assert at.values is not None
        return ActorCriticOutput(at.parameters[rows], at.values[rows], state)  # type: ignore[arg-type]  # arrays

    def forward(self, observation: Any, *others: None) -> ActorCriticOutput:
        """Return the outputs of all rows; recompute them if the observations are not those acted on."""
        at = self.kernel.buffers.last = self._buffers
        self.kernel.reader(observation, self._read)
        if not np.array_equal(self._read, at.inputs):
            np.copyto(at.inputs, self._read)
            for operation in at.forward:
                operation()
        return ActorCriticOutput(self._buffers.parameters, self._buffers.values, None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _ActorCriticBuffers:
    """Buffers for one number of rows, with the operations on them."""

    inputs: NDArray
    parameters: NDArray | None
    values: NDArray | None
    parameter_gradient: NDArray
    """Gradient of the policy head's outputs, without log standard deviations."""
    value_gradient: NDArray
    forward: list[Operation]
    backward: list[Operation]
    """Empty unless all parts of the network are computed."""
    forward_of: Callable[[slice], list[Operation]]
    """Returns the forward operations of some rows."""


class QNetworkKernel:
    """Kernel of a Q network: a torso and one stream, or two streams of a dueling network."""

    def __init__(self, network: QNetwork) -> None:
        if network.state_size:
            raise UnknownNetworkError("it is recurrent")
        self._reader, self._torso = _torso(network.torso)
        self._streams = [list(_layers(s)) for s in (network.advantage, network.value) if s is not None]
        self._shape = network.output_shape
        self._buffers = Buffers(self._make_buffers)

    def forward(self, observation: Any, state: Any = None, *others: None, noise: None = None) -> QOutput:
        """Compute the outputs of each action. [rows, actions, outputs]

        Dueling networks compute V + A - mean of A over the actions.
        """
        buffers = self._buffers
        at = buffers.last = buffers.at(len(observation))
        self._reader(observation, at.inputs)
        for operation in at.forward:
            operation()
        return QOutput(at.outputs, state)  # type: ignore[arg-type]  # an array

    def backward(self, outputs: NDArray) -> None:
        """Compute the gradients of all weights.

        outputs: gradient g of the outputs, of the same shape. In dueling networks, the gradient of A is g -
        mean of g over the actions, and the gradient of V is the sum of g over the actions.
        """
        at = self._buffers.last
        np.copyto(at.gradient, outputs)
        for operation in at.backward:
            operation()

    def _make_buffers(self, rows: int) -> _QBuffers:
        """Make the buffers and operations for a number of rows."""
        inputs, shape = torch.zeros(rows, self._reader.size), (rows, *self._shape[1:])
        if len(self._streams) == 1:
            whole = Pass([*self._torso, *self._streams[0]], inputs)
            assert whole.output_gradient is not None
            outputs, gradient = (
                each.numpy().reshape(shape) for each in (whole.outputs, whole.output_gradient)
            )
            return _QBuffers(
                inputs.numpy(), outputs, gradient, whole.forward_operations, whole.backward_operations
            )
        torso = Pass(self._torso, inputs)
        to_torso = torso.output_gradient
        second = None if to_torso is None else torch.zeros_like(to_torso)
        a = Pass(self._streams[0], torso.outputs, to_torso)
        v = Pass(self._streams[1], torso.outputs, second)
        assert a.output_gradient is not None
        assert v.output_gradient is not None
        advantage, to_advantage = (each.numpy().reshape(shape) for each in (a.outputs, a.output_gradient))
        value, to_value = (each.numpy()[:, None] for each in (v.outputs, v.output_gradient))
        outputs, gradient, mean = np.zeros((3, *shape), np.float32)
        mean = mean[:, :1]
        joined: list[Operation] = [
            partial(np.mean, advantage, 1, keepdims=True, out=mean),
            partial(np.subtract, advantage, mean, out=outputs),
            partial(np.add, outputs, value, out=outputs),
        ]
        parted: list[Operation] = [
            partial(np.sum, gradient, 1, keepdims=True, out=to_value),
            partial(np.mean, gradient, 1, keepdims=True, out=mean),
            partial(np.subtract, gradient, mean, out=to_advantage),
        ]
        merged = [] if to_torso is None else [partial(torch.add, to_torso, second, out=to_torso)]
        return _QBuffers(
            inputs.numpy(),
            outputs,
            gradient,
            [*torso.forward_operations, *a.forward_operations, *v.forward_operations, *joined],
            [*parted, *a.backward_operations, *v.backward_operations, *merged, *torso.backward_operations],
        )


@dataclass(frozen=True)
class _QBuffers:
    """Buffers for one number of rows, with the operations on them."""

    inputs: NDArray
    outputs: NDArray
    """[rows, actions, outputs]"""
    gradient: NDArray
    """Gradient of the outputs."""
    forward: list[Operation]
    backward: list[Operation]


class PolicyNetworkKernel:
    """Kernel of a torso with a linear layer."""

    def __init__(self, network: PolicyNetwork) -> None:
        self._reader, torso = _torso(network.torso)
        self._layers = [*torso, *_layers(network.outputs)]
        self._passes = Buffers(lambda rows: Pass(self._layers, torch.zeros(rows, self._reader.size)))

    def forward(self, observation: Any) -> NDArray:
        """Compute the outputs. [rows, num_outputs]"""
        passes = self._passes
        at = passes.last = passes.at(len(observation))
        self._reader(observation, at.inputs.numpy())
        for operation in at.forward_operations:
            operation()
        outputs: NDArray = at.outputs.numpy()
        return outputs

    def backward(self, outputs: NDArray) -> None:
        """Compute the gradients of all weights. outputs: gradient of the outputs, [rows, num_outputs]."""
        at = self._passes.last
        assert at.output_gradient is not None
        np.copyto(at.output_gradient.numpy(), outputs)
        for operation in at.backward_operations:
            operation()


class CriticsKernel:
    """Kernel of several critics of the same shape, computed together."""

    def __init__(self, network: Critics) -> None:
        if network.perceptrons is None:
            raise UnknownNetworkError("its critics are more than perceptrons without layer normalization")
        self._reader = _Reader(list(network.numbers.children()), 0)
        self._scalar, self._joint = network.scalar, network.joint
        *hidden, last = zip(network.perceptrons.weights, network.perceptrons.biases, strict=True)
        activate = network.perceptrons.activate
        if type(activate) not in ACTIVATIONS:
            raise UnknownNetworkError(f"it has the activation {type(activate).__name__}")
        self._layers = [Layer(Weight.of(w), Weight.of(b), None, activate) for w, b in hidden]
        self._layers.append(Layer(Weight.of(last[0]), Weight.of(last[1])))
        self._passes = Buffers(self._pass)

    def forward(self, observation: Any, action: Any = None, first: bool = False) -> NDArray:
        """Compute values, [critics, rows], or [critics, rows, outputs] with several outputs or actions.

        action: continuous actions, [rows, size]; first: whether to compute only the first critic.
        """
        passes = self._passes
        at = passes.last = passes.at(len(observation), first)
        inputs = at.inputs.numpy()
        if self._joint:
            size = inputs.shape[1] - action.shape[1]
            self._reader(observation, inputs[:, :size])
            inputs[:, size:] = action
        else:
            self._reader(observation, inputs)
        for operation in at.forward_operations:
            operation()
        outputs: NDArray = at.outputs.numpy()
        return outputs[..., 0] if self._scalar else outputs

    def backward(self, values: NDArray) -> None:
        """Compute the gradients of all weights. values: gradient of the values, of the same shape."""
        at = self._passes.last
        assert at.output_gradient is not None
        np.copyto(at.output_gradient.numpy(), values[..., None] if self._scalar else values)
        for operation in at.backward_operations:
            operation()

    def input_gradient(self, values: NDArray) -> NDArray:
        """Return the gradient of each critic's inputs, observation and action, [critics, rows, inputs].

        values: gradient of the values. The gradients of the weights do not change.
        """
        at = self._passes.last
        assert at.output_gradient is not None
        np.copyto(at.output_gradient.numpy(), values[..., None] if self._scalar else values)
        for operation in at.input_operations:
            operation()
        assert at.input_gradient is not None
        gradient: NDArray = at.input_gradient.numpy()
        return gradient

    def _pass(self, rows: int, first: bool) -> Pass:
        layers = [layer.only(0) for layer in self._layers] if first else self._layers
        return Pass(layers, torch.zeros(rows, layers[0].weight.value.shape[1]))


class _Reader:
    """Writes observations to a buffer as rows of numbers, the inputs of the first layer."""

    def __init__(self, modules: Sequence[nn.Module], size: int) -> None:
        """modules: modules before the first layer; size: length of a row."""
        self.size = size
        self._numbers: Numbers | None = None
        for module in modules:
            if type(module) is Numbers:
                self._numbers = module
            elif type(module) is not nn.Flatten:
                raise UnknownNetworkError(f"it has a {type(module).__name__} before its first layer")

    def __call__(self, observation: Any, out: NDArray) -> None:
        """Write the rows to `out`, [rows, size]. observation: array or tensor, [rows, *obs]."""
        if self._numbers is not None:
            observation = self._numbers(torch.as_tensor(observation))
        if isinstance(observation, Tensor):
            observation = observation.numpy()
        np.copyto(out, observation.reshape(len(out), -1))


def _torso(torso: nn.Module) -> tuple[_Reader, list[Layer]]:
    """Return the reader of observations and the layers of a torso. Raises UnknownNetworkError."""
    parts = list(_parts(torso))
    before = 0
    while before < len(parts) and not isinstance(parts[before], nn.Linear):
        before += 1
    layers = list(_layers(*parts[before:]))
    size = layers[0].weight.value.shape[0] if layers else int(torso.num_features)  # type: ignore[arg-type]
    return _Reader(parts[:before], size), layers


def _layers(*modules: nn.Module) -> Iterator[Layer]:
    """Yield the layers of modules. Raises UnknownNetworkError if one of them has no kernel."""
    parts = [part for module in modules for part in _parts(module)]
    while parts:
        linear = parts.pop(0)
        if type(linear) not in (nn.Linear, Output):
            raise UnknownNetworkError(f"it has a {type(linear).__name__} where a linear layer was expected")
        assert isinstance(linear, nn.Linear)
        if linear.bias is None:
            raise UnknownNetworkError("it has a linear layer without a bias")
        norm, activation = None, None
        if parts and type(parts[0]) is nn.LayerNorm:
            norm = _norm(parts.pop(0))
        if parts and type(parts[0]) in ACTIVATIONS:
            activation = parts.pop(0)
        weight = Weight.of(linear.weight).view(Tensor.t)
        yield Layer(weight, Weight.of(linear.bias).view(lambda bias: bias.unsqueeze(0)), norm, activation)


def _norm(norm: Any) -> tuple[Weight, Weight, float]:
    if len(norm.normalized_shape) != 1 or norm.weight is None or norm.bias is None:
        raise UnknownNetworkError("it has a layer normalization without gain and shift, or of several axes")
    return Weight.of(norm.weight), Weight.of(norm.bias), norm.eps


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers, norms and activations of a module in the order of computation."""
    if type(module).forward in (nn.Sequential.forward, GaussianHead.forward):
        for child in module.children():
            yield from _parts(child)
    elif type(module) is Normalized:
        for linear, norm in zip(module.layers, module.norms, strict=True):
            yield from (linear, norm, module.activate)
    elif type(module) is Stream:
        for i, linear in enumerate(module.layers):
            yield linear
            if i < len(module.activations):
                yield from ([module.norms[i]] if len(module.norms) else [])
                yield module.activations[i]
    elif type(module) is not nn.Identity:
        yield module


KERNELS: dict[type[nn.Module], Callable[[Any], Kernel]] = {
    ActorCritic: ActorCriticKernel,
    QNetwork: QNetworkKernel,
    PolicyNetwork: PolicyNetworkKernel,
    Critics: CriticsKernel,
}
"""Classes of networks with a kernel."""
