"""Tests that hooks, parametrizations and changed weights take effect, however outputs are computed."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from learner_cases import (
    ADAM,
    Rows,
    autocast,
    compute,
    without_amx,  # noqa: F401
)
from numpy.typing import NDArray
from options import options
from torch import Tensor, nn
from torch.nn.utils import parametrize

from labrl.learning.compute import Compute
from labrl.learning.learner import Learner
from labrl.learning.make import make_learner
from labrl.networks.actor_critic import ActorCritic
from labrl.networks.layers import Float32Linear
from labrl.networks.q_network import QNetwork
from labrl.networks.torso import NatureCNN
from labrl.spaces import Spaces

pytestmark = pytest.mark.usefixtures("without_amx")
TWO, VECTOR = gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (6,))
IMAGE = gym.spaces.Box(0, 255, (4, 44, 36), np.uint8)


def large_network() -> nn.Module:
    """Return a network with weights that are rounded once for all workers in bfloat16."""
    config = options("agent.network.torso", "agent/network=nature_cnn", features=2048)
    return nn.Sequential(NatureCNN(config, IMAGE), Float32Linear(2048, 2))


def actor_critic() -> nn.Module:
    config = options("agent.network", "agent/network=nature_cnn")
    return ActorCritic(config, Spaces(IMAGE, TWO, 4), num_outputs=2, log_std_init=None)


def q_network() -> nn.Module:
    config = options("agent.network", "agent=dqn agent/network=mlp", dueling=True, head=[5])
    return QNetwork(config, Spaces(VECTOR, TWO, 4), num_actions=2, num_outputs=3)


RNG = np.random.default_rng(0)
IMAGES, VECTORS = RNG.integers(0, 256, (36, 44, 36, 4), np.uint8), RNG.standard_normal((31, 6), np.float32)
LEARNERS: dict[str, tuple[Any, gym.spaces.Box, Compute, NDArray]] = {
    "kernel": (q_network, VECTOR, compute(1), VECTORS),
    "workers": (actor_critic, IMAGE, compute(2), IMAGES),
    "bfloat16": (large_network, IMAGE, compute(2, torch.bfloat16), IMAGES),
}
"""By the way in which outputs are computed: a network, its observation space, and observations."""


def learner_of(kind: str, parametrized: bool = False) -> tuple[Learner[Any], Rows]:
    """Return a learner and a minibatch of observations."""
    make, space, of, seen = LEARNERS[kind]
    torch.manual_seed(0)
    module = make()
    if parametrized:
        parametrize.register_parametrization(linear(module), "weight", Doubled())
    return make_learner(module, Spaces(space, TWO, 4), of, ADAM), Rows(torch.from_numpy(seen))


def linear(module: nn.Module) -> nn.Linear:
    return next(part for part in module.modules() if isinstance(part, nn.Linear))


def parts(outputs: Any) -> list[Any]:
    """Return the outputs of a network, without the recurrent state."""
    return [each for each in outputs if each is not None] if isinstance(outputs, tuple) else [outputs]


def outputs_of(learner: Learner[Any], rows: Rows) -> list[NDArray]:
    return parts(learner.forward(rows.inputs.numpy()))


def loss(network: Any, rows: Rows) -> tuple[Tensor, Tensor]:
    error = parts(network(rows.inputs))[0].float().square().mean()
    return error, error.detach().reshape(1)


def assert_equals_autograd(learner: Learner[Any], rows: Rows, kind: str) -> None:
    """Assert that outputs and gradients equal those of the network alone."""
    network, weights = learner.network, list(learner.network.parameters())
    with autocast() if kind == "bfloat16" else torch.enable_grad():
        slopes = torch.autograd.grad(loss(network, rows)[0], weights, allow_unused=True)
        outputs = parts(network(rows.inputs))
    pairs = [
        (torch.from_numpy(one), out) for one, out in zip(outputs_of(learner, rows), outputs, strict=True)
    ]
    learner.gradient(loss, rows)
    pairs += [(one.grad, slope) for one, slope in zip(weights, slopes, strict=True) if slope is not None]
    exact = 0.02 if kind == "bfloat16" else 1e-5
    for mine, theirs in pairs:
        expected = theirs.detach().float()
        atol = exact * float(expected.abs().max())
        torch.testing.assert_close(mine, expected, rtol=exact, atol=atol)


def updated(learner: Learner[Any], rows: Rows) -> None:
    learner.gradient(loss, rows)
    learner.step(lr=0.1)


def restored(learner: Learner[Any], rows: Rows) -> None:
    state = copy.deepcopy(learner.state_dict())
    for tensor in state["network"].values():
        tensor.mul_(1.2)
    learner.load_state_dict(state)


def written_in_place(learner: Learner[Any], rows: Rows) -> None:
    with torch.no_grad():
        linear(learner.network).weight.mul_(1.2)


def written_by_another_session(learner: Learner[Any], rows: Rows) -> None:
    common = learner.weights.clone()
    learner.flat.move_to(common)
    learner.forward(rows.inputs.numpy())
    common.mul_(1.2)


@pytest.mark.parametrize("change", [updated, restored, written_in_place, written_by_another_session])
@pytest.mark.parametrize("kind", LEARNERS)
def test_every_change_of_the_weights_takes_effect(kind: str, change: Any) -> None:
    learner, rows = learner_of(kind)
    assert_equals_autograd(learner, rows, kind)
    before = outputs_of(learner, rows)[0]
    change(learner, rows)
    assert not np.array_equal(outputs_of(learner, rows)[0], before)
    assert_equals_autograd(learner, rows, kind)
    learner.close()


@pytest.mark.parametrize("kind", LEARNERS)
def test_hooks_take_effect_until_they_are_removed(kind: str) -> None:
    learner, rows = learner_of(kind)
    learner.gradient(loss, rows)
    before, gradient = outputs_of(learner, rows)[0], learner.flat.gradient.clone()
    calls: list[int] = []

    def nothing(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        calls.append(len(output))
        return output * 0

    layer = linear(learner.network)
    hook = layer.register_forward_hook(nothing)
    assert not np.allclose(outputs_of(learner, rows)[0], before)
    learner.gradient(loss, rows)
    assert calls == [len(rows)] * 2, "it was not called once with all rows"
    assert not layer.weight.grad.any()
    hook.remove()
    hook = layer.weight.register_hook(torch.zeros_like)
    learner.gradient(loss, rows)
    assert not layer.weight.grad.any()
    hook.remove()
    learner.gradient(loss, rows)
    assert np.array_equal(outputs_of(learner, rows)[0], before)
    assert torch.equal(learner.flat.gradient, gradient)
    learner.close()


class Doubled(nn.Module):
    """A parametrization that doubles the weight."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("kind", LEARNERS)
def test_parametrizations_take_effect(kind: str, later: bool) -> None:
    learner, rows = learner_of(kind, parametrized=not later)
    if later:
        updated(learner, rows)
        before = outputs_of(learner, rows)[0]
        parametrize.register_parametrization(linear(learner.network), "weight", Doubled())
        assert not np.allclose(outputs_of(learner, rows)[0], before)
    for _ in range(2):
        assert_equals_autograd(learner, rows, kind)
        learner.step(0.1)
    learner.close()
