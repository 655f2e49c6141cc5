"""Tests of optimizers: their steps equal those of torch.optim, and their state is restored exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from options import options
from refusals import refused
from torch import nn

from labrl.config.compose import compose, resolve
from labrl.learning.optimizers import (
    Adam,
    ByName,
    Optimizer,
    RMSProp,
    RMSPropConfig,
    TorchOptimizer,
    TorchOptimizerConfig,
)

OPTIMIZER = "agent.optimizer"
OPTIONS = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "AdamW": {"weight_decay": 0.1},
    "RMSprop": {"centered": True},
}
LEARNING_RATES = (0.1, 0.05, 0.0, 0.2)


def parameters_with_gradients() -> list[nn.Parameter]:
    """Make two parameters with preallocated gradients, as a learner's flat vector has them."""
    parameters = [nn.Parameter(torch.linspace(-1, 1, size)) for size in (3, 5)]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter.data)
    return parameters


def write_gradients(parameters: list[nn.Parameter], step: int) -> None:
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad.copy_(torch.sin(3 * parameter.detach() + step))


def assert_equal_steps(
    make: Callable[[list[nn.Parameter]], Optimizer],
    reference: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> None:
    """Assert that `make` takes the steps of `reference` with gradients clipped at 0.5.

    The learning rate changes at each step, and the state is saved and restored after each step.
    """
    ours, theirs = parameters_with_gradients(), parameters_with_gradients()
    optimizer, expected = make(ours), reference(theirs)
    for step, lr in enumerate(LEARNING_RATES):
        write_gradients(ours, step)
        write_gradients(theirs, step)
        norm = optimizer.step(lr)
        assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(theirs, 0.5)))
        expected.param_groups[0]["lr"] = lr
        expected.step()
        torch.testing.assert_close(ours, theirs)
        restored = make(ours)
        restored.load_state_dict(optimizer.state_dict())
        optimizer = restored


@pytest.mark.parametrize("beta1", [0.9, 0.5])
def test_adam_takes_the_steps_of_torch_adam(beta1: float) -> None:
    adam = options("agent.optimizer", "agent=a2c agent/optimizer=adam", eps=1e-5, beta1=beta1)
    assert_equal_steps(
        lambda parameters: Adam(adam, parameters, 0.5),
        lambda parameters: torch.optim.Adam(parameters, lr=1.0, eps=1e-5, betas=(beta1, 0.999)),
    )


def test_rmsprop_takes_the_steps_of_torch_rmsprop() -> None:
    assert_equal_steps(
        lambda parameters: RMSProp(RMSPropConfig(decay=0.9, eps=1e-20), parameters, 0.5),
        lambda parameters: torch.optim.RMSprop(parameters, lr=1.0, alpha=0.9, eps=1e-10),
    )


@pytest.mark.parametrize("name", get_args(ByName))
def test_torch_optimizer_is_chosen_by_name(name: str) -> None:
    given = OPTIONS.get(name, {})
    assert_equal_steps(
        lambda parameters: TorchOptimizer(TorchOptimizerConfig(name=name, options=given), parameters, 0.5),
        lambda parameters: getattr(torch.optim, name)(parameters, lr=1.0, **given),
    )


@pytest.mark.parametrize(
    ("name", "given", "key", "named"),
    [
        ("Adan", None, "agent.optimizer.name", ["AdamW", "Adan"]),
        ("SGD", "betas=[0.9,0.99]", OPTIMIZER, ["options.betas", "torch.optim.SGD", "momentum"]),
        ("SGD", "momentum=-1", OPTIMIZER, ["options", "torch.optim.SGD", "momentum"]),
        ("Adam", "betas=[0.9,0.99,0.9]", OPTIMIZER, ["options", "torch.optim.Adam"]),
    ],
)
def test_name_or_option_unknown_to_torch_is_refused(
    name: str, given: str | None, key: str, named: list[str]
) -> None:
    overrides = [f"agent.optimizer.name={name}"]
    overrides += [f"+agent.optimizer.options.{given}"] if given else []
    with refused(None, key, *named):
        resolve(compose(["agent=a2c", "agent/optimizer=torch", *overrides]))
