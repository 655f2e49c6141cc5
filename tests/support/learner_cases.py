"""Losses and minibatches, shared by the tests of learners."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from options import component
from torch import Tensor, nn

from labrl.learning.compute import Compute
from labrl.learning.learner import Learner
from labrl.memory import Columns

CPU = torch.device("cpu")
ADAM = component("agent.optimizer", "agent=a2c agent/optimizer=adam")


def compute(num_threads: int = 1, precision: torch.dtype = torch.float32) -> Compute:
    return Compute(CPU, precision, num_threads)


@pytest.fixture
def without_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the processor has no AMX, so that several workers share a minibatch in bfloat16."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)


def autocast() -> torch.autocast:
    """Return the context in which networks compute in bfloat16."""
    return torch.autocast("cpu", torch.bfloat16)


@dataclass(frozen=True)
class Rows(Columns):
    inputs: Tensor
    targets: Tensor | None = None


def mean_loss(network: Callable[..., Any], rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the mean squared error, and as statistics the error and the mean output."""
    outputs = network(rows.inputs)
    error = (outputs if rows.targets is None else outputs - rows.targets).square().mean()
    return error, torch.stack([error, outputs.mean()]).detach()


def loss_of_rows(network: Callable[..., Any], rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the mean squared error, and as statistics the squared error and the mean output of each row."""
    outputs = network(rows.inputs)
    errors = (outputs if rows.targets is None else outputs - rows.targets).square().mean(1)
    return errors.mean(), torch.stack([errors, outputs.mean(1)]).detach()


def reference(network: nn.Module, rows: Rows, context: Any = None) -> tuple[list[Tensor], Tensor]:
    """Compute the gradients and statistics of `mean_loss` with plain PyTorch on a copy of the network."""
    alone = copy.deepcopy(network)
    for parameter in alone.parameters():
        parameter.grad = None
    if context is None:
        loss, statistics = mean_loss(alone, rows)
    else:
        with context:
            outputs = alone(rows.inputs)
        loss, statistics = mean_loss(lambda _: outputs, rows)
    loss.backward()
    return [parameter.grad for parameter in alone.parameters() if parameter.grad is not None], statistics


def gradients(learner: Learner[Any]) -> list[Tensor]:
    found = [parameter.grad for parameter in learner.network.parameters()]
    return [gradient.clone() for gradient in found if gradient is not None]


def updated(learner: Learner[Any], rows: Rows) -> None:
    learner.gradient(mean_loss, rows)
    learner.step(lr=0.1)
