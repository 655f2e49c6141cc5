"""A network that learns: forward to act and to value, the gradient of a loss, and a step of the optimizer.

Everything that makes this fast, or spreads it over threads, processes and number formats, is behind these
three verbs. The network is a plain module and knows none of it; hooks hung on it and parametrizations are
respected.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain, zip_longest
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.config.component import Component
from labrl.learning.compute import Compute
from labrl.learning.flat import FlatParameters, Network
from labrl.learning.optimizers import Optimizer
from labrl.networks.actor_critic import ActorCritic, ActorCriticOutput, GaussianHead
from labrl.networks.layers import Output
from labrl.networks.noisy import NoisyLinear
from labrl.networks.q_network import QNetwork, QOutput
from labrl.networks.spaces import Spaces, sees_images

LARGE_PRODUCTS = 2**23
"""Weights times samples of a minibatch from which on a matrix product gains from several threads."""

MOST_NUMPY_PRODUCTS = 200_000
"""Products of a layer beyond which OpenBLAS would start threads, which would compete with torch's."""


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
        return len(getattr(self, fields(self)[0].name))

    def __getitem__(self, rows: slice) -> Self:
        """Return some rows of all columns; a column that is None stays None."""
        columns = [getattr(self, column.name) for column in fields(self)]
        return type(self)(*(None if column is None else column[rows] for column in columns))


Batch = TypeVar("Batch", bound=Minibatch)
Loss = Callable[[Any, Batch], tuple[Tensor, Tensor]]
"""From a network and a minibatch, or a slice of one, to the mean loss and its statistics: means [k], or a
column for each row [k, rows]."""
NewOptimizer = Callable[[FlatParameters], Optimizer]


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
        return Learner(network, compute, optimizer, compute.num_threads if large else 1)
    return Learner(network, compute, optimizer)


def _one_optimizer(component: Component, max_grad_norm: float | None, flat: FlatParameters) -> Optimizer:
    """Return an optimizer of all weights together."""
    built: Optimizer = component.build(parameters=[flat.vector], max_grad_norm=max_grad_norm)
    return built


class Learner(Generic[Network]):
    """A network, the gradients of its losses, and its optimizer, in float32."""

    def __init__(
        self, network: Network, compute: Compute, new_optimizer: NewOptimizer, num_threads: int = 1
    ) -> None:
        """num_threads: inside a matrix product of `gradient` and `step`; 1: as many as elsewhere."""
        self.network = network.to(compute.device)
        self.device = compute.device
        self.flat = FlatParameters(self.network)
        self._ranks, self._num_threads = compute.ranks, num_threads
        self._noise = None if compute.noise is None else compute.noise.new()
        self._optimizer = new_optimizer(self.flat)
        self._in_numpy: NumpyForward | None = None
        self._memory = 0  # where the weights lay when it was made
        # Hooks lie in dicts that live as long as their modules.
        self._hooks = [part._forward_hooks for part in self.network.modules()]
        self._hooks += [part._forward_pre_hooks for part in self.network.modules()]

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
        if self._memory != self.flat.vector.data_ptr():  # the first call, or other sessions share them now
            self._memory, self._in_numpy = self.flat.vector.data_ptr(), NumpyForward.of(self.network)
        if self._in_numpy is not None and not any(self._hooks):
            quick = self._in_numpy(*inputs, **options)
            if quick is not None:
                return quick
        tensors = map(self.tensor, inputs)
        with torch.inference_mode():
            output = self.network(*tensors, **options)
        return (
            output.cpu().numpy() if isinstance(output, Tensor) else type(output)._make(map(as_array, output))
        )

    def gradient(
        self, loss: Loss[Batch], minibatch: Batch, *, samples: int = 1, rows: slice | None = None
    ) -> Tensor:
        """Compute the gradient of a mean loss over a minibatch, for `step`.

        loss: called once for each slice of the minibatch. samples: in each unit of the minibatch; rows: of
        the rollout, where `keep_outputs` keeps them. Returns the statistics of the loss: means over all rows,
        [k], or those of each row, [k, rows]. With several ranks gradient and means are those over all ranks.
        """
        before = torch.get_num_threads()
        torch.set_num_threads(max(self._num_threads, before))
        try:
            half = None if self._noise is None else self._gradient_of_half(loss, minibatch)
            self.flat.gradient.zero_()
            value, statistics = loss(self.network, minibatch)
            value.backward()
        finally:
            torch.set_num_threads(before)
        if self._ranks.size > 1:
            self._average(statistics)
        if half is not None:
            self._measure_noise(half, len(minibatch), samples)
        return statistics

    def step(self, lr: float) -> float:
        """Make one update at learning rate `lr`. Returns the norm of the gradient before it was limited."""
        if self._num_threads == 1:
            return self._optimizer.step(lr)
        before = torch.get_num_threads()
        torch.set_num_threads(self._num_threads)
        try:
            return self._optimizer.step(lr)
        finally:
            torch.set_num_threads(before)

    def keep_outputs(self, num_rows: int) -> bool:
        """Keep what layers compute in `forward(rows=...)`, for `gradient(rows=...)` by the same weights.

        num_rows: rows of the rollout. Returns whether that is possible and worth it here; if not, `rows` is
        to be left out.
        """
        return False

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
        """All weights, without a gradient. [size]"""
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
        self.flat.gradient.zero_()
        loss(self.network, minibatch)[0].backward()

    def _average(self, statistics: Tensor) -> None:
        """Replace gradient and means by those over all ranks."""
        self._ranks.mean_(self.flat.gradient, *([statistics] if statistics.dim() == 1 else []))

    def _measure_noise(self, half: float, size: int, samples: int) -> None:
        """Add a measurement. half: squared norm of the gradient of half a minibatch; size: units of all."""
        assert self._noise is not None
        whole = float(self.flat.gradient.square().sum())
        self._noise.add(samples * (size // 2), half, samples * size * self._ranks.size, whole)


def as_array(output: Tensor | None) -> NDArray | None:
    """Return a tensor as an array; None stays None."""
    return None if output is None else output.cpu().numpy()


class NumpyForward:
    """Small fully connected networks computed by NumPy, for acting in one or a few environments.

    A step of a small environment is bound by the calls of torch and not by the products: a 4-120-84-2 network
    for one observation takes 150 us of a session's step in torch, and 50 in NumPy. The arrays are the memory
    of the network's own parameters, so that they follow every update.
    """

    def __init__(self, network: nn.Module, chains: Sequence[_Chain]) -> None:
        self._network, self._chains = network, chains
        most = max(weight.size for each in chains for weight, _, _ in each.layers)
        self._most_rows = MOST_NUMPY_PRODUCTS // most
        self._children = [part._modules for part in network.modules()]

    @classmethod
    def of(cls, network: nn.Module) -> NumpyForward | None:
        """Return a network for NumPy; None for one that is more than known layers, and on a GPU."""
        if next(network.parameters()).device.type != "cpu":
            return None
        if isinstance(network, ActorCritic) and not network.shared and not network.state_size:
            parts = [[network.policy_torso, *network.policy_head.children()]]
        elif isinstance(network, QNetwork) and not network.state_size:
            streams = [stream for stream in (network.advantage, network.value) if stream is not None]
            if any(len(stream.norms) for stream in streams):
                return None
            between = [list(chain(*zip_longest(stream.layers, stream.activations))) for stream in streams]
            parts = [[network.torso], *between]
        else:
            return None
        chains = [_Chain.of(modules) for modules in parts]
        return None if None in chains else cls(network, [each for each in chains if each is not None])

    def __call__(self, observation: Any, state: Any = None, *others: Any, **options: Any) -> Any:
        """Compute what the network gives; None for inputs and options that this is not made for."""
        network = self._network
        if not isinstance(observation, np.ndarray) or len(observation) > self._most_rows:
            return None
        for children in self._children:
            if "parametrizations" in children:
                return None
        if isinstance(network, ActorCritic):
            if options != {"value": False}:
                return None
            parameters: Any = self._chains[0](observation)
            if isinstance(network.policy_head, GaussianHead):
                log_std = network.policy_head.log_std.detach().numpy()
                parameters = np.concatenate([parameters, np.broadcast_to(log_std, parameters.shape)], axis=1)
            return ActorCriticOutput(parameters, None, state)
        if options or others.count(None) < len(others):
            return None
        assert isinstance(network, QNetwork)
        torso, *streams = self._chains
        features = torso(observation)
        outputs: Any = streams[0](features).reshape(network.output_shape)
        if len(streams) > 1:
            outputs = streams[1](features)[:, None] + outputs - outputs.mean(1, keepdims=True)
        return QOutput(outputs, state)


class _Chain:
    """Linear layers and activations, one after the other."""

    def __init__(self, layers: Sequence[tuple[NDArray, NDArray, Callable[..., NDArray] | None]]) -> None:
        self.layers = layers

    @classmethod
    def of(cls, modules: Sequence[nn.Module | None]) -> _Chain | None:
        """Return the layers of some modules; None if there are others than linear ones, tanh and ReLU."""
        layers: list[tuple[NDArray, NDArray, Callable[..., NDArray] | None]] = []
        left = list(reversed(modules))
        while left:
            module: Any = left.pop()
            if module is not None and type(module).forward is nn.Sequential.forward:
                left += reversed(list(module.children()))
            elif type(module) in (nn.Linear, Output, NoisyLinear):
                layers.append((module.weight.detach().numpy().T, module.bias.detach().numpy(), None))
            elif type(module) in _ACTIVATIONS and layers and layers[-1][2] is None:
                layers[-1] = (*layers[-1][:2], _ACTIVATIONS[type(module)])
            elif module is not None and (type(module) is not nn.Flatten or layers):  # inputs are flattened
                return None
        return cls(layers)

    def __call__(self, x: NDArray) -> NDArray:
        """Compute the outputs. [n, ...] -> [n, outputs], float32"""
        x = x.reshape(len(x), -1).astype(np.float32, copy=False)
        for weight, bias, activate in self.layers:
            x = x @ weight
            x += bias
            if activate is not None:
                activate(x, out=x)
        return x


def _relu(x: NDArray, out: NDArray) -> NDArray:
    return np.maximum(x, 0, out=out)


_ACTIVATIONS: dict[type[nn.Module], Callable[..., NDArray]] = {nn.Tanh: np.tanh, nn.ReLU: _relu}
