"""Tests of the Q-network: outputs, dueling streams, noisy layers, and copies."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from options import component, options

from labrl.networks.layers import NoisyLinear, factor_noise
from labrl.networks.q_network import QNetwork
from labrl.spaces import Spaces

VECTOR = gym.spaces.Box(-5, 5, (3,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (2, 40, 40), np.uint8)
TORSO = component(
    "agent.network.torso",
    mlp=options("agent.network.torso.mlp", hidden=[16]),
    cnn=options("agent.network.torso.cnn", features=None),
)


def network(space: gym.Space = VECTOR, seed: int = 0, **changes: Any) -> QNetwork:
    torch.manual_seed(seed)
    config = options("agent.network", "agent=dqn", torso=TORSO, **changes)
    return QNetwork(config, Spaces(space, gym.spaces.Discrete(4), 1), 4, 3)


def noise_of(net: QNetwork, *rows: int, seed: int = 0) -> torch.Tensor:
    return factor_noise((*rows, net.num_noise), torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("space", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize(
    "changes", [{}, {"head": [8]}, {"head": [8], "dueling": True, "noisy": 0.5}], ids=str
)
def test_outputs_have_one_row_per_action(space: gym.Space, changes: dict[str, Any]) -> None:
    net = network(space, **changes)
    inputs = torch.from_numpy(net.layout(np.stack([space.sample() for _ in range(5)])))
    assert net(inputs).outputs.shape == (5, 4, 3)
    assert net(inputs).outputs.dtype == torch.float32


def test_dueling_outputs_are_value_plus_centred_advantage() -> None:
    net, inputs = network(dueling=True, head=[8]), torch.randn(5, 3)
    assert net.value is not None
    value = net.value(net.torso(inputs), None)
    torch.testing.assert_close(net(inputs).outputs.mean(1), value)
    advantage = net.advantage(net.torso(inputs), None).view(5, 4, 3)
    torch.testing.assert_close(
        net(inputs).outputs[:, 1] - net(inputs).outputs[:, 0], advantage[:, 1] - advantage[:, 0]
    )


def test_noisy_layer_follows_the_paper() -> None:
    torch.manual_seed(0)
    layer, inputs = NoisyLinear(3, 2, 0.5), torch.randn(4, 3)
    torch.testing.assert_close(layer.weight_sigma, torch.full((2, 3), 0.5 / 3**0.5))
    noise = factor_noise((5,), torch.Generator().manual_seed(0))
    weight = layer.weight + layer.weight_sigma * torch.outer(noise[3:], noise[:3])
    bias = layer.bias + layer.bias_sigma * noise[3:]
    torch.testing.assert_close(layer(inputs, noise), inputs @ weight.T + bias)
    torch.testing.assert_close(layer(inputs, None), inputs @ layer.weight.T + layer.bias)


def test_factor_noise_is_the_signed_root_of_normal_noise() -> None:
    noise = factor_noise((20_000,), torch.Generator().manual_seed(0))
    normal = noise.sign() * noise.square()
    assert float(normal.mean()) == pytest.approx(0, abs=0.03)
    assert float(normal.std()) == pytest.approx(1, abs=0.03)


def test_noise_may_be_shared_by_all_rows_or_given_per_row() -> None:
    net, inputs = network(dueling=True, head=[8], noisy=0.5), torch.randn(1, 3).repeat(4, 1)
    shared, per_row = noise_of(net), noise_of(net, 4)
    same = net(inputs, noise=shared).outputs
    torch.testing.assert_close(same, same[:1].repeat(4, 1, 1))
    different = net(inputs, noise=per_row).outputs
    for row in range(4):
        torch.testing.assert_close(different[row], net(inputs, noise=per_row[row]).outputs[row])
    assert not torch.equal(different[0], different[1])


def test_every_layer_of_both_streams_has_its_own_noise() -> None:
    net, inputs = network(dueling=True, head=[8], noisy=0.5), torch.randn(2, 3)
    assert net.num_noise == (16 + 8) + (8 + 4 * 3) + (16 + 8) + (8 + 3)
    noise = noise_of(net)
    reference = net(inputs, noise=noise).outputs
    for index in range(0, net.num_noise, 7):
        changed = noise.clone()
        changed[index] += 1
        assert not torch.equal(net(inputs, noise=changed).outputs, reference), index


def test_last_layer_computes_in_float32_under_bfloat16() -> None:
    net, inputs = network(head=[8]), torch.randn(64, 3)
    net.advantage.layers[-1].bias.data.fill_(100.0)  # type: ignore[union-attr, operator]
    with torch.autocast("cpu", torch.bfloat16):
        outputs = net(inputs).outputs
    # bfloat16 numbers near 100 are 0.5 apart, so in bfloat16 few outputs would differ.
    assert len(outputs[:, 0, 0].unique()) > 40
    torch.testing.assert_close(outputs, net(inputs).outputs, atol=0.1, rtol=0)
