"""Networks of agents whose policy and critics are separate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from labrl.component import Component
from labrl.networks.building import build_torso
from labrl.networks.layers import ExploringHead, Float32Linear, activation_layer, numbers, vector_space
from labrl.networks.q_network import Stream
from labrl.networks.torso import MLP, AutoTorso
from labrl.spaces import Spaces, is_vector
from labrl.types import PositiveInt


@dataclass(kw_only=True)
class PolicyAndCriticsConfig:
    """Networks of an off-policy actor-critic."""

    torso: Component
    """Torso of the policy, which maps observations to features: a labrl torso, or any `nn.Module` named by
    `_target_`."""
    critic_torso: Component | None
    """Torso of each critic; null: a torso with the same settings as the policy's."""
    action_head: list[PositiveInt]
    """Number of units in each layer between a critic's torso and its output. If observations are images or
    discrete, continuous actions are appended to the torso's features. If observations are vectors, the action
    is an input of the torso, and there are no such layers."""


class PolicyNetwork(nn.Module):
    """A torso followed by a linear layer, or by a head with state-dependent exploration."""

    outputs: nn.Module

    def __init__(
        self,
        torso: Component,
        observation_space: gym.Space,
        num_outputs: int,
        log_std_init: float | None = None,
    ) -> None:
        """log_std_init: initial log standard deviation of state-dependent exploration; None: no such
        exploration.
        """
        super().__init__()
        self.torso = build_torso(torso, observation_space)
        self.layout = self.torso.layout
        size, self._explores = self.torso.num_features, log_std_init is not None
        if log_std_init is None:
            self.outputs = Float32Linear(size, num_outputs)
        else:
            self.outputs = ExploringHead([], Float32Linear(size, num_outputs // 2), log_std_init)

    def forward(self, observation: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return outputs in float32, [batch, num_outputs].

        observation: [batch, *obs]; noise: eps of an ExploringHead, [batch, features, size].
        """
        features = self.torso(observation)
        return self.outputs(features, noise) if self._explores else self.outputs(features)


class Perceptrons(nn.Module):
    """Several perceptrons of the same shape. Each layer of all of them is computed as one batched product."""

    def __init__(self, perceptrons: list[list[nn.Linear]], activate: nn.Module) -> None:
        """perceptrons: the layers of each perceptron; their weights are copied; activate: activation between
        layers.
        """
        super().__init__()
        self.activate = activate
        layers = list(zip(*perceptrons, strict=True))
        self._count, self._last, self._single = (
            len(perceptrons),
            len(layers) - 1,
            layers[-1][0].out_features == 1,
        )
        with torch.no_grad():
            weights = [torch.stack([part.weight.T for part in layer]).contiguous() for layer in layers]
            biases = [torch.stack([part.bias for part in layer]).unsqueeze(1) for layer in layers]
        self.weights = nn.ParameterList(weights)
        """Weights of each layer, [perceptrons, inputs, outputs]."""
        self.biases = nn.ParameterList(biases)
        """Biases of each layer, [perceptrons, 1, outputs]."""

    def forward(self, x: Tensor, first: bool = False) -> Tensor:
        """Compute all perceptrons. Returns [perceptrons, batch, outputs].

        x: [batch, inputs]; first: whether to compute only the first perceptron.
        """
        x = x.expand(1 if first else self._count, -1, -1)
        for i in range(self._last + 1):  # torch.compile of PyTorch 2.8 cannot follow zip() of these lists
            weight, bias = self.weights[i], self.biases[i]
            if first:
                weight, bias = weight[:1], bias[:1]
            if i == self._last and self._single:
                # This takes half the time of a matrix product with one column, including the gradient.
                return torch.add((x * weight.mT).sum(2, keepdim=True), bias)
            x = torch.baddbmm(bias, x, weight)
            if i < self._last:
                x = self.activate(x)
        return x


class Critics(nn.Module):
    """Several independent action-value functions Q_i(s, a), or Q_i(s, .) for discrete actions."""

    def __init__(
        self, config: PolicyAndCriticsConfig, spaces: Spaces, count: int, num_outputs: int = 1
    ) -> None:
        """count: number of critics; num_outputs: number of outputs of each critic for a continuous action."""
        super().__init__()
        torso, space = config.critic_torso or config.torso, vector_space(spaces.observation)
        self.continuous = isinstance(spaces.action, gym.spaces.Box)
        self.action_size = math.prod(spaces.action.shape or ()) if self.continuous else 0
        """Number of components of a continuous action, 0 for discrete actions."""
        self.joint = self.continuous and is_vector(space)
        if self.joint:
            size = gym.spaces.flatdim(space) + self.action_size
            space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        torsos: list[Any] = [build_torso(torso, space) for _ in range(count)]
        self.layout = torsos[0].layout
        num_inputs, hidden = torsos[0].num_features, []
        if self.continuous and not self.joint:
            num_inputs, hidden = num_inputs + self.action_size, config.action_head
        self.scalar = self.continuous and num_outputs == 1
        """Whether each critic has a single output for an action."""
        if not self.continuous:
            num_outputs = int(spaces.action.n)  # type: ignore[attr-defined]
        heads = [Stream(num_inputs, hidden, num_outputs) for _ in range(count)]
        self.perceptrons: Perceptrons | None = None
        reads_numbers = is_vector(space)
        self.numbers = nn.Sequential(*numbers(vector_space(spaces.observation)) if reads_numbers else [])
        mlps: list[Any] = [torso[0] if type(torso) is AutoTorso else torso for torso in torsos]
        if reads_numbers and all(type(mlp) is MLP and not mlp.layer_norm for mlp in mlps):
            linear = [[layer for layer in mlp if isinstance(layer, nn.Linear)] for mlp in mlps]
            layers = [[*own, *head.layers] for own, head in zip(linear, heads, strict=True)]
            self.perceptrons = Perceptrons(layers, activation_layer(mlps[0].activation))
            return
        self.torsos, self.heads = nn.ModuleList(torsos), nn.ModuleList(heads)

    def forward(self, observation: Tensor, action: Tensor, first: bool = False) -> Tensor:
        """Compute the values of actions.

        observation: [batch, *obs]; action: continuous actions in [-1, 1], [batch, size]; discrete actions are
        ignored; first: whether to compute only the first critic. Returns values of the given actions,
        [critics, batch], or [critics, batch, num_outputs] with several outputs; if actions are discrete, the
        values of all actions, [critics, batch, actions].
        """
        if self.joint:
            observation = torch.cat([self.numbers(observation), action], dim=1)
        if self.perceptrons is not None:
            values = self.perceptrons(observation if self.joint else self.numbers(observation), first)
        else:
            of_critics = []
            for torso, head in list(zip(self.torsos, self.heads, strict=True))[: 1 if first else None]:
                features = torso(observation)
                if self.continuous and not self.joint:
                    features = torch.cat([features, action.to(features.dtype)], dim=1)
                of_critics.append(head(features))
            values = torch.stack(of_critics)
        return values.squeeze(2) if self.scalar else values
