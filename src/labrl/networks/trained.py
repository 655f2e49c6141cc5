"""A network that learns: flat weights, gradients by one or several workers, an optimizer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from labrl.config.component import Component
from labrl.networks.compute import Compute
from labrl.networks.gradient import FlatParameters, GradientWorkers
from labrl.networks.kept import Kept
from labrl.networks.optimizers import Optimizer

Network = TypeVar("Network", bound=nn.Module)
Result = TypeVar("Result")
NewOptimizer = Callable[[FlatParameters], Optimizer]


def one_for_all(optimizer: Component, max_grad_norm: float | None) -> NewOptimizer:
    """An optimizer of all weights together; max_grad_norm: None never cuts."""
    return lambda flat: optimizer.build(parameters=[flat.vector], max_grad_norm=max_grad_norm)


class Trained(Generic[Network]):
    """A network, who computes its gradient, and its optimizer."""

    def __init__(
        self, network: Network, compute: Compute, num_workers: int, new_optimizer: NewOptimizer
    ) -> None:
        """num_workers: who share a minibatch; new_optimizer: makes the optimizer of the flat weights."""
        self.network = network.to(compute.device)
        self._compute = compute
        # All cores go through the weights once together, where each worker would go through all of them.
        # (Acting is too short for it.) But they meet at every operation, so that whatever else keeps one of
        # them busy keeps all of them waiting.
        self._within_products = compute.waits_for_weights and num_workers > 1
        self._workers = GradientWorkers(self.network, 1 if self._within_products else num_workers, compute)
        self.flat = self._workers.flat
        self.weights = self.flat.vector
        """All of them, [size]; `weights.grad` is their gradient."""
        self._optimizer = new_optimizer(self.flat)
        self._changed = True
        """Whether an update has changed the weights since they were last used."""

    def twin(self) -> tuple[Network, Tensor]:
        """A copy with weights of its own that has no gradient, and these weights. [size]"""
        other = copy.deepcopy(self.network)
        vector = FlatParameters(other).vector.detach()
        return other.requires_grad_(False), vector

    def frozen(self) -> Network:
        """The same network, in the same memory, for those who differentiate through it and not by it."""
        return self.flat.frozen(self.network)

    @property
    def num_workers(self) -> int:
        """How many share a minibatch."""
        return self._workers.num_workers

    def map(self, work: Callable[[Network, slice], Result], size: int) -> list[Result]:
        """As GradientWorkers.map: `work(network, share)` by all workers at once, the results in order."""
        return self._workers.map(work, size, self._may_have_changed())

    def room_to_keep(self, num_rows: int) -> Kept | None:
        """As GradientWorkers.room_to_keep."""
        return self._workers.room_to_keep(num_rows)

    def backward(
        self, loss: Callable[[Network, slice], tuple[Tensor, Tensor]], size: int, samples: int = 1
    ) -> Tensor:
        """As GradientWorkers.backward: the gradient into `weights.grad`, mean statistics returned."""
        with self._compute.within_products(self._within_products):
            return self._workers.backward(loss, size, self._may_have_changed(), samples)

    def step(self, lr: float) -> float:
        """One update. Returns the gradient's norm before the cut, not finite where weights broke."""
        self._changed = True
        with self._compute.within_products(self._within_products):
            return self._optimizer.step(lr)

    def _may_have_changed(self) -> bool:
        """Whether the flat weights may be others than when this was last asked."""
        changed, self._changed = self._changed or self.flat.shared, False
        return changed

    @property
    def norm(self) -> float:
        """Euclidean norm of the weights."""
        return float(self.weights.detach().norm())

    def state_dict(self) -> dict[str, Any]:
        """Weights, buffers and optimizer."""
        return {"network": self.network.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state."""
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        """End the worker threads."""
        self._workers.close()


class Averages:
    """Exponential averages over updates: they reach some 100 back."""

    RATE = 0.01

    def __init__(self, names: tuple[str, ...], device: torch.device) -> None:
        self.names = names
        self._values = torch.zeros(len(names), device=device)
        self._begun = False

    def add(self, values: Tensor) -> None:
        """Take in those of one update, [names]; the first are the averages themselves."""
        self._values.lerp_(values, self.RATE if self._begun else 1.0)
        self._begun = True

    def named(self) -> dict[str, float]:
        """By name; nan before the first update."""
        if not self._begun:
            return dict.fromkeys(self.names, math.nan)
        return dict(zip(self.names, self._values.tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """The averages."""
        return {"values": self._values.clone(), "begun": self._begun}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved averages."""
        self._values.copy_(state["values"])
        self._begun = bool(state["begun"])
