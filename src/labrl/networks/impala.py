"""The residual network of IMPALA for images (Espeholt et al., 2018, arXiv:1802.01561, figure 3, right)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from labrl.config.types import PositiveInt
from labrl.networks.torso import ImageTorso, Initialization, image_shape, initialized


@dataclass(kw_only=True)
class ImpalaCNNConfig:
    """Sections of a convolution, a pooling and two residual blocks, each halving height and width."""

    channels: list[PositiveInt] = field(default_factory=lambda: [16, 32, 32])
    """Maps of each section."""
    features: PositiveInt | None = 256
    """Units of the fully connected layer after the sections; null: none, for a head that has its own."""
    initialization: Initialization = "orthogonal"
    """How weights begin; residual blocks begin as the identity."""


class Residual(nn.Module):
    """x + conv(ReLU(conv(ReLU(x))))."""

    def __init__(self, channels: int, kind: Initialization) -> None:
        super().__init__()
        self.first = initialized(nn.Conv2d(channels, channels, 3, padding=1), kind)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        for zero in (self.second.weight, self.second.bias):
            nn.init.zeros_(zero)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, h, w] -> the same shape."""
        return x + self.second(torch.relu(self.first(torch.relu(x))))


class ImpalaCNN(ImageTorso):
    """Deeper than the Nature CNN: several times the work for each frame, and more learned from it."""

    Config = ImpalaCNNConfig
    smallest = 16

    def __init__(self, config: ImpalaCNNConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self.check(config, observation_space)
        height, width, channels, self.channels_first = image_shape(observation_space)
        kind = config.initialization
        sizes = [channels, *config.channels]
        self.convolutions = nn.ModuleList(
            initialized(nn.Conv2d(before, after, 3, padding=1), kind) for before, after in pairwise(sizes)
        )
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(3, stride=2, padding=1), Residual(n, kind), Residual(n, kind))
            for n in config.channels
        )
        for _ in config.channels:
            height, width = (height + 1) // 2, (width + 1) // 2
        self.linear: nn.Module = nn.Identity()
        if config.features is not None:
            flat = height * width * config.channels[-1]
            self.linear = nn.Sequential(initialized(nn.Linear(flat, config.features), kind), nn.ReLU())

    def forward(self, observation: Tensor) -> Tensor:
        """observation: as `layout` makes it, [batch, height, width, channels]. Returns [batch, features]."""
        first, *others = self.convolutions
        assert isinstance(first, nn.Conv2d)
        x = self.blocks[0](self.first_convolution(first, observation))
        for convolution, block in zip(others, list(self.blocks)[1:], strict=True):
            x = block(convolution(x))
        return self.linear(torch.relu(x).flatten(1))
