"""Tests of kernels: their outputs and gradients equal those of the torch network in double precision."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from options import component, options
from torch import nn

from labrl.learning.kernels.networks import UnknownNetworkError, kernel_of
from labrl.learning.learner import FlatParameters
from labrl.networks.actor_critic import ActorCritic
from labrl.networks.critics import Critics, PolicyNetwork
from labrl.networks.layers import Numbers
from labrl.networks.q_network import QNetwork
from labrl.spaces import Spaces

UNITS = st.integers(3, 9)  # layer norm of one unit is 0, and of two units its gradients cancel
TORSO = st.fixed_dictionaries(
    {
        "hidden": st.lists(UNITS, min_size=1, max_size=3),
        "activation": st.sampled_from(["Tanh", "ReLU", "ELU", "SiLU", "GELU"]),
        "layer_norm": st.booleans(),
    }
)
HEAD = st.lists(UNITS, max_size=2)
ROWS = st.integers(1, 70)
TWO = gym.spaces.Discrete(2)


def box(size: int) -> gym.spaces.Box:
    return gym.spaces.Box(-1, 1, (size,))


def torso(settings: Any) -> Any:
    return component("agent.network.torso", "agent/network=mlp", **settings)


def numbers(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape, np.float32)


class InParts:
    """Kernel of an actor-critic that computes the rows of a rollout in parts of `at_once` rows."""

    def __init__(self, network: nn.Module, at_once: int) -> None:
        self._kernel: Any = kernel_of(network)
        self._at_once = at_once

    def forward(self, observation: Any) -> Any:
        rollout = self._kernel.kept(len(observation))
        for begin in range(0, len(observation), self._at_once):
            part = observation[begin : begin + self._at_once]
            found = rollout.compute(part, None, rows=slice(begin, begin + len(part)))
            assert len(found.parameters) == len(found.value) == len(part)
        assert rollout.complete == len(observation)
        self.backward = rollout.backward
        return rollout.forward(observation)


def assert_equals_torch(
    network: nn.Module, *inputs: Any, rows: int, make_kernel: Callable[..., Any] = kernel_of, **arguments: Any
) -> None:
    """Assert that outputs and gradients equal those of a copy of the network in double precision.

    Compute `rows` rows, half of them, and all again. Compare gradients by the norm of the difference, because
    single elements may be sums that cancel: up to 1e-5 of the whole gradient and 1e-3 of the parameter's own.
    """
    rng, reference = np.random.default_rng(rows), copy.deepcopy(network).double()
    for parameter in reference.parameters():
        parameter.data += torch.from_numpy(rng.standard_normal(parameter.shape)) / 4
    for parameter, wanted in zip(network.parameters(), reference.parameters(), strict=True):
        parameter.data.copy_(wanted.data)
        wanted.data.copy_(parameter.data)
    for part in reference.modules():
        if isinstance(part, Numbers):
            part.register_forward_hook(lambda module, inputs, output: output.double())
    FlatParameters(network)
    kernel = make_kernel(network)
    for size in (rows, max(rows // 2, 1), rows):
        given = [each[:size] for each in inputs]
        with torch.no_grad():
            found = kernel.forward(*given, **arguments)
        expected = reference(*(torch.from_numpy(each).double() for each in given), **arguments)
        pairs = [(found, expected)] if isinstance(found, np.ndarray) else zip(found, expected, strict=True)
        pairs = [(mine, theirs) for mine, theirs in pairs if mine is not None]
        slopes = [numbers(rng, *mine.shape) for mine, _ in pairs]
        total = torch.zeros((), dtype=torch.float64)
        for (mine, theirs), slope in zip(pairs, slopes, strict=True):
            np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)
            total = total + (theirs * torch.from_numpy(slope)).sum()
        reference.zero_grad()
        total.backward()
        with torch.no_grad():
            kernel.backward(*slopes)
        both = list(zip(network.named_parameters(), reference.parameters(), strict=True))
        wanted = [torch.zeros_like(theirs) if theirs.grad is None else theirs.grad for _, theirs in both]
        whole = float(torch.cat([each.flatten() for each in wanted]).norm())
        for ((name, mine), _), gradient in zip(both, wanted, strict=True):
            assert mine.grad is not None
            error = float((mine.grad - gradient).norm())
            assert error <= min(1e-5 * whole, 1e-3 * float(gradient.norm()) + 1e-6 * whole), name


@settings(max_examples=60, deadline=None)
@given(
    TORSO, HEAD, HEAD, ROWS, st.integers(1, 9), st.sampled_from([None, -0.3]), st.booleans(), st.booleans()
)
def test_kernels_of_policies_and_values_equal_torch(
    given: Any, policy: Any, value: Any, rows: int, size: int, log_std: Any, shared: bool, has_value: bool
) -> None:
    config = options(
        "agent.network",
        torso=torso(given),
        policy_head=policy,
        value_head=value,
        shared=shared,
        head_activation=given["activation"],
        head_layer_norm=given["layer_norm"] and bool(policy or value),
    )
    torch.manual_seed(rows)
    network = ActorCritic(config, Spaces(box(size), TWO, 4), 4, log_std, has_value)
    observation = numbers(np.random.default_rng(rows), rows, size)
    if has_value:
        assert_equals_torch(network, observation, rows=rows)
        assert_equals_torch(network, observation, rows=rows, make_kernel=partial(InParts, at_once=size))
    else:
        assert_equals_torch(network, observation, rows=rows, value=False)


@pytest.mark.parametrize("processor", ["AVX2", "AVX512"])
def test_tanh_kernel_equals_torch_for_large_arrays(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some processors compute large arrays with another function."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: processor)
    config = options("agent.network", torso=torso({"hidden": [64, 64], "activation": "Tanh"}))
    torch.manual_seed(1)
    network = ActorCritic(config, Spaces(box(4), TWO, 4), 2, None, True)
    assert_equals_torch(network, 3 * numbers(np.random.default_rng(1), 256, 4), rows=256)


@settings(max_examples=40, deadline=None)
@given(TORSO, HEAD, ROWS, st.integers(1, 9), st.integers(1, 4), st.booleans(), st.booleans())
def test_kernels_of_action_values_equal_torch(
    given: Any, head: Any, rows: int, size: int, actions: int, dueling: bool, discrete: bool
) -> None:
    config = options(
        "agent.network",
        "agent=dqn",
        torso=torso(given),
        head=head,
        dueling=dueling,
        head_activation=given["activation"],
        head_layer_norm=given["layer_norm"] and bool(head),
    )
    rng = np.random.default_rng(rows)
    space = gym.spaces.Discrete(size) if discrete else box(size)
    observation = rng.integers(size, size=rows) if discrete else numbers(rng, rows, size)
    torch.manual_seed(rows)
    network = QNetwork(config, Spaces(space, TWO, 4), num_actions=actions, num_outputs=3)
    assert_equals_torch(network, observation, rows=rows)


@settings(max_examples=30, deadline=None)
@given(TORSO, ROWS, st.integers(1, 9), st.integers(1, 3))
def test_kernels_of_replay_policies_and_critics_equal_torch(
    given: Any, rows: int, size: int, count: int
) -> None:
    given = {**given, "layer_norm": False}
    config = options("agent.network", "agent=sac env=pendulum", torso=torso(given))
    rng = np.random.default_rng(rows)
    observation, action = numbers(rng, rows, size), numbers(rng, rows, 2)
    torch.manual_seed(rows)
    assert_equals_torch(PolicyNetwork(config.torso, box(size), 4), observation, rows=rows)
    continuous, discrete = Spaces(box(size), box(2), 4), Spaces(box(size), TWO, 4)
    assert_equals_torch(Critics(config, continuous, count), observation, action, rows=rows)
    assert_equals_torch(Critics(config, discrete, count), observation, action, rows=rows)


@pytest.mark.parametrize("count", [1, 2])
def test_critic_kernel_gives_input_gradients_of_all_or_the_first(count: int) -> None:
    config = options("agent.network", "agent=sac env=pendulum", torso=torso({"hidden": [8, 7]}))
    rng = np.random.default_rng(0)
    observation, action = numbers(rng, 5, 3), numbers(rng, 5, 2)
    network = Critics(config, Spaces(box(3), box(2), 4), count)
    for first in (False, True):
        kernel: Any = kernel_of(network.requires_grad_(False))
        inputs = [torch.from_numpy(each).requires_grad_() for each in (observation, action)]
        values = network(*inputs, first=first)
        with torch.no_grad():
            found = kernel.forward(observation, action, first=first)
        np.testing.assert_allclose(found, values.detach().numpy(), rtol=1e-5, atol=1e-6)
        slope = numbers(rng, *found.shape)
        (values * torch.from_numpy(slope)).sum().backward()
        gradient = kernel.input_gradient(slope)
        both = np.concatenate([each.grad.numpy() for each in inputs if each.grad is not None], axis=1)
        np.testing.assert_allclose(gradient.sum(0), both, rtol=1e-4, atol=1e-6)


def test_unsupported_network_has_no_kernel_and_the_error_says_why() -> None:
    def of(overrides: str = "", **changes: Any) -> ActorCritic:
        config = options("agent.network", overrides, **changes)
        return ActorCritic(config, Spaces(box(3), TWO, 4), num_outputs=2, log_std_init=None)

    class Own(ActorCritic):
        """Subclass written by a user."""

    own = of()
    own.__class__ = Own
    unknown = {
        "Mish": of(torso=torso({"activation": "Mish"})),
        "recurrent": of("agent=recurrent_ppo"),
        "Own": own,
        "float64": of().double(),
        "NoisyLinear": QNetwork(
            options("agent.network", "agent=dqn", torso=torso({}), noisy=0.5), Spaces(box(3), TWO, 4), 2, 1
        ),
    }
    for named, network in unknown.items():
        with pytest.raises(UnknownNetworkError, match=named):
            kernel_of(network)
