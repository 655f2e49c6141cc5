"""Tests of the learner: its outputs, gradients and steps equal those of plain torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from learner_cases import (
    ADAM,
    CHANGES,
    Doubled,
    Rows,
    compute,
    gradients,
    loss_of_rows,
    mean_loss,
    reference,
    updated,
)
from numpy.typing import NDArray
from options import component, options
from torch import Tensor, nn
from torch.nn.utils import parametrize

from labrl.component import Component
from labrl.learning.flat import FlatParameters
from labrl.learning.learner import Learner
from labrl.learning.make import LARGE_PRODUCTS, make_learner
from labrl.learning.optimizers import Adam, Optimizer
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


@pytest.mark.extended
def test_training_starts_without_importing_a_compiler() -> None:
    # torch's own optimizer classes import the compiler, which would delay the first step by over a second.
    program = (
        "import sys, torch; from torch import nn;"
        "from labrl.learning.compute import Compute; from labrl.learning.learner import Learner;"
        "from labrl.learning.optimizers import Adam, AdamConfig;"
        "compute = Compute(torch.device('cpu'), torch.float32, 1); config = AdamConfig(eps=1e-8, beta1=0.9);"
        "learner = Learner(nn.Linear(2, 1), compute, lambda flat: Adam(config, [flat.vector], None));"
        "learner.gradient(lambda net, rows: (net(rows).mean(), torch.zeros(1)), torch.ones(4, 2));"
        "learner.step(0.1);"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_columns_are_sliced_together_and_none_stays_none() -> None:
    part = Rows(ROWS.inputs)[slice(1, 3)]
    assert len(part) == 2
    assert torch.equal(part.inputs, ROWS.inputs[1:3])
    assert part.targets is None


def test_optimizer_may_be_created_by_a_function_of_the_weights() -> None:
    seen: list[FlatParameters] = []

    def make(flat: FlatParameters) -> Optimizer:
        seen.append(flat)
        return Adam(options("agent.optimizer", "agent=a2c agent/optimizer=adam"), [flat.vector], None)

    by_function, by_component = make_learner(plain(6, 4), SPACES, compute(), make), learner_of(plain(6, 4))
    for learner in (by_function, by_component):
        updated(learner, ROWS)
    assert seen == [by_function.flat]
    assert torch.equal(by_function.weights, by_component.weights)


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


def test_arrays_become_single_precision_tensors() -> None:
    learner = learner_of(plain(6, 4))
    wide, narrow = np.ones((2, 3)), np.ones((2, 3), np.float32)
    assert learner.tensor(wide).dtype == torch.float32
    assert learner.tensor(narrow).data_ptr() == narrow.ctypes.data
    assert learner.tensor(np.ones(2, np.uint8)).dtype == torch.uint8
    assert learner.tensor(None) is None
    tensor = torch.ones(2, dtype=torch.float64)
    assert learner.tensor(tensor) is tensor


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


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize(("batch_size", "threads"), [(0, 1), (LARGE_PRODUCTS, 2)])
def test_several_threads_are_used_only_during_large_products(
    batch_size: int, threads: int, broken: bool
) -> None:
    learner = learner_of(plain(6, 4), num_threads=2, batch_size=batch_size, whole_minibatches=True)
    seen: list[int] = []
    before = torch.get_num_threads()

    def loss(network: nn.Module, rows: Rows) -> tuple[Tensor, Tensor]:
        seen.append(torch.get_num_threads())
        if broken:
            raise RuntimeError("in the loss")
        return mean_loss(network, rows)

    torch.set_num_threads(1)
    try:
        if broken:
            with pytest.raises(RuntimeError, match="in the loss"):
                learner.gradient(loss, ROWS)
        else:
            learner.gradient(loss, ROWS)
            learner.step(0.1)
        learner.forward(ROWS.inputs.numpy())
        assert (seen, torch.get_num_threads()) == ([threads], 1)
    finally:
        torch.set_num_threads(before)


def torso(**changes: Any) -> Component:
    return component("agent.network.torso", "agent/network=mlp", **{"hidden": [16, 8], **changes})


def q_network(**changes: Any) -> QNetwork:
    torch.manual_seed(0)
    observation = changes.pop("observation", BOX)
    config = options("agent.network", "agent=dqn", **{"torso": torso(), **changes})
    return QNetwork(config, Spaces(observation, TWO, 4), num_actions=2, num_outputs=3)


def actor_critic(log_std: float | None, **changes: Any) -> ActorCritic:
    torch.manual_seed(0)
    config = options("agent.network", **{"torso": torso(activation="ReLU"), **changes})
    return ActorCritic(config, SPACES, num_outputs=4, log_std_init=log_std)


NETWORKS: dict[str, Callable[[], QNetwork | ActorCritic]] = {
    "values": q_network,
    "head": lambda: q_network(torso=torso(activation="ReLU"), head=[5]),
    "dueling": lambda: q_network(dueling=True, head=[5]),
    "noisy": lambda: q_network(noisy=0.5),
    "policy": lambda: actor_critic(None),
    "gaussian": lambda: actor_critic(-0.3),
    "tanh": lambda: q_network(dueling=True, head=[5], head_activation="Tanh"),
    "policy and value heads": lambda: actor_critic(-0.3, policy_head=[5, 4], value_head=[3]),
}
"""Functions, by name, that create the kinds of networks with which agents act."""
OBSERVATION = random(5, 3, 2, seed=3).numpy()


def loss_of_first_output(network: Any, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the mean square of the first output as the loss and as the only statistic."""
    error = network(rows.inputs)[0].square().mean()
    return error, error.detach().reshape(1)


def acting_arguments(network: nn.Module) -> dict[str, Any]:
    """Return the keyword arguments with which an agent calls the network to act."""
    return {"value": False} if isinstance(network, ActorCritic) else {}


def by_torch(network: nn.Module, observation: NDArray = OBSERVATION) -> NDArray:
    with torch.no_grad():
        return network(torch.from_numpy(observation))[0].numpy()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("change", CHANGES)
def test_forward_equals_the_network_after_any_change_of_weights(name: str, change: Any) -> None:
    learner = learner_of(NETWORKS[name]())
    before = learner.forward(OBSERVATION, None, **acting_arguments(learner.network))
    np.testing.assert_allclose(before[0], by_torch(learner.network), rtol=1e-5, atol=1e-6)
    if change is updated:
        learner.gradient(loss_of_first_output, Rows(torch.from_numpy(OBSERVATION)))
        learner.step(lr=0.1)
    else:
        change(learner, Rows(torch.from_numpy(OBSERVATION)))
    after = learner.forward(OBSERVATION, None, **acting_arguments(learner.network))
    assert not np.array_equal(after[0], before[0])
    np.testing.assert_allclose(after[0], by_torch(learner.network), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["values", "gaussian"])
def test_forward_returns_all_outputs_that_are_requested(name: str) -> None:
    learner = learner_of(NETWORKS[name]())
    state = np.ones((5, 0), np.float32)
    output = learner.forward(OBSERVATION, state)
    with torch.no_grad():
        expected = learner.network(torch.from_numpy(OBSERVATION), torch.from_numpy(state))
    assert type(output) is type(expected)
    for found, other in zip(output, expected, strict=True):
        np.testing.assert_allclose(found, other.numpy(), rtol=1e-5, atol=1e-6)
    if name == "gaussian":
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


def test_forward_reads_discrete_observations() -> None:
    network = q_network(observation=gym.spaces.Discrete(5))
    found = learner_of(network).forward(np.arange(5), None).outputs
    np.testing.assert_allclose(found, by_torch(network, np.arange(5)), rtol=1e-5, atol=1e-6)


def test_forward_takes_any_number_of_rows_and_keeps_old_outputs() -> None:
    learner = learner_of(q_network())
    found = [learner.forward(OBSERVATION[:rows]).outputs for rows in (1, 2, 3, 4, 5, 2)]
    many = learner.forward(np.zeros((10_000, 3, 2), np.float32)).outputs
    assert many.shape == (10_000, 2, 3)
    for outputs in found:
        expected = by_torch(learner.network, OBSERVATION[: len(outputs)])
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_forward_hooks_take_effect_until_they_are_removed(name: str) -> None:
    learner = learner_of(NETWORKS[name]())
    before = learner.forward(OBSERVATION, None, **acting_arguments(learner.network))[0]
    layer = next(part for part in learner.network.modules() if type(part) is nn.Linear)
    hook = layer.register_forward_hook(lambda module, inputs, output: torch.zeros_like(output))
    hooked = learner.forward(OBSERVATION, None, **acting_arguments(learner.network))[0]
    np.testing.assert_allclose(hooked, by_torch(learner.network), rtol=1e-5, atol=1e-6)
    assert not np.allclose(hooked, before)
    learner.gradient(loss_of_first_output, Rows(torch.from_numpy(OBSERVATION)))
    assert layer.weight.grad is not None
    assert not layer.weight.grad.any()
    hook.remove()
    after = learner.forward(OBSERVATION, None, **acting_arguments(learner.network))[0]
    np.testing.assert_array_equal(after, before)
    learner.gradient(loss_of_first_output, Rows(torch.from_numpy(OBSERVATION)))
    assert layer.weight.grad.any()


@pytest.mark.parametrize("acted", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_parametrizations_take_effect(name: str, acted: bool) -> None:
    learner, plain_one = learner_of(NETWORKS[name]()), learner_of(NETWORKS[name]())
    if acted:
        learner.forward(OBSERVATION, None, **acting_arguments(learner.network))
    layer, other = (
        next(part for part in each.network.modules() if type(part) is nn.Linear)
        for each in (learner, plain_one)
    )
    parametrize.register_parametrization(layer, "weight", Doubled())
    with torch.no_grad():
        other.weight.mul_(2)
    output, expected = (
        each.forward(OBSERVATION, None, **acting_arguments(each.network))[0] for each in (learner, plain_one)
    )
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
    for each in (learner, plain_one):
        each.gradient(loss_of_first_output, Rows(torch.from_numpy(OBSERVATION)))
    assert other.weight.grad is not None
    original: Any = layer.parametrizations
    torch.testing.assert_close(original.weight.original.grad, 2 * other.weight.grad)
    updated_from = learner.weights.clone()
    learner.step(0.1)
    assert not torch.equal(learner.weights, updated_from)
    output = learner.forward(OBSERVATION, None, **acting_arguments(learner.network))[0]
    np.testing.assert_allclose(output, by_torch(learner.network), rtol=1e-5, atol=1e-6)
