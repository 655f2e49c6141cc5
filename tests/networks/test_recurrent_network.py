"""Tests of recurrent networks: sequences equal single steps, and episodes do not affect each other."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from options import component
from torch import Tensor

from labrl.component import Component
from labrl.memory.rollout import Segments
from labrl.networks.recurrent import Recurrent, RecurrentConfig

VECTOR = gym.spaces.Box(-5, 5, (3,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (2, 40, 40), np.uint8)
MLP = component("agent.network.torso", "agent/network=mlp", hidden=[8])
CNN = component("agent.network.torso", "agent/network=nature_cnn", features=8)
KINDS = [("gru", 1), ("lstm", 1), ("lstm", 2)]


def recurrent_network(
    kind: str = "gru", layers: int = 1, torso: Component = MLP, space: gym.Space = VECTOR
) -> Recurrent:
    torch.manual_seed(0)
    config = RecurrentConfig(torso=torso, kind=kind, hidden_size=5, layers=layers)  # type: ignore[arg-type]
    return Recurrent(config, observation_space=space)


def observations(space: gym.Space, sequences: int, length: int) -> Tensor:
    """Draw random observations. [sequences, length, *observation]"""
    rng = np.random.default_rng(0)
    shape = (sequences, length, *(space.shape or ()))
    if space.dtype == np.uint8:
        return torch.from_numpy(rng.integers(0, 256, shape).astype(np.uint8))
    return torch.from_numpy(rng.normal(size=shape).astype(np.float32))


def step_by_step(net: Recurrent, inputs: Tensor, state: Tensor, start: np.ndarray) -> tuple[Tensor, Tensor]:
    """Compute one step at a time, with the state set to 0 at each start.

    inputs: observations, [sequences, length, *observation].
    start: where an episode starts, [sequences, length].
    Returns features, [sequences, length, features], and the state after the last step.
    """
    features = []
    for t in range(inputs.shape[1]):
        state = state * ~torch.from_numpy(start[:, t : t + 1])
        output, state = net(inputs[:, t], state)
        features.append(output)
    return torch.stack(features, dim=1), state


def at_once(net: Recurrent, inputs: Tensor, state: Tensor, start: np.ndarray) -> tuple[Tensor, Tensor]:
    """Compute all steps in one call. Arguments and results are those of `step_by_step`."""
    pieces = Segments.of(start)
    features, after = net(inputs.flatten(0, 1), pieces.states(state), pieces.lengths)
    last = [*(pieces.first[1:] - 1), len(pieces.lengths) - 1]
    return features.view(*inputs.shape[:2], -1), after[last]


@pytest.mark.parametrize(("kind", "layers"), KINDS)
@pytest.mark.parametrize(("torso", "space"), [(MLP, VECTOR), (CNN, IMAGE)], ids=["mlp", "cnn"])
def test_sequence_at_once_equals_single_steps_with_resets(
    kind: str, layers: int, torso: Component, space: gym.Space
) -> None:
    net = recurrent_network(kind, layers, torso, space)
    inputs = observations(space, 6, 7)
    if space is IMAGE:
        inputs = torch.from_numpy(net.layout(inputs.flatten(0, 1).numpy())).unflatten(0, (6, 7))
    state = torch.randn(6, net.state_size)
    start = np.random.default_rng(1).random((6, 7)) < 0.3
    start[0], start[1] = False, True
    for ours, expected in zip(
        at_once(net, inputs, state, start), step_by_step(net, inputs, state, start), strict=True
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "layers"), KINDS)
def test_gradients_at_once_equal_those_of_single_steps_with_resets(kind: str, layers: int) -> None:
    inputs, start = observations(VECTOR, 4, 6), np.random.default_rng(2).random((4, 6)) < 0.3
    gradients = []
    for compute in (at_once, step_by_step):
        net = recurrent_network(kind, layers)
        compute(net, inputs, torch.ones(4, net.state_size), start)[0].square().sum().backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_lstm_layer_equals_torch_lstm_cell() -> None:
    net, inputs = recurrent_network("lstm"), observations(VECTOR, 3, 2)
    cell = torch.nn.LSTMCell(8, 5)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in net.core.state_dict().items()})
    carried = torch.randn(3, 5), torch.randn(3, 5)
    features, state = net(inputs[:, 0], torch.cat(carried, dim=1))
    output, cell_state = cell(net.torso(inputs[:, 0]), carried)
    torch.testing.assert_close(features, output)
    torch.testing.assert_close(state, torch.cat([output, cell_state], dim=1))
