"""Tests of the learner: its outputs, gradients and steps equal those of plain torch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from learner_cases import (
    ADAM,
    Rows,
    compute,
    gradients,
    loss_of_rows,
    mean_loss,
    reference,
    updated,
)
from numpy.typing import NDArray
from options import options
from torch import Tensor, nn

from labrl.learning.learner import Learner
from labrl.learning.make import LARGE_PRODUCTS, make_learner
from labrl.networks.actor_critic import ActorCritic
from labrl.networks.q_network import QNetwork
from labrl.spaces import Spaces

BOX, TWO = gym.spaces.Box(-1, 1, (3, 2)), gym.spaces.Discrete(2)
SPACES = Spaces(BOX, TWO, 4)


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


ROWS = Rows(random(5, 3, 2), random(5, 4, seed=2))


def plain(*sizes: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(nn.Flatten(), *layers)


def learner_of(network: Any, num_threads: int = 1, **options: Any) -> Learner[Any]:
    return make_learner(network, SPACES, compute(num_threads), ADAM, **options)


def test_gradient_and_statistics_equal_those_of_torch() -> None:
    learner = learner_of(plain(6, 5, 4))
    expected, means = reference(learner.network, ROWS)
    for _ in range(2):  # the second call must not add to the gradient of the first
        assert torch.equal(learner.gradient(mean_loss, ROWS), means)
    assert all(map(torch.equal, gradients(learner), expected))
    each = learner.gradient(loss_of_rows, ROWS)
    assert each.shape == (2, len(ROWS))
    torch.testing.assert_close(each.mean(1), means)


def test_step_returns_the_norm_before_clipping_and_updates_the_weights() -> None:
    free, limited = learner_of(plain(6, 5, 4)), learner_of(plain(6, 5, 4), max_grad_norm=1e-9)
    before = free.weights.clone()
    for learner in (free, limited):
        learner.gradient(mean_loss, ROWS)
        norm = torch.cat([gradient.flatten() for gradient in gradients(learner)]).norm()
        assert learner.step(lr=0.1) == pytest.approx(float(norm), rel=1e-5)
    assert 0 < (limited.weights - before).norm() < (free.weights - before).norm()
    assert free.weight_norm == pytest.approx(float(free.weights.norm()))
    parameters = torch.cat([parameter.detach().flatten() for parameter in free.network.parameters()])
    assert free.weight_norm == pytest.approx(float(parameters.norm()), rel=1e-5)


def test_restored_learner_continues_bit_for_bit() -> None:
    learner, other = learner_of(plain(6, 5, 4)), learner_of(plain(6, 5, 4))
    for each in (learner, other):
        updated(each, ROWS)
    torch.manual_seed(5)
    restored = learner_of(plain(6, 5, 4))
    restored.load_state_dict(learner.state_dict())
    for each in (restored, other):
        updated(each, ROWS)
    assert torch.equal(restored.weights, other.weights)


def test_twin_has_its_own_weights_and_frozen_network_shares_them() -> None:
    learner = learner_of(plain(6, 5, 4))
    twin, weights = learner.copy_network()
    frozen = learner.frozen()
    before = twin(ROWS.inputs)
    assert torch.equal(before, learner.network(ROWS.inputs))
    assert not any(parameter.requires_grad for net in (twin, frozen) for parameter in net.parameters())

    updated(learner, ROWS)
    assert torch.equal(twin(ROWS.inputs), before)
    after = learner.network(ROWS.inputs)
    assert not torch.equal(after, before)
    assert torch.equal(frozen(ROWS.inputs), after)
    weights.copy_(learner.weights)
    assert torch.equal(twin(ROWS.inputs), after)

    inputs = ROWS.inputs.clone().requires_grad_()
    unchanged = learner.flat.gradient.clone()
    frozen(inputs).sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.count_nonzero()
    assert torch.equal(learner.flat.gradient, unchanged)


@pytest.mark.parametrize(("batch_size", "threads"), [(0, 1), (LARGE_PRODUCTS, 2)])
def test_several_threads_are_used_only_during_large_products(batch_size: int, threads: int) -> None:
    learner = learner_of(plain(6, 4), num_threads=2, batch_size=batch_size, whole_minibatches=True)
    seen: list[int] = []
    before = torch.get_num_threads()

    def broken(network: nn.Module, rows: Rows) -> tuple[Tensor, Tensor]:
        seen.append(torch.get_num_threads())
        raise RuntimeError("in the loss")

    torch.set_num_threads(1)
    try:
        with pytest.raises(RuntimeError, match="in the loss"):
            learner.gradient(broken, ROWS)
        assert (seen, torch.get_num_threads()) == ([threads], 1)
    finally:
        torch.set_num_threads(before)


def q_network(**changes: Any) -> QNetwork:
    torch.manual_seed(0)
    config = options("agent.network", "agent=dqn agent/network=mlp", **changes)
    return QNetwork(config, SPACES, num_actions=2, num_outputs=3)


def actor_critic() -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(
        options("agent.network", "agent/network=mlp"), SPACES, num_outputs=4, log_std_init=-0.3
    )


OBSERVATION = random(5, 3, 2, seed=3).numpy()


def by_torch(network: nn.Module, observation: NDArray = OBSERVATION) -> NDArray:
    with torch.no_grad():
        return network(torch.from_numpy(observation))[0].numpy()


@pytest.mark.parametrize("network", [q_network, actor_critic])
def test_forward_returns_all_outputs_that_are_requested(network: Callable[[], nn.Module]) -> None:
    learner = learner_of(network())
    state = np.ones((5, 0), np.float32)
    output = learner.forward(OBSERVATION, state)
    with torch.no_grad():
        expected = learner.network(torch.from_numpy(OBSERVATION), torch.from_numpy(state))
    assert type(output) is type(expected)
    for found, other in zip(output, expected, strict=True):
        np.testing.assert_allclose(found, other.numpy(), rtol=1e-5, atol=1e-6)
    if network is actor_critic:
        values = learner.forward(OBSERVATION, state, policy=False)
        assert values.parameters is None
        np.testing.assert_array_equal(values.value, output.value)


def test_forward_applies_the_given_noise() -> None:
    learner = learner_of(q_network(noisy=0.5))
    noise = torch.ones(learner.network.num_noise)
    found = learner.forward(OBSERVATION, None, None, noise=noise).outputs
    with torch.no_grad():
        expected = learner.network(torch.from_numpy(OBSERVATION), noise=noise).outputs
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)
    assert not np.allclose(found, by_torch(learner.network))


def test_forward_takes_any_number_of_rows_and_keeps_old_outputs() -> None:
    learner = learner_of(q_network())
    found = [learner.forward(OBSERVATION[:rows]).outputs for rows in (1, 2, 3, 4, 5, 2)]
    many = learner.forward(np.zeros((10_000, 3, 2), np.float32)).outputs
    assert many.shape == (10_000, 2, 3)
    for outputs in found:
        expected = by_torch(learner.network, OBSERVATION[: len(outputs)])
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
