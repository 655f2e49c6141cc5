"""Tests of faster bfloat16: weights rounded once for all workers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from learner_cases import (
    ADAM,
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

from labrl.learning.learner import Learner
from labrl.learning.make import make_learner
from labrl.learning.sliced import MIN_MATRIX_SIZE
from labrl.networks.layers import Float32Linear
from labrl.networks.torso import NatureCNN
from labrl.spaces import Spaces

pytestmark = pytest.mark.usefixtures("without_amx")
SPACE = gym.spaces.Box(0, 255, (4, 44, 36), np.uint8)
ROWS = Rows(torch.from_numpy(np.random.default_rng(0).integers(0, 256, (36, 44, 36, 4), np.uint8)))
IMAGES_OF_ROWS = ROWS.inputs.numpy()
LARGE = options("agent.network.torso", "agent/network=nature_cnn", features=2048)
"""A Nature CNN whose weights are large."""


class ImageNetwork(nn.Module):
    """Network of two outputs on a Nature CNN."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.torso = NatureCNN(LARGE, SPACE)
        for layer in self.torso.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.normal_(layer.bias, std=0.1)  # a zero bias would hide that it is left out
        with torch.no_grad():
            self.output = Float32Linear(self.torso(torch.zeros(1, 44, 36, 4)).shape[1], 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.torso(x))


def learner_of(network: nn.Module, num_workers: int = 1) -> Learner[Any]:
    return make_learner(
        network, Spaces(SPACE, gym.spaces.Discrete(2), 4), compute(num_workers, torch.bfloat16), ADAM
    )


def autocast_output(network: nn.Module) -> Tensor:
    with torch.no_grad(), autocast():
        return network(ROWS.inputs).float()


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
