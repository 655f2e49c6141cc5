"""Tests that networks are plain torch modules, which torch.fx and torch.compile can read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from options import component, options
from torch import Tensor

from labrl.networks.actor_critic import ActorCritic
from labrl.networks.building import build_torso
from labrl.networks.critics import Critics, PolicyNetwork
from labrl.networks.q_network import QNetwork
from labrl.spaces import Spaces

VECTOR = gym.spaces.Box(-1, 1, (3,), np.float32)
MATRIX = gym.spaces.Box(-1, 1, (3, 2), np.float64)
IMAGE = gym.spaces.Box(0, 255, (2, 40, 40), np.uint8)
MIXED = gym.spaces.Dict({"picture": IMAGE, "mark": VECTOR, "door": gym.spaces.Discrete(3)})
TWO, BOX = gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (2,), np.float32)
TORSO = "agent.network.torso"


def torso(overrides: str, space: gym.Space[Any], **changes: Any) -> Any:
    built = build_torso(component(TORSO, overrides, **changes), space)
    return built, {"state": None, "lengths": None} if built.state_size else {}, space


def small(**changes: Any) -> Any:
    return component(TORSO, "agent/network=mlp", **{"hidden": [8], **changes})


def actor_critic(space: gym.Space[Any] = VECTOR, **changes: Any) -> Any:
    config = options("agent.network", **{"torso": small(), **changes})
    optional = {"state": None, "lengths": None, "policy": True, "value": True}
    return ActorCritic(config, Spaces(space, BOX, 1), 4, 0.0), optional, space


def q_network(**changes: Any) -> Any:
    config = options("agent.network", "agent=dqn", **{"torso": small(), **changes})
    return (
        QNetwork(config, Spaces(VECTOR, TWO, 1), 2, 3),
        {"state": None, "lengths": None, "noise": None},
        VECTOR,
    )


def critics(action: gym.Space[Any], space: gym.Space[Any] = VECTOR) -> Any:
    config = options("agent.network", "agent=sac", torso=small())
    return Critics(config, Spaces(space, action, 1), 2), {"first": False}, space


RECURRENT = component(TORSO, "agent=recurrent_ppo agent/network=gru", hidden_size=5)
NETWORKS: dict[str, Callable[[], tuple[Any, dict[str, Any], gym.Space[Any]]]] = {
    "nature_cnn": lambda: torso("agent/network=nature_cnn", IMAGE, features=8),
    "impala_cnn": lambda: torso("agent/network=impala_cnn", IMAGE, channels=[4, 8], features=8),
    "inputs": lambda: torso("", MIXED),
    "renormalized": lambda: torso("agent=crossq", VECTOR, hidden=[8]),
    "lstm": lambda: torso("agent=recurrent_ppo agent/network=lstm", VECTOR, hidden_size=5, layers=2),
    "actor_critic_shared": lambda: actor_critic(shared=True, policy_head=[5], head_layer_norm=True),
    "actor_critic_recurrent": lambda: actor_critic(torso=RECURRENT),
    "q_network_dueling": lambda: q_network(dueling=True, head=[6], head_layer_norm=True),
    "q_network_noisy": lambda: q_network(noisy=0.5, head=[6]),
    "policy_network": lambda: (PolicyNetwork(small(), VECTOR, 4), {}, VECTOR),
    "critics": lambda: critics(BOX),
    "critics_discrete": lambda: critics(TWO, MATRIX),
}
"""Functions, by name, that return a network, its optional arguments and its observation space."""


def network_and_inputs(name: str) -> tuple[Any, tuple[Tensor, ...], dict[str, Any]]:
    """Return a network in evaluation mode, its inputs, and its optional arguments."""
    torch.manual_seed(0)
    network, optional, space = NETWORKS[name]()
    space.seed(0)
    rows = [space.sample() for _ in range(4)]
    if isinstance(space, gym.spaces.Dict):
        kinds = [(key, np.asarray(rows[0][key]).dtype, np.shape(rows[0][key])) for key in space.spaces]
        batch = np.array([tuple(row[key] for key in space.spaces) for row in rows], np.dtype(kinds))
    else:
        batch = np.stack(rows)
    seen = network.layout(batch)
    inputs = torch.from_numpy(seen.astype(np.float32) if seen.dtype == np.float64 else seen)
    inputs = (inputs, torch.rand(4, 2) * 2 - 1) if isinstance(network, Critics) else (inputs,)
    return network.eval(), inputs, optional


def tensors(outputs: Any) -> list[Tensor]:
    """Return all tensors that a network returns."""
    return [outputs] if isinstance(outputs, Tensor) else [each for each in outputs if each is not None]


def assert_equal(found: Any, expected: Any) -> None:
    for one, other in zip(tensors(found), tensors(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("name", NETWORKS)
def test_network_can_be_traced_by_torch_fx(name: str) -> None:
    network, inputs, optional = network_and_inputs(name)
    traced = torch.fx.symbolic_trace(network, concrete_args=optional)
    assert_equal(traced(*inputs, *optional.values()), network(*inputs, **optional))


@pytest.mark.extended
@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("name", NETWORKS)
def test_network_compiles_into_a_single_graph(name: str, training: bool) -> None:
    # Older versions of torch compile recurrent layers, and numbers that the code reads, only with flags.
    flags = {"capture_scalar_outputs": True}
    if hasattr(torch._dynamo.config, "allow_rnn"):
        flags["allow_rnn"] = True
    torch._dynamo.reset()
    network, inputs, optional = network_and_inputs(name)
    network.train(training)
    expected = copy.deepcopy(network)(*inputs, **optional)
    with torch._dynamo.config.patch(flags):
        compiled = torch.compile(network, backend="eager", fullgraph=True)
        assert_equal(compiled(*inputs, **optional), expected)
