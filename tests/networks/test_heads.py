"""Tests of network heads, the layers between torso and outputs: their sizes, activation and layer norm."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from options import component, options
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear

from labrl import train
from labrl.networks.actor_critic import ActorCritic
from labrl.networks.q_network import QNetwork
from labrl.spaces import Spaces

SPACES = Spaces(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2), 1)
TORSO = component("agent.network.torso", "agent/network=mlp", hidden=[8])
OBSERVATION = torch.linspace(-1, 1, 12).view(4, 3)


def weights(module: nn.Module, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the weight and the bias of the only layer in `module` whose weight has this shape."""
    (found,) = [
        m for m in module.modules() if getattr(m, "weight", None) is not None and m.weight.shape == shape
    ]
    return found.weight, found.bias  # type: ignore[return-value]


def outputs(module: nn.Module, features: Tensor, sizes: list[int], normed: bool, activate: Any) -> Tensor:
    """Compute fully connected layers with `sizes` outputs by hand, with the weights of `module`."""
    for size in sizes:
        features = linear(features, *weights(module, (size, features.shape[1])))
        if size != sizes[-1]:
            features = activate(layer_norm(features, (size,)) if normed else features)
    return features


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_policy_and_value_heads_have_their_own_layers(shared: bool, normed: bool) -> None:
    torch.manual_seed(0)
    config = options(
        "agent.network", torso=TORSO, shared=shared, policy_head=[7, 5], value_head=[6],
        head_activation="SiLU", head_layer_norm=normed,
    )  # fmt: skip
    network = ActorCritic(config, SPACES, num_outputs=2, log_std_init=None)
    parameters, value, _ = network(OBSERVATION)
    policy_features, value_features = network.policy_torso(OBSERVATION), network.value_torso(OBSERVATION)
    silu = nn.functional.silu
    expected = outputs(network.policy_head, policy_features, [7, 5, 2], normed, silu)
    torch.testing.assert_close(parameters, expected)
    torch.testing.assert_close(
        value, outputs(network.value_head, value_features, [6, 1], normed, silu).squeeze(1)
    )
    (parameters.sum() + value.sum()).backward()
    assert all(p.grad is not None and p.grad.any() for p in network.parameters())


@pytest.mark.parametrize("normed", [False, True])
def test_action_value_head_uses_the_configured_activation(normed: bool) -> None:
    torch.manual_seed(0)
    head: dict[str, Any] = {"head": [7, 5], "head_activation": "Softsign", "head_layer_norm": normed}
    config = options("agent.network", "agent=dqn", torso=TORSO, **head)
    network = QNetwork(config, SPACES, num_actions=2, num_outputs=1)
    by_hand = outputs(
        network.advantage, network.torso(OBSERVATION), [7, 5, 2], normed, nn.functional.softsign
    )
    torch.testing.assert_close(network(OBSERVATION).outputs.squeeze(2), by_hand)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("agent", "overrides"),
    [
        ("ppo", ["policy_head=[8]", "value_head=[16,8]"]),
        ("reinforce", ["policy_head=[8]"]),
        ("recurrent_ppo", ["policy_head=[8]", "value_head=[8]", "head_layer_norm=true"]),
        ("rainbow", ["head=[8]", "head_activation=Tanh", "head_layer_norm=true"]),
    ],
)
def test_agents_learn_with_configured_heads(agent: str, overrides: list[str], tmp_path: Path) -> None:
    given = [f"agent.network.{override}" for override in overrides]
    result = train([f"agent={agent}", "env=cartpole", "meta=dev", *given, f"hydra.run.dir={tmp_path}"])
    assert result.sessions[0].opt_step > 0
    assert re.search(r"weight +8 x \d+", (tmp_path / "session_0/networks.txt").read_text())
