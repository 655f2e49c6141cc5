"""Tests that networks are plain torch modules: hooks, parametrizations, torch.fx and torch.compile work."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from options import component, options
from torch import Tensor, nn
from torch.nn.utils import parametrize

from labrl.networks.actor_critic import ActorCritic
from labrl.networks.building import build_torso
from labrl.networks.critics import Critics, PolicyNetwork
from labrl.networks.q_network import QNetwork
from labrl.spaces import Spaces

VECTOR = gym.spaces.Box(-1, 1, (3,), np.float32)
MATRIX = gym.spaces.Box(-1, 1, (3, 2), np.float64)
CHOICES = gym.spaces.MultiDiscrete([3, 2])
RAM = gym.spaces.Box(0, 255, (5,), np.uint8)
IMAGE = gym.spaces.Box(0, 255, (2, 40, 40), np.uint8)
NARROW = gym.spaces.Box(np.uint8(3), np.uint8(9), (2, 40, 40), np.uint8)
MIXED = gym.spaces.Dict({"picture": IMAGE, "mark": VECTOR, "door": gym.spaces.Discrete(3)})
TWO, BOX = gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (2,), np.float32)
TORSO = "agent.network.torso"

TORSOS: dict[str, tuple[str, dict[str, Any], gym.Space[Any]]] = {
    "mlp": ("agent/network=mlp", {"hidden": [8, 6]}, VECTOR),
    "mlp_matrix": ("agent/network=mlp", {"hidden": [8], "activation": "ReLU"}, MATRIX),
    "mlp_normed": ("agent/network=mlp", {"hidden": [8, 6], "layer_norm": True}, VECTOR),
    "mlp_choices": ("agent/network=mlp", {"hidden": [8]}, CHOICES),
    "mlp_ram": ("agent/network=mlp", {"hidden": [8]}, RAM),
    "nature_cnn": ("agent/network=nature_cnn", {"features": 8}, IMAGE),
    "nature_cnn_narrow": ("agent/network=nature_cnn", {"features": 8, "layer_norm": True}, NARROW),
    "impala_cnn": ("agent/network=impala_cnn", {"channels": [4, 8], "features": 8}, IMAGE),
    "auto": ("", {}, IMAGE),
    "auto_inputs": ("", {}, MIXED),
    "renormalized": ("agent=crossq", {"hidden": [8]}, VECTOR),
    "renormalized_cnn": ("agent=crossq", {"features": 8}, IMAGE),
    "gru": ("agent=recurrent_ppo agent/network=gru", {"hidden_size": 5}, VECTOR),
    "lstm": ("agent=recurrent_ppo agent/network=lstm", {"hidden_size": 5, "layers": 2}, VECTOR),
}

ALL: dict[str, Callable[[], tuple[Any, dict[str, Any], gym.Space[Any]]]] = {}
"""Functions, by name, that return a network, its optional arguments and its observation space."""


def add_torso(name: str) -> None:
    overrides, changes, space = TORSOS[name]

    def make() -> tuple[Any, dict[str, Any], gym.Space[Any]]:
        torso = build_torso(component(TORSO, overrides, **changes), space)
        return torso, {"state": None, "lengths": None} if torso.state_size else {}, space

    ALL[name] = make


for each in TORSOS:
    add_torso(each)


def small(**changes: Any) -> Any:
    return component(TORSO, "agent/network=mlp", **{"hidden": [8], **changes})


def actor_critic(space: gym.Space[Any] = VECTOR, **changes: Any) -> Any:
    config = options("agent.network", **{"torso": small(), **changes})
    optional = {"state": None, "lengths": None, "policy": True, "value": True}
    return ActorCritic(config, Spaces(space, BOX, 1), 4, 0.0), optional, space


def q_network(space: gym.Space[Any] = VECTOR, **changes: Any) -> Any:
    config = options("agent.network", "agent=dqn", **{"torso": small(), **changes})
    optional = {"state": None, "lengths": None, "noise": None}
    return QNetwork(config, Spaces(space, TWO, 1), 2, 3), optional, space


def critics(action: gym.Space[Any], space: gym.Space[Any] = VECTOR, **changes: Any) -> Any:
    config = options("agent.network", "agent=sac", **{"torso": small(), **changes})
    return Critics(config, Spaces(space, action, 1), 2), {"first": False}, space


RECURRENT = component(TORSO, "agent=recurrent_ppo agent/network=gru", hidden_size=5)
CNN = component(TORSO, "agent/network=nature_cnn", features=8)
ALL |= {
    "actor_critic": actor_critic,
    "actor_critic_shared": lambda: actor_critic(shared=True, policy_head=[5], head_layer_norm=True),
    "actor_critic_recurrent": lambda: actor_critic(torso=RECURRENT),
    "actor_critic_images": lambda: actor_critic(IMAGE, torso=CNN, value_head=[5]),
    "q_network": q_network,
    "q_network_dueling": lambda: q_network(dueling=True, head=[6], head_layer_norm=True),
    "q_network_noisy": lambda: q_network(noisy=0.5, head=[6]),
    "q_network_recurrent": lambda: q_network(torso=RECURRENT),
    "policy_network": lambda: (PolicyNetwork(small(), VECTOR, 4), {}, VECTOR),
    "critics": lambda: critics(BOX),
    "critics_discrete": lambda: critics(TWO, MATRIX),
    "critics_normed": lambda: critics(BOX, torso=small(layer_norm=True)),
    "critics_images": lambda: critics(BOX, IMAGE, torso=CNN),
}


def network_and_inputs(name: str) -> tuple[Any, tuple[Tensor, ...], dict[str, Any]]:
    """Return a network in evaluation mode, its inputs, and its optional arguments."""
    torch.manual_seed(0)
    network, optional, space = ALL[name]()
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


@pytest.mark.parametrize("name", ALL)
def test_forward_hooks_fire_for_the_network_and_every_layer(name: str) -> None:
    network, inputs, optional = network_and_inputs(name)
    fired: set[str] = set()
    leaves = {
        part: layer
        for part, layer in network.named_modules()
        if (not list(layer.children()) and not isinstance(layer, nn.ParameterList)) or layer is network
    }
    for part, layer in leaves.items():
        layer.register_forward_hook(lambda *_, part=part: fired.add(part))
    network(*inputs, **optional)
    # Containers and the Transform in place of an unused layer are not called by every network.
    idle = {part for part, layer in leaves.items() if type(layer) in (nn.ModuleList, nn.Identity)}
    assert fired >= set(leaves) - idle - {
        part for part, layer in leaves.items() if type(layer) is nn.Sequential
    }


@pytest.mark.parametrize("name", ALL)
def test_parametrized_weight_takes_effect(name: str) -> None:
    network, inputs, optional = network_and_inputs(name)
    before = [each.clone() for each in tensors(network(*inputs, **optional))]
    owner, weight = next(
        (layer, own)
        for layer in network.modules()
        for own, parameter in layer.named_parameters(recurse=False)
        if parameter.dim() > 1 and not own.startswith("log_std") and not isinstance(layer, nn.RNNBase)
    )

    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight * -2

    parametrize.register_parametrization(owner, weight, Doubled())
    after = tensors(network(*inputs, **optional))
    assert not all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ALL)
def test_network_can_be_traced_by_torch_fx(name: str) -> None:
    network, inputs, optional = network_and_inputs(name)
    traced = torch.fx.symbolic_trace(network, concrete_args=optional)
    assert_equal(traced(*inputs, *optional.values()), network(*inputs, **optional))


COMPILED = (
    *("nature_cnn", "auto_inputs", "renormalized", "lstm", "actor_critic_shared", "actor_critic_recurrent"),
    *("q_network_dueling", "q_network_noisy", "policy_network", "critics", "critics_discrete"),
)
"""Networks that together contain every layer and every kind of output; the others are variations of these."""


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "training"),
    [
        pytest.param(name, training, marks=() if training and name in COMPILED else pytest.mark.matrix)
        for name in ALL
        for training in (True, False)
    ],
)
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
