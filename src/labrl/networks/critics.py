"""Networks of agents that learn a policy and action values apart from each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.config.component import Component
from labrl.config.types import PositiveInt
from labrl.networks.q_network import Stream
from labrl.networks.spaces import Spaces, is_image


@dataclass(kw_only=True)
class PolicyAndCriticsConfig:
    """Networks of an off-policy actor-critic."""

    torso: Component
    """Of the policy: from observations to features, a labrl torso or any `nn.Module` by `_target_`."""
    critic_torso: Component | None = None
    """Of each critic; null: as the policy's."""
    action_head: list[PositiveInt] = field(default_factory=lambda: [256])
    """Units of a critic's layers after the torso where continuous actions join its features: with images and
    choices as observations. Vectors go into the torso together with the action, and no layer follows."""


class PolicyNetwork(nn.Module):
    """A torso and a linear layer."""

    def __init__(self, torso: Component, observation_space: gym.Space, num_outputs: int) -> None:
        super().__init__()
        self.torso: nn.Module = torso.build(observation_space=observation_space)
        self.layout = getattr(self.torso, "layout", lambda observation: observation)
        num_features = _num_features(self.torso, self.layout, observation_space)
        self.outputs = Stream(num_features, [], num_outputs, None)

    def forward(self, observation: Tensor) -> Tensor:
        """observation: [batch, *obs]. Returns [batch, num_outputs], float32."""
        return self.outputs.forward(self.torso.forward(observation), None)


class Critics(nn.Module):
    """Several action values that share nothing: Q_i(s, a), or Q_i(s, .) where actions are discrete."""

    def __init__(self, config: PolicyAndCriticsConfig, spaces: Spaces, count: int) -> None:
        super().__init__()
        torso, space = config.critic_torso or config.torso, spaces.observation
        self._continuous = isinstance(spaces.action, gym.spaces.Box)
        action_size = math.prod(spaces.action.shape or ())
        self._joint = self._continuous and _is_vector(space)
        if self._joint:
            size = gym.spaces.flatdim(space) + action_size
            space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.torsos = nn.ModuleList([torso.build(observation_space=space) for _ in range(count)])
        self.layout = getattr(self.torsos[0], "layout", lambda observation: observation)
        num_features = _num_features(self.torsos[0], self.layout, space)
        hidden = config.action_head if self._continuous and not self._joint else []
        num_inputs = num_features + (action_size if self._continuous and not self._joint else 0)
        num_outputs = 1 if self._continuous else int(spaces.action.n)  # type: ignore[attr-defined]
        self.heads = nn.ModuleList([Stream(num_inputs, hidden, num_outputs, None) for _ in range(count)])
        self._parts = list(zip(self.torsos, self.heads, strict=True))

    def forward(self, observation: Tensor, action: Tensor, first: bool = False) -> Tensor:
        """Values of the actions taken, [count, batch]; of all actions where they are discrete,
        [count, batch, actions].

        observation: [batch, *obs]; action: continuous ones in [-1, 1], [batch, size], others are not looked
        at; first: of the first critic alone.
        """
        if self._joint:
            observation = torch.cat([observation.flatten(1).float(), action], dim=1)
        values = []
        for torso, head in self._parts[:1] if first else self._parts:
            features = torso(observation)
            if self._continuous and not self._joint:
                features = torch.cat([features, action.to(features.dtype)], dim=1)
            values.append(head.forward(features, None))
        stacked = torch.stack(values)
        return stacked.squeeze(2) if self._continuous else stacked


def _is_vector(space: gym.Space) -> bool:
    """Whether observations are real numbers that an action can stand beside."""
    return (
        isinstance(space, gym.spaces.Box) and not is_image(space) and np.issubdtype(space.dtype, np.floating)
    )


def _num_features(torso: nn.Module, layout: Callable[[NDArray], NDArray], space: gym.Space) -> int:
    """What it makes of an observation; a torso that keeps statistics does not take it in."""
    example = torch.as_tensor(layout(space.sample()[None]))
    torso.eval()
    with torch.no_grad():
        count = int(torso(example).shape[1])
    torso.train()
    return count
