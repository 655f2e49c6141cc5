"""Tests of hand-derived gradients of losses of action values and critics against autograd."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import dqn_cases
import gymnasium as gym
import numpy as np
import pytest
import replay_actor_critic_cases as cases
import torch
from dqn_cases import Noise
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from replay_actor_critic_cases import BOX, CHOICE, disturb, made_up
from torch import Tensor

from labrl.agents.dqn import best, td_gradient, td_loss
from labrl.agents.parts.action_values import (
    CategoricalValue,
    CategoricalValueConfig,
    ExpectedValue,
    ExpectedValueConfig,
    QuantileValue,
    QuantileValueConfig,
    chosen,
    derived_values,
)
from labrl.agents.replay_agent import critics_gradient
from labrl.agents.rollout_values_agent import returns_gradient
from labrl.agents.sac import soft_policy, soft_value
from labrl.agents.sac import squared_errors as half_squared_errors
from labrl.agents.td3 import squared_errors, tanh_gradient
from labrl.agents.tqc import quantile_critics_gradient, quantile_losses
from labrl.learning.compute import Compute

ROWS, ACTIONS, SEEDS = st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**16)
CPU = torch.device("cpu")


def double(array: NDArray) -> Tensor:
    """Return the array as a tensor; real numbers are in double precision and require a gradient."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.double().requires_grad_() if tensor.is_floating_point() else tensor


def assert_near(found: NDArray, expected: Tensor, scale: float = 0.0) -> None:
    """Check that the arrays differ by at most 1e-5 of the norm, or of `scale` if it is larger.

    scale: magnitude of the numbers whose difference the result is.
    """
    reference = expected.detach().numpy()
    assert found.dtype == np.float32
    assert found.shape == reference.shape
    assert np.linalg.norm(found - reference) <= 1e-5 * max(float(np.linalg.norm(reference)), scale) + 1e-12


def made_up_values(rows: int, actions: int, outputs: int, seed: int) -> dict[str, Any]:
    """Return outputs of networks and columns of a minibatch, with some weights and some discounts of 0.

    The outputs are [rows, actions, outputs], the mask is [rows, actions], and the others are [rows].
    """
    rng = np.random.default_rng(seed)

    def numbers(*shape: int) -> NDArray:
        return 2 * rng.standard_normal(shape, np.float32)

    mask = rng.random((rows, actions)) < 0.6
    mask[np.arange(rows), rng.integers(actions, size=rows)] = True
    return {
        "outputs": numbers(rows, actions, outputs),
        "later": numbers(rows, actions, outputs),
        "judged": numbers(rows, actions, outputs),
        "action": rng.integers(actions, size=rows),
        "reward": numbers(rows),
        "discount": np.where(rng.random(rows) < 0.3, 0, 0.97).astype(np.float32),
        "weight": np.where(rng.random(rows) < 0.3, 0, rng.random(rows)).astype(np.float32),
        "next_mask": mask,
    }


VALUES: list[tuple[Any, Any]] = [
    (ExpectedValue, ExpectedValueConfig(loss="huber")),
    (ExpectedValue, ExpectedValueConfig(loss="squared")),
    (CategoricalValue, CategoricalValueConfig(v_min=-4.0, v_max=4.0, atoms=11)),
    (CategoricalValue, CategoricalValueConfig(v_min=-1.0, v_max=0.0, atoms=2)),
    (QuantileValue, QuantileValueConfig(quantiles=7, kappa=1.0)),
    (QuantileValue, QuantileValueConfig(quantiles=3, kappa=0.3)),
    (QuantileValue, QuantileValueConfig(quantiles=4, kappa=0.0)),
]


@pytest.mark.parametrize(("kind", "config"), VALUES)
@settings(max_examples=25, deadline=None)
@given(rows=ROWS, actions=ACTIONS, seed=SEEDS, masked=st.booleans())
def test_gradient_of_the_dqn_loss_equals_that_of_autograd(
    kind: Any, config: Any, rows: int, actions: int, seed: int, masked: bool
) -> None:
    value = kind(config, CPU)
    assert derived_values(value) is not None
    batch = made_up_values(rows, actions, value.num_outputs, seed)
    if not masked:
        batch["next_mask"] = None
    next_action = best(value, batch["judged"], batch["next_mask"])
    columns = (batch[name] for name in ("outputs", "later"))
    statistics, gradient = td_gradient(
        value, *columns, next_action, *(batch[n] for n in ("action", "reward", "discount", "weight"))
    )
    outputs, action = double(batch["outputs"]), torch.from_numpy(batch["action"])
    if kind is CategoricalValue:
        value.support = value.support.double()
    others = [None if batch[n] is None else double(batch[n]) for n in list(batch)[1:] if n != "action"]
    in_double: list[Any] = [None if each is None else each.detach() for each in others]
    if kind is QuantileValue:
        value.fraction = value.fraction.double()
    loss, rows_of = td_loss(value, chosen(outputs, action), *in_double)
    loss.backward()
    assert outputs.grad is not None
    size = float(np.linalg.norm(batch["weight"]) / rows)
    assert_near(gradient, outputs.grad, scale=size)
    for mine, theirs in zip(statistics, rows_of, strict=True):
        assert_near(mine, theirs, scale=rows**0.5)


@settings(max_examples=40, deadline=None)
@given(ROWS, ACTIONS, SEEDS)
def test_gradient_of_the_sarsa_loss_equals_that_of_autograd(rows: int, actions: int, seed: int) -> None:
    batch = made_up_values(rows, actions, 1, seed)
    statistics, gradient = returns_gradient(batch["outputs"], batch["action"], batch["reward"])
    outputs = double(batch["outputs"])
    value = chosen(outputs, torch.from_numpy(batch["action"])).squeeze(1)
    error = double(batch["reward"]).detach() - value
    mean = 0.5 * error.square().mean()
    mean.backward()
    assert outputs.grad is not None
    assert_near(gradient, outputs.grad)
    assert_near(statistics, torch.stack([mean, error.abs().mean(), value.mean()]), scale=1.0)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.integers(1, 3), st.integers(0, 4), st.booleans(), SEEDS)
def test_gradient_of_the_critic_loss_equals_that_of_autograd(
    rows: int, critics: int, actions: int, half: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (critics, rows, actions) if actions else (critics, rows)
    values, target = rng.standard_normal(shape, np.float32), rng.standard_normal(rows, np.float32)
    weight = np.where(rng.random(rows) < 0.3, 0, rng.random(rows)).astype(np.float32)
    action = rng.integers(actions, size=rows) if actions else rng.random((rows, 2), np.float32)
    statistics, gradient = critics_gradient(values, action, target, weight, 0.5 if half else 1.0)
    outputs = double(values)
    taken = outputs[:, torch.arange(rows), torch.from_numpy(action)] if actions else outputs
    errors = half_squared_errors if half else squared_errors
    losses = errors(taken, double(target).detach(), double(weight).detach())
    losses.mean().backward()
    assert outputs.grad is not None
    assert_near(gradient, outputs.grad)
    error = (taken - torch.from_numpy(target)).abs().mean(0)
    assert_near(statistics, torch.cat([torch.stack([losses, error]), taken]))


@settings(max_examples=40, deadline=None)
@given(ROWS, st.integers(1, 3), st.integers(1, 5), st.sampled_from([0.3, 1.0, 30.0]), SEEDS)
def test_gradient_of_the_quantile_critic_loss_equals_that_of_autograd(
    rows: int, critics: int, quantiles: int, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = np.float32(scale) * rng.standard_normal((critics, rows, quantiles), np.float32)
    target = np.sort(np.float32(scale) * rng.standard_normal((rows, 7), np.float32))
    target[0] = values[0, 0, 0]  # samples equal to a quantile, where the error is 0
    weight = np.where(rng.random(rows) < 0.3, 0, rng.random(rows)).astype(np.float32)
    statistics, gradient = quantile_critics_gradient(values, target, weight)
    outputs = double(values)
    losses = quantile_losses(outputs, double(target).detach(), double(weight).detach())
    losses.mean().backward()
    assert outputs.grad is not None
    assert_near(gradient, outputs.grad, scale=1 / rows)
    error = (outputs.mean(2) - torch.from_numpy(target).mean(1)).abs().mean(0)
    assert_near(
        statistics, torch.cat([torch.stack([losses, error]), outputs.mean(2)]), scale=scale * rows**0.5
    )


@settings(max_examples=40, deadline=None)
@given(ROWS, st.integers(1, 3), st.integers(1, 3), st.floats(0, 2), st.sampled_from([1.0, 12.0]), SEEDS)
def test_gradient_of_a_soft_policy_on_a_box_equals_that_of_autograd(
    rows: int, size: int, critics: int, temperature: float, wide: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    policy: Any = soft_policy(gym.spaces.Box(-1, 1, (size,)))
    parameters = rng.standard_normal((rows, 2 * size), np.float32)
    parameters[:, size:] *= np.float32(wide)  # also beyond both bounds of the log deviation
    noise = rng.standard_normal((rows, size), np.float32)
    # The value of critic i is the sum of slope_i (a - a^3 / 9) over the components of the action.
    slopes = rng.standard_normal((critics, rows, size), np.float32)

    def worth(action: Any) -> Any:
        return (double(slopes).detach() * (action - action**3 / 9)).sum(2)

    drawn = policy.choose_by_hand(parameters, noise)
    a = drawn.choice
    values = (slopes * (a - a**3 / np.float32(9))).sum(2)
    own = slopes * (1 - a**2 / np.float32(3))

    def backward(gradient: NDArray) -> NDArray:
        return np.concatenate([np.ones_like(own), gradient[..., None] * own], axis=2)

    outputs = double(parameters)
    choice, entropy = policy.choose(outputs, double(noise).detach())
    value = policy.smaller(worth(choice), choice)
    (-soft_value(value, entropy, temperature).mean()).backward()
    assert outputs.grad is not None
    assert_near(a, choice)
    assert_near(drawn.entropy, entropy)
    assert_near(drawn.worth(values), value, scale=size)
    # If two critics are nearly equal, rounding may decide which one is the smaller.
    gap = np.diff(np.sort(worth(choice).detach().numpy(), axis=0), axis=0).min(initial=1.0)
    if gap > 1e-5:
        found = drawn.gradient(values, temperature, backward)
        assert_near(found.astype(np.float32), outputs.grad, scale=temperature / rows**0.5)


@settings(max_examples=40, deadline=None)
@given(ROWS, ACTIONS, st.integers(1, 3), st.floats(0, 2), SEEDS)
def test_gradient_of_a_soft_policy_on_choices_equals_that_of_autograd(
    rows: int, actions: int, critics: int, temperature: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    policy: Any = soft_policy(gym.spaces.Discrete(actions))
    parameters = 2 * rng.standard_normal((rows, actions), np.float32)
    values = rng.standard_normal((critics, rows, actions), np.float32)
    drawn = policy.choose_by_hand(parameters, np.zeros((len(parameters), 0), np.float32))
    outputs = double(parameters)
    choice, entropy = policy.choose(outputs, None)
    value = policy.smaller(double(values).detach(), choice)
    (-soft_value(value, entropy, temperature).mean()).backward()
    assert outputs.grad is not None
    assert_near(drawn.choice, choice)
    assert_near(drawn.entropy, entropy, scale=rows**0.5)
    assert_near(drawn.worth(values), value, scale=rows**0.5)
    found = drawn.gradient(values, temperature, lambda gradient: gradient)
    assert_near(found, outputs.grad, scale=rows**-0.5)


@settings(max_examples=20, deadline=None)
@given(ROWS, st.integers(1, 4), SEEDS)
def test_gradient_through_a_tanh_equals_that_of_autograd(rows: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, slope = rng.standard_normal((2, rows, size), np.float32)
    outputs = double(x)
    (outputs.tanh() * torch.from_numpy(slope)).sum().backward()
    assert outputs.grad is not None
    assert_near(tanh_gradient(np.tanh(x), slope), outputs.grad)


def set_kernels(monkeypatch: pytest.MonkeyPatch, notes: list[str], kernels: bool) -> None:
    """Make `Compute.choose` switch kernels on or off and append its notes to `notes`."""
    choose: Callable[..., Compute] = Compute.choose

    def choose_with_kernels(cls: type[Compute], *overrides: Any, **named: Any) -> Compute:
        return dataclasses.replace(choose(*overrides, **named), kernels=kernels, note=notes.append)

    monkeypatch.setattr(Compute, "choose", classmethod(choose_with_kernels))


def weights(agent: Any) -> dict[str, Tensor]:
    return {
        name: torch.cat([weight.detach().flatten() for weight in module.parameters()])
        for name, module in agent.modules().items()
    }


@pytest.mark.parametrize(
    ("name", "action"),
    [("sac", BOX), ("tqc", BOX), ("td3", BOX), ("td3_bc", BOX), ("ddpg", BOX), ("sac", CHOICE)],
)
def test_actor_critic_weights_after_100_updates_equal_those_of_autograd(
    name: str, action: gym.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for kernels in (True, False):
        with monkeypatch.context() as patch:
            notes: list[str] = []
            set_kernels(patch, notes, kernels)
            agent, _, _ = cases.build(cases.config_of(name), action)
            disturb(agent)
            for i in range(100):
                agent.update(made_up(action, seed=i))
            assert not notes
            found.append(weights(agent))
    for network, expected in found[1].items():
        assert float((found[0][network] - expected).norm()) <= 1e-5 * float(expected.norm()), network


EARLY = (
    "agent.learning_starts=8", "agent.batch_size=16", "agent.exploration.epsilon=1", "agent.target.every=40"
)  # fmt: skip
FAMILY = [
    ("dqn",),
    ("double_dqn", "agent.value.loss=squared"),
    ("dueling_dqn", "agent/memory=prioritized", "agent.n_step=3"),
    ("c51",),
    ("qr_dqn",),
]


@pytest.mark.parametrize("overrides", FAMILY, ids=[overrides[0] for overrides in FAMILY])
def test_dqn_family_weights_after_100_updates_equal_those_of_autograd(
    overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for kernels in (True, False):
        with monkeypatch.context() as patch:
            notes: list[str] = []
            set_kernels(patch, notes, kernels)
            # Actions are random, so that both agents learn from the same minibatches.
            config = dqn_cases.config_of(*overrides, *EARLY)
            agent, clock, _ = dqn_cases.build(config, cases.VECTOR)
            assert dqn_cases.play(agent, clock, Noise(cases.VECTOR, 4), 115) >= 100
            assert not notes
            found.append(weights(agent))
    for network, expected in found[1].items():
        assert float((found[0][network] - expected).norm()) <= 1e-5 * float(expected.norm()), network


@pytest.mark.parametrize(
    "overrides",
    [("sac", "agent.network.torso.mlp.layer_norm=true"), ("crossq",)],
    ids=["layer_norm", "crossq"],
)
def test_networks_without_a_kernel_learn_by_autograd_and_are_noted(
    overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    set_kernels(monkeypatch, notes, kernels=True)
    agent, _, _ = cases.build(cases.config_of(*overrides))
    for i in range(6):
        agent.update(made_up(BOX, seed=i))
    assert sorted(note.split()[0] for note in notes) == ["Critics", "PolicyNetwork"]
