"""Adam is torch's, all others of torch.optim are had by name; on a flat vector's pieces, restored exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from on_policy_cases import assert_same_future, build, noise
from torch import nn

from labrl.config.compose import compose, resolve
from labrl.errors import InputError
from labrl.networks.optimizers import (
    Adam,
    AdamConfig,
    ByName,
    Optimizer,
    RMSProp,
    RMSPropConfig,
    TorchOptimizer,
    TorchOptimizerConfig,
)

OPTIONS = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "AdamW": {"weight_decay": 0.1},
    "RMSprop": {"centered": True},
}
LEARNING_RATES = (0.1, 0.05, 0.0, 0.2)


def pieces() -> list[nn.Parameter]:
    return [nn.Parameter(torch.linspace(-1, 1, size)) for size in (3, 5)]


def slope(parameters: list[nn.Parameter], step: int) -> None:
    for parameter in parameters:
        parameter.grad = torch.sin(3 * parameter.detach() + step)


def assert_follows(
    make: Callable[[list[nn.Parameter]], Optimizer],
    reference: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> None:
    """With the rate of each step, a cut at 0.5, and put away and restored after each."""
    ours, theirs = pieces(), pieces()
    optimizer, wanted = make(ours), reference(theirs)
    for step, lr in enumerate(LEARNING_RATES):
        slope(ours, step)
        slope(theirs, step)
        norm = optimizer.step(lr)
        assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(theirs, 0.5)))
        wanted.param_groups[0]["lr"] = lr
        wanted.step()
        torch.testing.assert_close(ours, theirs)
        again = make(ours)
        again.load_state_dict(optimizer.state_dict())
        optimizer = again


@pytest.mark.parametrize("beta1", [0.9, 0.5])
def test_adam_is_torchs(beta1: float) -> None:
    assert_follows(
        lambda parameters: Adam(AdamConfig(eps=1e-5, beta1=beta1), parameters, 0.5),
        lambda parameters: torch.optim.Adam(parameters, lr=1.0, eps=1e-5, betas=(beta1, 0.999)),
    )


def test_rmsprop_from_zero_takes_the_steps_of_torchs() -> None:
    assert_follows(
        lambda parameters: RMSProp(RMSPropConfig(decay=0.9, eps=1e-20), parameters, 0.5),
        lambda parameters: torch.optim.RMSprop(parameters, lr=1.0, alpha=0.9, eps=1e-10),
    )


@pytest.mark.parametrize("name", get_args(ByName))
def test_any_of_torch_is_had_by_its_name(name: str) -> None:
    options = OPTIONS.get(name, {})
    assert_follows(
        lambda parameters: TorchOptimizer(TorchOptimizerConfig(name=name, options=options), parameters, 0.5),
        lambda parameters: getattr(torch.optim, name)(parameters, lr=1.0, **options),
    )


@pytest.mark.parametrize("steps", [3, 12])
def test_a_restored_agent_has_the_same_future(steps: int) -> None:
    words = (
        "agent/optimizer=torch",
        "agent.optimizer.name=NAdam",
        "agent.value_lr=1e-3",
        "agent.network.shared=false",
    )
    assert_same_future(lambda: build("a2c", *words), noise(), steps)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["agent.optimizer.name=Adan"], r"agent\.optimizer\.name must be .*'AdamW'.*, got 'Adan'"),
        ([], r"agent\.optimizer\.name"),
        (
            ["agent.optimizer.name=SGD", "+agent.optimizer.options.betas=[0.9,0.99]"],
            r"agent\.optimizer: options\.betas: SGD has no such option\. Known: .*momentum",
        ),
        (
            ["agent.optimizer.name=SGD", "+agent.optimizer.options.momentum=-1"],
            r"agent\.optimizer: options: torch\.optim\.SGD refuses them: .*momentum",
        ),
        (
            ["agent.optimizer.name=AdamW", "+agent.optimizer.options.betas=[0.9]"],
            r"torch\.optim\.AdamW refuses them: .*index",
        ),
        (
            ["agent.optimizer.name=Adam", "+agent.optimizer.options.betas=[0.9,0.99,0.9]"],
            r"torch\.optim\.Adam refuses them: .*unpack",
        ),
        (
            ["agent.optimizer.name=ASGD", "+agent.optimizer.options.alpha=abc"],
            r"torch\.optim\.ASGD refuses them: .*operand",
        ),
    ],
    ids=str,
)
def test_what_torch_does_not_know_is_refused_by_name(words: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        resolve(compose(["agent=a2c", "agent/optimizer=torch", *words]))
