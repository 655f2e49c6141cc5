"""Tests of faster bfloat16: weights rounded once for all workers."""

from __future__ import annotations

import copy
from dataclasses import replace
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
    autocast,
    compute,
    gradients,
    mean_loss,
    reference,
    without_amx,  # noqa: F401
)
from options import options
from torch import Tensor, nn
from torch.nn.utils import parametrize

from labrl.learning.learner import Learner
from labrl.learning.make import make_learner
from labrl.learning.sliced import MIN_MATRIX_SIZE, RoundedWeights
from labrl.networks.layers import Float32Linear
from labrl.networks.torso import NatureCNN, NatureCNNConfig
from labrl.spaces import Spaces

pytestmark = pytest.mark.usefixtures("without_amx")
SPACE = gym.spaces.Box(0, 255, (4, 44, 36), np.uint8)
ROWS = Rows(torch.from_numpy(np.random.default_rng(0).integers(0, 256, (36, 44, 36, 4), np.uint8)))
IMAGES_OF_ROWS = ROWS.inputs.numpy()
LARGE = options("agent.network.torso", "agent/network=nature_cnn", features=2048)
"""A Nature CNN whose weights are large."""
ROWS_PER_CALL: list[int] = []
"""Number of rows of each forward pass of an ImageNetwork."""


class ImageNetwork(nn.Module):
    """Network of two outputs on a Nature CNN that records the rows of each forward pass."""

    def __init__(self, config: NatureCNNConfig = LARGE, space: gym.spaces.Box = SPACE) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.torso = NatureCNN(config, space)
        for layer in self.torso.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.normal_(layer.bias, std=0.1)  # a zero bias would hide that it is left out
        with torch.no_grad():
            self.output = Float32Linear(self.torso(torch.zeros(1, 44, 36, 4)).shape[1], 2)

    def forward(self, x: Tensor) -> Tensor:
        ROWS_PER_CALL.append(len(x))
        return self.output(self.torso(x))


def learner_of(network: nn.Module, num_workers: int = 1) -> Learner[Any]:
    ROWS_PER_CALL.clear()
    return make_learner(
        network, Spaces(SPACE, gym.spaces.Discrete(2), 4), compute(num_workers, torch.bfloat16), ADAM
    )


def autocast_output(network: nn.Module) -> Tensor:
    with torch.no_grad(), autocast():
        return network(ROWS.inputs).float()


def assert_close(found: Any, expected: Tensor) -> None:
    tensor = torch.as_tensor(found).float()
    torch.testing.assert_close(tensor, expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))


def test_rounded_weights_equal_autocast_bit_for_bit() -> None:
    learner = learner_of(ImageNetwork())
    for _ in range(3):  # the weights change after each pass
        expected, means = reference(learner.network, ROWS, autocast())
        assert np.array_equal(learner.forward(IMAGES_OF_ROWS), autocast_output(learner.network))
        assert torch.equal(learner.gradient(mean_loss, ROWS), means)
        found = gradients(learner)
        assert all(each.dtype == torch.float32 for each in (*found, *learner.network.parameters()))
        assert all(map(torch.equal, found, expected))
        learner.step(0.01)
    learner.close()


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_the_weights_takes_effect(change: Any, num_workers: int) -> None:
    learner = learner_of(ImageNetwork(), num_workers)
    first = learner.forward(IMAGES_OF_ROWS)
    learner.gradient(mean_loss, ROWS)
    change(learner, ROWS)
    output = learner.forward(IMAGES_OF_ROWS)
    assert not np.array_equal(output, first)
    assert_close(output, autocast_output(learner.network))
    expected, _ = reference(learner.network, ROWS, autocast())
    learner.gradient(mean_loss, ROWS)
    for found, gradient in zip(gradients(learner), expected, strict=True):
        assert_close(found, gradient)
    learner.close()


def test_copies_share_the_large_rounded_weights_of_image_torsos() -> None:
    network = ImageNetwork()
    rounded, copies = RoundedWeights(network), [copy.deepcopy(network) for _ in range(2)]
    assert rounded
    for each in copies:
        rounded.give_to(each)
    large = [each.torso.linear[0].weight for each in copies]  # type: ignore[index]
    assert large[0].dtype == torch.bfloat16
    assert large[0].data_ptr() == large[1].data_ptr()
    others = [weight.dtype for weight in copies[0].parameters() if weight.numel() < MIN_MATRIX_SIZE]
    assert set(others) == {torch.float32}
    assert not rounded.is_stale
    with torch.no_grad():
        network.torso.linear[0].weight.mul_(1.5)  # type: ignore[index]
    assert rounded.is_stale
    rounded.refresh()
    assert torch.equal(large[0], network.torso.linear[0].weight.to(torch.bfloat16))  # type: ignore[index]
    assert not RoundedWeights(ImageNetwork(replace(LARGE, features=3)))


class Exact(nn.Module):
    """User-defined network with one large layer that computes in float32 and one that may be rounded."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.torso = NatureCNN(LARGE, SPACE)
        self.large = nn.Linear(2048, MIN_MATRIX_SIZE // 2048)

    def forward(self, x: Tensor) -> Tensor:
        features = self.torso(x)
        with torch.autocast("cpu", enabled=False):
            return self.large(features.float())


def test_weights_used_in_float32_are_not_rounded() -> None:
    learner = learner_of(Exact())
    expected, _ = reference(learner.network, ROWS, autocast())
    learner.gradient(mean_loss, ROWS)
    assert all(map(torch.equal, gradients(learner), expected))
    assert np.array_equal(learner.forward(IMAGES_OF_ROWS), autocast_output(learner.network))
    learner.close()


@pytest.mark.parametrize(("size", "slices"), [(1, 1), (16, 1), (31, 1), (32, 2), (36, 2)])
def test_small_minibatches_are_computed_by_one_worker(size: int, slices: int) -> None:
    learner = learner_of(ImageNetwork(), 2)
    learner.forward(IMAGES_OF_ROWS[:size])
    assert len(ROWS_PER_CALL) == slices
    assert sum(ROWS_PER_CALL) == size
    learner.close()


def test_hooks_and_parametrizations_added_later_take_effect() -> None:
    learner = learner_of(ImageNetwork(), 2)
    network = learner.network
    before = learner.forward(IMAGES_OF_ROWS)
    calls: list[int] = []

    def halved(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        calls.append(len(output))
        return output / 2

    hook = network.torso.linear.register_forward_hook(halved)
    for doubled in (False, True):
        calls.clear()
        if doubled:
            parametrize.register_parametrization(network.torso.convolutions[1], "weight", Doubled())
        assert np.array_equal(learner.forward(IMAGES_OF_ROWS), autocast_output(network))
        expected, means = reference(network, ROWS, autocast())
        calls_before = len(calls)
        assert torch.equal(learner.gradient(mean_loss, ROWS), means)
        assert calls[calls_before:] == [len(ROWS)]
        assert all(map(torch.equal, gradients(learner), expected))
    parametrize.remove_parametrizations(network.torso.convolutions[1], "weight", leave_parametrized=False)
    hook.remove()
    assert np.array_equal(learner.forward(IMAGES_OF_ROWS), before)
    learner.close()
