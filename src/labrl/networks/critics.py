"""Networks of agents that learn a policy and action values apart from each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from labrl.config.component import Component
from labrl.config.types import PositiveInt
from labrl.networks.inputs import build_torso, layout_of, num_features, vector_space
from labrl.networks.q_network import Stream
from labrl.networks.spaces import Spaces, is_image
from labrl.networks.torso import MLP, vectors


@dataclass(kw_only=True)
class PolicyAndCriticsConfig:
    """Networks of an off-policy actor-critic."""

    torso: Component
    """Of the policy: from observations to features, a labrl torso or any `nn.Module` by `_target_`."""
    critic_torso: Component | None
    """Of each critic; null: as the policy's."""
    action_head: list[PositiveInt]
    """Units of a critic's layers after the torso where continuous actions join its features: with images and
    choices as observations. Vectors go into the torso together with the action, and no layer follows."""


class PolicyNetwork(nn.Module):
    """A torso and a linear layer."""

    def __init__(self, torso: Component, observation_space: gym.Space, num_outputs: int) -> None:
        super().__init__()
        self.torso: nn.Module = build_torso(torso, observation_space)
        self.layout = layout_of(self.torso)
        size = num_features(self.torso, observation_space)
        self.outputs = Stream(size, [], num_outputs)

    def forward(self, observation: Tensor) -> Tensor:
        """observation: [batch, *obs]. Returns [batch, num_outputs], float32."""
        return self.outputs.forward(self.torso.forward(observation), None)


class Perceptrons(nn.Module):
    """Perceptrons of the same shape side by side, each layer of all of them one product."""

    def __init__(self, perceptrons: list[list[nn.Linear]], activate: Callable[[Tensor], Tensor]) -> None:
        """perceptrons: the layers of each, whose weights are taken over; activate: between layers."""
        super().__init__()
        self._activate = activate
        layers = list(zip(*perceptrons, strict=True))
        with torch.no_grad():
            weights = [torch.stack([part.weight.T for part in layer]).contiguous() for layer in layers]
            biases = [torch.stack([part.bias for part in layer]).unsqueeze(1) for layer in layers]
        self.weights = nn.ParameterList(weights)
        """Of each layer, [perceptrons, inputs, outputs]."""
        self.biases = nn.ParameterList(biases)
        """Of each layer, [perceptrons, 1, outputs]."""
        # The same without look-ups, as dear as a small product.
        self._layers = list(zip(self.weights, self.biases, strict=True))

    def forward(self, x: Tensor, first: bool = False) -> Tensor:
        """x: [batch, inputs]; first: by the first perceptron alone. Returns [perceptrons, batch, outputs]."""
        count = 1 if first else len(self._layers[0][0])
        x = x.expand(count, *x.shape)
        last = len(self._layers) - 1
        for i, (weight, bias) in enumerate(self._layers):
            if first:
                weight, bias = weight[:1], bias[:1]
            if i == last and weight.shape[2] == 1:
                # A product with one column, and its gradient, take twice as long as this.
                return torch.add((x * weight.mT).sum(2, keepdim=True), bias)
            x = torch.baddbmm(bias, x, weight)
            if i < last:
                x = self._activate(x)
        return x


class Critics(nn.Module):
    """Several action values that share nothing: Q_i(s, a), or Q_i(s, .) where actions are discrete."""

    def __init__(self, config: PolicyAndCriticsConfig, spaces: Spaces, count: int) -> None:
        super().__init__()
        torso, space = config.critic_torso or config.torso, vector_space(spaces.observation)
        self._continuous = isinstance(spaces.action, gym.spaces.Box)
        action_size = math.prod(spaces.action.shape or ()) if self._continuous else 0
        self._joint = self._continuous and _is_vector(space)
        if self._joint:
            size = gym.spaces.flatdim(space) + action_size
            space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        torsos: list[Any] = [build_torso(torso, space) for _ in range(count)]
        self.layout = layout_of(torsos[0])
        num_inputs, hidden = num_features(torsos[0], space), []
        if self._continuous and not self._joint:
            num_inputs, hidden = num_inputs + action_size, config.action_head
        num_outputs = 1 if self._continuous else int(spaces.action.n)  # type: ignore[attr-defined]
        heads = [Stream(num_inputs, hidden, num_outputs) for _ in range(count)]
        self.perceptrons: Perceptrons | None = None
        if _is_vector(space) and all(type(part) is MLP and not part.norms for part in torsos):
            layers = [[*t.layers, *h.layers] for t, h in zip(torsos, heads, strict=True)]
            self.perceptrons = Perceptrons(layers, torsos[0].activate)
            return
        self.torsos, self.heads = nn.ModuleList(torsos), nn.ModuleList(heads)
        self._parts = list(zip(torsos, heads, strict=True))

    def forward(self, observation: Tensor, action: Tensor, first: bool = False) -> Tensor:
        """Values of the actions taken, [critics, batch]; of all actions where they are discrete,
        [critics, batch, actions].

        observation: [batch, *obs]; action: continuous ones in [-1, 1], [batch, size], others are not looked
        at; first: of the first critic alone.
        """
        if self._joint:
            observation = torch.cat([vectors(observation, []), action], dim=1)
        if self.perceptrons is not None:
            values = self.perceptrons.forward(observation if self._joint else vectors(observation, []), first)
        else:
            parts = self._parts[:1] if first else self._parts
            values = torch.stack([self._values(torso, head, observation, action) for torso, head in parts])
        return values.squeeze(2) if self._continuous else values

    def _values(self, torso: nn.Module, head: Stream, observation: Tensor, action: Tensor) -> Tensor:
        """Of one critic. [batch, outputs]"""
        features = torso(observation)
        if self._continuous and not self._joint:
            features = torch.cat([features, action.to(features.dtype)], dim=1)
        return head.forward(features, None)


def _is_vector(space: gym.Space) -> bool:
    """Whether observations are real numbers that an action can stand beside."""
    return (
        isinstance(space, gym.spaces.Box) and not is_image(space) and np.issubdtype(space.dtype, np.floating)
    )
