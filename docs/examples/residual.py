"""An example network: an nn.Module made from the observation space that returns [batch, features]."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from torch import Tensor, nn


class Residual(nn.Module):
    """Residual blocks for vector observations. The keyword arguments are its options."""

    def __init__(self, observation_space: gym.Space[Any], width: int = 64, blocks: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(gym.spaces.flatdim(observation_space), width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(blocks)
        )

    def forward(self, observation: Tensor) -> Tensor:
        """Compute features. observation: [batch, *obs]. Returns [batch, width]."""
        features = self.first(observation.flatten(1).float())
        for block in self.blocks:
            features = features + block(features)
        return features
