"""Tests of kernels: outputs and gradients equal those of the torch network, whatever a loss does with it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from options import component, options
from torch import Tensor, nn

from labrl.learning.flat import FlatParameters
from labrl.learning.kernels.networks import UnknownNetworkError
from labrl.learning.kernels.operation import KernelNetwork
from labrl.networks.actor_critic import ActorCritic
from labrl.networks.critics import Critics, PolicyNetwork
from labrl.networks.layers import FlattenInputs
from labrl.networks.q_network import QNetwork
from labrl.spaces import Spaces

UNITS = st.integers(1, 9)
TORSO = st.fixed_dictionaries(
    {
        "hidden": st.lists(UNITS, min_size=1, max_size=3),
        "activation": st.sampled_from(["Tanh", "ReLU", "ELU", "SiLU", "GELU"]),
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


def tensors_of(network: nn.Module, inputs: Any) -> list[Tensor]:
    """Return the tensors that a network computes, without the recurrent state."""
    output = network(*map(torch.from_numpy, inputs))
    return [output] if isinstance(output, Tensor) else [each for each in output if each is not None]


def assert_equals_torch(network: nn.Module, *inputs: Any, rows: int) -> None:
    """Assert that outputs and gradients equal those of a copy of the network in double precision.

    Compute `rows` rows, half of them, and all again. Compare gradients by the norm of the difference, because
    single elements may be sums that cancel: up to 1e-5 of the whole gradient and 1e-3 of the parameter's own,
    or 3 times the error that torch itself makes in single precision, which layer normalization can amplify.
    """
    rng, reference = np.random.default_rng(rows), copy.deepcopy(network).double()
    for parameter in reference.parameters():
        parameter.data += torch.from_numpy(rng.standard_normal(parameter.shape)) / 4
    for parameter, wanted in zip(network.parameters(), reference.parameters(), strict=True):
        parameter.data.copy_(wanted.data)
        wanted.data.copy_(parameter.data)
    for part in reference.modules():
        if isinstance(part, FlattenInputs):
            part.register_forward_hook(lambda module, inputs, output: output.double())
    flat = FlatParameters(network)
    kernel = KernelNetwork(network, flat.vector)
    for size in (rows, max(rows // 2, 1), rows):
        given = [each[:size] for each in inputs]
        found = kernel(*map(torch.from_numpy, given))
        expected = reference(*(torch.from_numpy(each).double() for each in given))
        pairs = [(found, expected)] if isinstance(found, Tensor) else zip(found, expected, strict=True)
        pairs = [(mine, theirs) for mine, theirs in pairs if mine is not None]
        totals: Any = [0, 0]
        slopes = [torch.from_numpy(numbers(rng, *mine.shape)) for mine, _ in pairs]
        for (mine, theirs), slope in zip(pairs, slopes, strict=True):
            assert "Evaluate" in mine.grad_fn.name(), "a kernel computes it"
            torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-4, atol=1e-5)
            totals = [totals[0] + (mine * slope).sum(), totals[1] + (theirs * slope).sum()]
        reference.zero_grad()
        flat.gradient.zero_()
        for total in totals:
            total.backward()
        single = torch.autograd.grad(
            sum((each * slope).sum() for each, slope in zip(tensors_of(network, given), slopes, strict=True)),
            list(network.parameters()),
            allow_unused=True,
        )
        both = list(zip(network.named_parameters(), reference.parameters(), strict=True))
        wanted = [torch.zeros_like(theirs) if theirs.grad is None else theirs.grad for _, theirs in both]
        whole = float(torch.cat([each.flatten() for each in wanted]).norm())
        for ((name, mine), _), gradient, by_torch in zip(both, wanted, single, strict=True):
            assert mine.grad is not None
            error = float((mine.grad - gradient).norm())
            usual = 0.0 if by_torch is None else 3 * float((by_torch - gradient).norm())
            assert error <= max(min(1e-5 * whole, 1e-3 * float(gradient.norm()) + 1e-6 * whole), usual), name


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
    )
    torch.manual_seed(rows)
    network = ActorCritic(config, Spaces(box(size), TWO, 4), 4, log_std, has_value)
    observation = numbers(np.random.default_rng(rows), rows, size)
    assert_equals_torch(network, observation, rows=rows)


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
    config = options("agent.network", "agent=sac env=pendulum", torso=torso(given))
    rng = np.random.default_rng(rows)
    observation, action = numbers(rng, rows, size), numbers(rng, rows, 2)
    torch.manual_seed(rows)
    assert_equals_torch(PolicyNetwork(config.torso, box(size), 4), observation, rows=rows)
    continuous, discrete = Spaces(box(size), box(2), 4), Spaces(box(size), TWO, 4)
    assert_equals_torch(Critics(config, continuous, count), observation, action, rows=rows)
    assert_equals_torch(Critics(config, discrete, count), observation, action, rows=rows)


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
        "LayerNorm": of(torso=torso({"layer_norm": True})),
        "recurrent": of("agent=recurrent_ppo"),
        "Own": own,
        "float64": of().double(),
        "NoisyLinear": QNetwork(
            options("agent.network", "agent=dqn", torso=torso({}), noisy=0.5), Spaces(box(3), TWO, 4), 2, 1
        ),
    }
    for named, network in unknown.items():
        with pytest.raises(UnknownNetworkError) as error:
            KernelNetwork(network, None)
        assert named in str(error.value)


def critics(action: gym.Space, count: int = 2) -> Any:
    torch.manual_seed(0)
    config = options("agent.network", "agent=sac env=pendulum", torso=torso({"hidden": [8, 7]}))
    return Critics(config, Spaces(box(3), action, 4), count)


def policy() -> Any:
    torch.manual_seed(0)
    config = options("agent.network", torso=torso({"hidden": [8, 7]}))
    return ActorCritic(config, Spaces(box(3), TWO, 4), num_outputs=2, log_std_init=None)


RNG = np.random.default_rng(0)
OBSERVATION, ACTION = torch.from_numpy(numbers(RNG, 5, 3)), torch.from_numpy(numbers(RNG, 5, 2))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_gradient_of_actions_flows_through_frozen_critics(count: int, first: bool) -> None:
    network = critics(box(2), count).requires_grad_(False)
    found = []
    for judge in (network, KernelNetwork(network, None)):
        action = ACTION.clone().requires_grad_()
        values = judge(OBSERVATION, action.tanh(), first=first)
        values.square().sum().backward()
        found.append((values.detach(), action.grad))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


Loss = Callable[[Any, Any], Tensor]
"""Computes a loss by calling a network that may have a kernel; the second argument is the network itself."""


def gradient_penalty(judge: Any, network: Any) -> Tensor:
    action = ACTION.clone().requires_grad_()
    (slope,) = torch.autograd.grad(judge(OBSERVATION, action).sum(), action, create_graph=True)
    return slope.square().mean()


def penalty_on_observations(judge: Any, network: Any) -> Tensor:
    observation = OBSERVATION.clone().requires_grad_()
    (slope,) = torch.autograd.grad(judge(observation, ACTION).sum(), observation, create_graph=True)
    return slope.square().mean()


def functional_of_the_argument(judge: Any, network: Any) -> Tensor:
    doubled = {name: 2 * weight for name, weight in network.named_parameters()}
    return torch.func.functional_call(judge, doubled, (OBSERVATION, ACTION)).square().mean()


def mapped(judge: Any, network: Any) -> Tensor:
    each = torch.func.vmap(lambda o, a: judge(o.unsqueeze(0), a.unsqueeze(0)))
    return each(OBSERVATION, ACTION).square().mean()


LOSSES: dict[str, Loss] = {
    "plain": lambda judge, network: judge(OBSERVATION, ACTION).square().mean(),
    "an output that is not used": lambda judge, network: judge(OBSERVATION, ACTION)[0].square().mean(),
    "decay of the argument's weights": lambda judge, network: (
        judge(OBSERVATION, ACTION).mean() + sum(w.square().sum() for w in judge.parameters())
    ),
    "gradient penalty with the loss": lambda judge, network: (
        judge(OBSERVATION, ACTION).square().mean() + gradient_penalty(judge, network)
    ),
    "penalty on observations": penalty_on_observations,
    "other weights of the argument": functional_of_the_argument,
    "vmap": mapped,
}


@pytest.mark.parametrize("name", LOSSES)
def test_any_loss_of_a_network_has_the_gradient_of_autograd(name: str) -> None:
    found = []
    for with_kernel in (True, False):
        network = critics(box(2))
        flat = FlatParameters(network)
        judge = KernelNetwork(network, flat.vector) if with_kernel else network
        for _ in range(2):
            flat.gradient.zero_()
            LOSSES[name](judge, network).backward()
        found.append(flat.gradient)
    assert found[1].abs().max() > 0
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


def test_single_outputs_of_a_policy_have_the_gradient_of_autograd() -> None:
    found = []
    for with_kernel in (True, False):
        network = policy()
        flat = FlatParameters(network)
        fast = KernelNetwork(network, flat.vector) if with_kernel else network
        value = fast(OBSERVATION, policy=False).value.square().mean()
        (value + fast(OBSERVATION, value=False).parameters.square().mean()).backward()
        found.append(flat.gradient)
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


def test_outputs_stay_as_they_are_when_the_graph_is_gone() -> None:
    network = policy()
    fast = KernelNetwork(network, FlatParameters(network).vector)
    kept = fast(OBSERVATION).value.detach()
    before = kept.clone()
    for _ in range(3):
        fast(2 * OBSERVATION).value.sum().backward()
    assert torch.equal(kept, before)


def test_graph_can_be_differentiated_twice() -> None:
    network = policy()
    flat = FlatParameters(network)
    fast = KernelNetwork(network, flat.vector)
    loss = fast(OBSERVATION).value.square().mean()
    loss.backward(retain_graph=True)
    once = flat.gradient.clone()
    fast(3 * OBSERVATION)
    loss.backward()
    torch.testing.assert_close(flat.gradient, 2 * once)
