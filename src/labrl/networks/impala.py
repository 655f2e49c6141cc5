"""Residual network of IMPALA for images (Espeholt et al., 2018, arXiv:1802.01561, figure 3, right)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import gymnasium as gym
from pydantic import Field
from torch import Tensor, nn

from labrl.networks.layers import Activation, Initialization, activation_layer, initialize
from labrl.networks.torso import ImageTorso, PixelConvolution
from labrl.types import PositiveInt


@dataclass(kw_only=True)
class ImpalaCNNConfig:
    """Residual network for images (Espeholt et al., 2018, arXiv:1802.01561).

    Each section consists of a convolution, a pooling layer that halves height and width, and two residual
    blocks.
    """

    channels: Annotated[list[PositiveInt], Field(min_length=1)]
    """Number of channels in each section."""
    features: PositiveInt | None
    """Number of units in the fully connected layer after the sections; null: no such layer, if the heads have
    hidden layers of their own."""
    activation: Activation
    """Activation in the residual blocks, after the last section and after the fully connected layer, by its
    name in torch.nn."""
    initialization: Initialization
    """Initialization of the weights; residual blocks begin as the identity."""


class Residual(nn.Module):
    """Residual block x + conv(activation(conv(activation(x))))."""

    def __init__(self, channels: int, kind: Initialization, between: Activation = "ReLU") -> None:
        super().__init__()
        self.activate: nn.Module = vars(nn)[between]()  # not in place: x is added
        self.first = initialize(nn.Conv2d(channels, channels, 3, padding=1), kind)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        for zero in (self.second.weight, self.second.bias):
            nn.init.zeros_(zero)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output. [batch, channels, h, w] -> [batch, channels, h, w]"""
        return x + self.second(self.activate(self.first(self.activate(x))))


class ImpalaCNN(ImageTorso):
    """Residual network that is deeper than the Nature CNN. It learns more from each frame, but is slower."""

    Config = ImpalaCNNConfig
    smallest = 16

    def __init__(self, config: ImpalaCNNConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__(config, observation_space)
        height, width, _ = self.image_shape
        kind, between = config.initialization, config.activation
        first = PixelConvolution(observation_space, config.channels[0], 3, padding=1)
        others = pairwise(config.channels)
        self.convolutions = nn.ModuleList([initialize(first, kind)])
        self.convolutions.extend(
            initialize(nn.Conv2d(before, after, 3, padding=1), kind) for before, after in others
        )
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.MaxPool2d(3, stride=2, padding=1), Residual(n, kind, between), Residual(n, kind, between)
            )
            for n in config.channels
        )
        for _ in config.channels:
            height, width = (height + 1) // 2, (width + 1) // 2
        self.activate = activation_layer(between)
        self.linear: nn.Module = nn.Identity()
        if config.features is not None:
            flat = height * width * config.channels[-1]
            self.linear = nn.Sequential(
                initialize(nn.Linear(flat, config.features), kind), activation_layer(between)
            )

    def forward(self, observation: Tensor) -> Tensor:
        """Return features, [batch, features]. observation: [batch, height, width, channels]"""
        x = observation
        for convolution, block in zip(self.convolutions, self.blocks, strict=True):
            x = block(convolution(x))
        return self.linear(self.activate(x).flatten(1))
