"""A network of one's own: any nn.Module that takes the observation space and gives [batch, features]."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from torch import Tensor, nn


class Residual(nn.Module):
    """Residual blocks over a vector observation; its options are the keyword arguments."""

    def __init__(self, observation_space: gym.Space[Any], width: int = 64, blocks: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(gym.spaces.flatdim(observation_space), width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(blocks)
        )

    def forward(self, observation: Tensor) -> Tensor:
        """observation: [batch, *obs]. Returns [batch, width]."""
        features = self.first(observation.flatten(1).float())
        for block in self.blocks:
            features = features + block(features)
        return features
