"""Kernels: forward and backward passes of fully connected networks, derived by hand.

A kernel reads the memory of its network's weights, so it always uses the current weights. Inputs and outputs
are arrays. `operation.py` makes a kernel one operation of autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.learning.kernels.mlp import ACTIVATIONS, Layer, Operation, Pass, Weight
from labrl.networks.actor_critic import ActorCritic, ActorCriticOutput, GaussianHead
from labrl.networks.critics import Critics, PolicyNetwork
from labrl.networks.layers import FlattenInputs, Float32Linear
from labrl.networks.q_network import QNetwork, QOutput, Stream

Place = Callable[[Tensor], Tensor | None]
"""Returns the memory for the gradient of a parameter; None if the parameter is not learned."""


class UnknownNetworkError(Exception):
    """A network has no kernel; the message gives the reason."""


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Forward and backward pass for one number of rows, in fixed buffers."""

    observation: NDArray
    """Buffer for observations as vectors. [rows, size]"""
    numbers: FlattenInputs | None
    """Module that flattens observations into vectors of numbers; None if they are such vectors already."""
    action: NDArray | None = None
    """Buffer for continuous actions, [rows, size]; None if the network does not read actions."""
    forward: list[Operation]
    """Operations that compute `outputs`."""
    outputs: tuple[NDArray, ...]
    """Requested outputs of the network."""
    output_gradients: tuple[NDArray, ...]
    """Buffers for the gradients with respect to `outputs`, to be filled before `backward`."""
    backward: Callable[[], list[Operation]]
    """Function that returns the operations that compute the gradients with respect to the weights and, if
    requested, the actions."""
    action_gradient: NDArray | None = None
    """Gradients of each critic with respect to the actions, [critics, rows, size]; None if not requested."""
    row_axis: int = 0
    """Axis of the rows in `outputs`."""
    named_output: Callable[..., Any] | None = None
    """Function that makes the network's output from `outputs` and `state`, the recurrent state; None if the
    output is a single tensor."""


def passes_of(network: nn.Module, place: Place, rows: int, **options: bool) -> Passes:
    """Return the passes of a network. Raises UnknownNetworkError if it has no kernel.

    options: keyword arguments of the network's call, and `to_actions`: whether to compute the gradient with
    respect to actions.
    """
    if type(network) not in KERNELS:
        raise UnknownNetworkError(f"{type(network).__name__} is not one of labrl's own networks")
    for name, part in network.named_modules():
        if "parametrizations" in part._modules:
            raise UnknownNetworkError(f"{name} has a parametrization")
        if "forward" in vars(part):
            raise UnknownNetworkError(f"{name} has a forward method of its own")
    for name, weight in network.named_parameters():
        if weight.device.type != "cpu":
            raise UnknownNetworkError(f"its weights are on the device {weight.device}")
        if weight.dtype != torch.float32:
            raise UnknownNetworkError(f"{name} is in {weight.dtype}")
        if not weight.is_contiguous():
            raise UnknownNetworkError(f"{name} is not contiguous")
    return KERNELS[type(network)](network, place, rows, **options)


def _actor_critic(
    network: ActorCritic, place: Place, rows: int, policy: bool = True, value: bool = True
) -> Passes:
    """Return the passes of a policy and a value function with one shared torso or two torsos.

    The backward pass requires that both policy and value are computed.
    """
    if network.state_size:
        raise UnknownNetworkError("it is recurrent")
    numbers, size, policy_torso = _torso(network.policy_torso, place)
    *_, value_torso = _torso(network.value_torso, place)
    inputs, learned = torch.zeros(rows, size), value and network.has_value
    merged: list[Operation] = []  # with one torso, the gradients from both heads are added
    if network.one_torso or not (policy and learned):
        torsos = [Pass(policy_torso if network.one_torso or policy else value_torso, inputs)]
        outputs, gradient = torsos[0].outputs, torsos[0].output_gradient
        second = None if gradient is None else torch.zeros_like(gradient)
        seen: list[tuple[Tensor, Tensor | None]] = [(outputs, gradient), (outputs, second)]
        if policy and learned and gradient is not None:
            merged = [partial(torch.add, gradient, second, out=gradient)]
    else:
        torsos = [Pass(layers, inputs) for layers in (policy_torso, value_torso)]
        seen = [(torso.outputs, torso.output_gradient) for torso in torsos]
    heads = [list(_layers(place, network.policy_head))] * policy
    heads += [list(_layers(place, network.value_head))] if learned else []
    own = [Pass(head, *what) for head, what in zip(heads, seen, strict=False)]
    forward = [operation for part in (*torsos, *own) for operation in part.forward_operations]
    parted: list[Operation] = []
    found, gradients = [], []
    if policy:
        parameters, to_parameters = own[0].outputs.numpy(), _gradient_of(own[0])
        if isinstance(network.policy_head, GaussianHead):
            means, to_means, half = parameters, to_parameters, parameters.shape[1]
            log_std = _weight(place, network.policy_head.log_std)
            parameters, to_parameters = np.zeros((2, rows, 2 * half), np.float32)
            forward += [
                partial(np.copyto, parameters[:, :half], means),
                partial(np.copyto, parameters[:, half:], log_std.value.numpy()),
            ]
            parted.append(partial(np.copyto, to_means, to_parameters[:, :half]))
            if log_std.gradient is not None:
                total = log_std.gradient.numpy()[0]
                parted.append(partial(np.sum, to_parameters[:, half:], 0, out=total))
        found.append(parameters)
        gradients.append(to_parameters)
    if learned:
        found.append(own[-1].outputs.numpy()[:, 0])
        gradients.append(_gradient_of(own[-1])[:, 0])
    elif value:  # without a value function, all values are 0
        found.append(np.zeros(rows, np.float32))
        gradients.append(np.zeros(rows, np.float32))
    missing: dict[str, Any] = {} if value else {"value": None}

    def backward() -> list[Operation]:
        of_heads = [operation for part in own for operation in part.backward_operations]
        of_torsos = [operation for torso in torsos for operation in torso.backward_operations]
        return [*parted, *of_heads, *merged, *of_torsos]

    return Passes(
        observation=inputs.numpy(),
        numbers=numbers,
        forward=forward,
        outputs=tuple(found),
        output_gradients=tuple(gradients),
        backward=backward,
        named_output=partial(ActorCriticOutput, *([] if policy else [None]), **missing),
    )


def _q_network(network: QNetwork, place: Place, rows: int) -> Passes:
    """Return the passes of a torso and one stream, or of two streams of a dueling network.

    Dueling networks compute V + A - mean of A over the actions. If g is the gradient with respect to the
    outputs, the gradient with respect to A is g minus the mean of g over the actions, and the gradient with
    respect to V is the sum of g over the actions.
    """
    if network.state_size:
        raise UnknownNetworkError("it is recurrent")
    numbers, size, layers = _torso(network.torso, place)
    streams = [list(_layers(place, each)) for each in (network.advantage, network.value) if each is not None]
    inputs, shape = torch.zeros(rows, size), (rows, *network.output_shape[1:])
    if len(streams) == 1:
        whole = Pass([*layers, *streams[0]], inputs)
        return Passes(
            observation=inputs.numpy(),
            numbers=numbers,
            forward=whole.forward_operations,
            outputs=(whole.outputs.numpy().reshape(shape),),
            output_gradients=(_gradient_of(whole).reshape(shape),),
            backward=lambda: whole.backward_operations,
            named_output=QOutput,
        )
    torso = Pass(layers, inputs)
    to_torso = torso.output_gradient
    second = None if to_torso is None else torch.zeros_like(to_torso)
    a = Pass(streams[0], torso.outputs, to_torso)
    v = Pass(streams[1], torso.outputs, second)
    advantage, to_advantage = (each.reshape(shape) for each in (a.outputs.numpy(), _gradient_of(a)))
    value, to_value = (each[:, None] for each in (v.outputs.numpy(), _gradient_of(v)))
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
    return Passes(
        observation=inputs.numpy(),
        numbers=numbers,
        forward=[*torso.forward_operations, *a.forward_operations, *v.forward_operations, *joined],
        outputs=(outputs,),
        output_gradients=(gradient,),
        backward=lambda: [
            *parted,
            *a.backward_operations,
            *v.backward_operations,
            *merged,
            *torso.backward_operations,
        ],
        named_output=QOutput,
    )


def _policy_network(network: PolicyNetwork, place: Place, rows: int) -> Passes:
    """Return the forward and backward passes of a torso followed by a linear layer."""
    numbers, size, layers = _torso(network.torso, place)
    inputs = torch.zeros(rows, size)
    whole = Pass([*layers, *_layers(place, network.outputs)], inputs)
    return Passes(
        observation=inputs.numpy(),
        numbers=numbers,
        forward=whole.forward_operations,
        outputs=(whole.outputs.numpy(),),
        output_gradients=(_gradient_of(whole),),
        backward=lambda: whole.backward_operations,
    )


def _critics(
    network: Critics, place: Place, rows: int, first: bool = False, to_actions: bool = False
) -> Passes:
    """Return the passes of several critics of the same shape, computed together."""
    if network.perceptrons is None:
        raise UnknownNetworkError("its critics are not plain perceptrons without layer normalization")
    if type(network.perceptrons.activate) not in ACTIVATIONS:
        raise UnknownNetworkError(f"it has the activation {type(network.perceptrons.activate).__name__}")
    pairs = zip(network.perceptrons.weights, network.perceptrons.biases, strict=True)
    weights = [(_weight(place, weight), _weight(place, bias)) for weight, bias in pairs]
    layers = [Layer(*pair, network.perceptrons.activate) for pair in weights[:-1]]
    layers.append(Layer(*weights[-1]))
    if first:
        layers = [layer.only(0) for layer in layers]
    count, size, _ = layers[0].weight.value.shape
    inputs = torch.zeros(rows, size)
    to_inputs = torch.zeros(count, rows, size) if to_actions else None
    whole, index = Pass(layers, inputs, to_inputs), 0 if network.scalar else slice(None)
    first_action = size - (network.action_size if network.joint else 0)
    return Passes(
        observation=inputs.numpy()[:, :first_action],
        numbers=_numbers(network.numbers.children()),
        action=inputs.numpy()[:, first_action:] if network.joint else None,
        forward=whole.forward_operations,
        outputs=(whole.outputs.numpy()[..., index],),
        output_gradients=(_gradient_of(whole)[..., index],),
        backward=lambda: whole.backward_operations,
        action_gradient=None if to_inputs is None else to_inputs.numpy()[..., first_action:],
        row_axis=1,
    )


def _gradient_of(part: Pass) -> NDArray:
    """Return the gradient with respect to the outputs of a pass."""
    assert part.output_gradient is not None
    gradient: NDArray = part.output_gradient.numpy()
    return gradient


def _numbers(modules: Iterable[nn.Module]) -> FlattenInputs | None:
    """Return the module that flattens observations into vectors, if there is one before the first layer."""
    numbers = None
    for module in modules:
        if type(module) is FlattenInputs:
            numbers = module
        elif type(module) is not nn.Flatten:
            raise UnknownNetworkError(f"it has a {type(module).__name__} before its first layer")
    return numbers


def _torso(torso: nn.Module, place: Place) -> tuple[FlattenInputs | None, int, list[Layer]]:
    """Return the module that flattens observations, the vectors' size, and the layers of a torso.

    Raises UnknownNetworkError if the torso has no kernel.
    """
    parts = list(_parts(torso))
    before = 0
    while before < len(parts) and not isinstance(parts[before], nn.Linear):
        before += 1
    layers = list(_layers(place, *parts[before:]))
    size = layers[0].weight.value.shape[0] if layers else int(torso.num_features)  # type: ignore[arg-type]
    return _numbers(parts[:before]), size, layers


def _layers(place: Place, *modules: nn.Module) -> Iterator[Layer]:
    """Yield the layers of modules. Raises UnknownNetworkError if a layer has no kernel."""
    parts = [part for module in modules for part in _parts(module)]
    while parts:
        linear = parts.pop(0)
        if type(linear) not in (nn.Linear, Float32Linear):
            raise UnknownNetworkError(f"it has a {type(linear).__name__} where a linear layer was expected")
        assert isinstance(linear, nn.Linear)
        if linear.bias is None:
            raise UnknownNetworkError("it has a linear layer without a bias")
        activation = parts.pop(0) if parts and type(parts[0]) in ACTIVATIONS else None
        weight, bias = _weight(place, linear.weight), _weight(place, linear.bias)
        yield Layer(weight.view(Tensor.t), bias.view(lambda b: b.unsqueeze(0)), activation)


def _weight(place: Place, parameter: Tensor) -> Weight:
    """Return a weight that uses the memory of a parameter and of its gradient."""
    return Weight(parameter.detach(), place(parameter))


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers, norms and activations of a module in the order of computation."""
    if type(module).forward in (nn.Sequential.forward, GaussianHead.forward):
        for child in module.children():
            yield from _parts(child)
    elif type(module) is Stream:
        for i, linear in enumerate(module.layers):
            yield linear
            if i < len(module.activations):
                yield from module.norms[i : i + 1]
                yield module.activations[i]
    elif type(module) is not nn.Identity:
        yield module


KERNELS: dict[type[nn.Module], Callable[..., Passes]] = {
    ActorCritic: _actor_critic,
    QNetwork: _q_network,
    PolicyNetwork: _policy_network,
    Critics: _critics,
}
"""Classes of networks with a kernel."""
