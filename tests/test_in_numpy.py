"""What acts by NumPy does as the network that learns, whatever becomes of its weights."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from options import component, options

from labrl.config.component import Component
from labrl.networks.actor_critic import ActorCritic
from labrl.networks.gradient import FlatParameters
from labrl.networks.q_network import QNetwork
from labrl.networks.spaces import Spaces

BOX, TWO = gym.spaces.Box(-1, 1, (3, 2)), gym.spaces.Discrete(2)


def torso(**changes: Any) -> Component:
    return component("agent.network.torso", "agent/network=mlp", **{"hidden": [16, 8], **changes})


def q_network(**changes: Any) -> QNetwork:
    observation = changes.pop("observation", BOX)
    config = options("agent.network", "agent=dqn", **{"torso": torso(), **changes})
    return QNetwork(config, Spaces(observation, TWO, 4), num_actions=2, num_outputs=3)


def actor_critic(log_std: float | None, **changes: Any) -> ActorCritic:
    config = options("agent.network", torso=torso(activation="ReLU"), **changes)
    return ActorCritic(config, Spaces(BOX, TWO, 4), num_outputs=4, log_std_init=log_std)


@pytest.mark.parametrize(
    "network",
    [
        q_network(),
        q_network(torso=torso(activation="ReLU"), head=[5]),
        q_network(dueling=True, head=[5]),
        q_network(noisy=0.5),
        actor_critic(None),
        actor_critic(-0.3),
        q_network(dueling=True, head=[5], head_activation="Tanh"),
        actor_critic(-0.3, policy_head=[5, 4], value_head=[3]),
    ],
    ids=["values", "a head", "dueling", "noisy", "policy", "gaussian", "tanh", "a policy's head"],
)
def test_it_gives_the_same_before_and_after_an_update(network: QNetwork | ActorCritic) -> None:
    flat = FlatParameters(network)
    quick = network.in_numpy()
    assert quick is not None
    observation = BOX.sample()[None].repeat(5, 0) * np.arange(5, dtype=np.float32).reshape(5, 1, 1)
    for _ in range(2):
        inputs = torch.from_numpy(observation)
        with torch.no_grad():
            slow = network.policy(inputs) if isinstance(network, ActorCritic) else network(inputs)
        outputs = quick(observation)
        assert outputs is not None
        np.testing.assert_allclose(outputs, slow.numpy(), rtol=1e-5, atol=1e-6)
        with torch.no_grad():
            flat.vector += 0.1 * torch.randn(len(flat.vector))


def test_the_network_itself_computes_what_is_no_chain_of_layers() -> None:
    discrete = gym.spaces.Discrete(5)
    assert q_network(torso=torso(layer_norm=True)).in_numpy() is None
    assert q_network(torso=torso(activation="GELU")).in_numpy() is None
    assert q_network(observation=discrete).in_numpy() is None
    assert q_network(head=[5], head_layer_norm=True).in_numpy() is None
    assert q_network(dueling=True, head=[5], head_activation="GELU").in_numpy() is None
    assert actor_critic(None, shared=True).in_numpy() is None
    assert actor_critic(None, policy_head=[5], head_activation="GELU").in_numpy() is None


def test_the_network_itself_computes_many_rows() -> None:
    quick = q_network().in_numpy()
    assert quick is not None
    assert quick(np.zeros((10, 3, 2), np.float32)) is not None
    assert quick(np.zeros((10_000, 3, 2), np.float32)) is None
