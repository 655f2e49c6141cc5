"""Policy and value function with one shared torso or a torso each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.component import Component
from labrl.networks.building import build_torso
from labrl.networks.layers import (
    Activation,
    ExploringHead,
    Float32Linear,
    initialize,
    orthogonal,
    with_activations,
)
from labrl.spaces import Spaces, sees_images
from labrl.types import PositiveInt


@dataclass(kw_only=True)
class ActorCriticConfig:
    """Networks of a policy-gradient agent."""

    torso: Component
    """Module that maps observations to features: a labrl torso, or any `nn.Module` named by `_target_`."""
    shared: bool | None
    """Whether policy and value function share one torso; null: only for images."""
    policy_head: list[PositiveInt]
    """Number of units in each layer between the torso and the policy's outputs."""
    value_head: list[PositiveInt]
    """Number of units in each layer between the torso and the value."""
    head_activation: Activation
    """Activation after each layer of the heads, by its name in torch.nn."""
    head_layer_norm: bool
    """Whether the outputs of the heads' layers are normalized before the activation (arXiv:1607.06450)."""


def is_shared(config: ActorCriticConfig, spaces: Spaces) -> bool:
    """Return whether policy and value function share one torso."""
    return sees_images(spaces.observation) if config.shared is None else config.shared


def _head(units: list[int], num_features: int, config: ActorCriticConfig) -> list[nn.Module]:
    """Return all layers of a head except the last one; they compute in float32."""
    layers = [initialize(Float32Linear(a, b), "orthogonal") for a, b in pairwise([num_features, *units])]
    return with_activations(layers, config.head_activation, config.head_layer_norm)


class GaussianHead(nn.Sequential):
    """Maps features to the parameters of a Gaussian whose standard deviations do not depend on the state."""

    def __init__(self, layers: list[nn.Module], log_std: Tensor) -> None:
        """log_std: initial log standard deviations, [1, size]."""
        super().__init__(*layers)
        self.log_std = nn.Parameter(log_std)

    def forward(self, features: Tensor) -> Tensor:
        """Return means and log standard deviations in float32, [batch, 2 size].

        features: [batch, num_features].
        """
        means = super().forward(features)
        return torch.cat([means, self.log_std.expand_as(means)], dim=1)


class ActorCriticOutput(NamedTuple):
    """Result of an ActorCritic for a batch of observations."""

    parameters: Tensor | None
    """Parameters of the action distribution, [batch, num_outputs], float32; None if not requested."""
    value: Tensor | None
    """Values of the states, [batch], float32; None if not requested."""
    state: Tensor | None
    """Recurrent state after each segment, [segments, state_size]; unchanged if the network is not
    recurrent."""


class ActorCritic(nn.Module):
    """A policy and a state-value function.

    num_outputs: number of parameters of the action distribution; log_std_init: initial log standard deviation
    of a Gaussian policy, None for other policies; has_value: whether there is a value function; without one,
    all values are 0; explores: whether the noise of the policy depends on the state.
    """

    def __init__(
        self,
        config: ActorCriticConfig,
        spaces: Spaces,
        num_outputs: int,
        log_std_init: float | None,
        has_value: bool = True,
        explores: bool = False,
    ) -> None:
        super().__init__()
        self.has_value, self._explores = has_value, explores
        self.shared = has_value and is_shared(config, spaces)
        self.policy_torso = build_torso(config.torso, spaces.observation)
        self.value_torso = self.policy_torso
        if has_value and not self.shared:
            self.value_torso = build_torso(config.torso, spaces.observation)
        self.one_torso = self.value_torso is self.policy_torso
        self.layout = self.policy_torso.layout
        self.state_size = self.policy_torso.state_size * (1 if self.one_torso else 2)
        """Size of the recurrent state of each environment, 0 if there is none."""
        size = self.policy_torso.num_features
        num_outputs = num_outputs if log_std_init is None else num_outputs // 2
        hidden = _head(config.policy_head, size, config)
        # A small gain makes the first policy nearly uniform (Andrychowicz et al., 2021, arXiv:2006.05990).
        last = orthogonal(Float32Linear([size, *config.policy_head][-1], num_outputs), 0.01)
        self.policy_head: nn.Sequential = nn.Sequential(*hidden, last)
        if log_std_init is not None and explores:
            self.policy_head = ExploringHead(hidden, last, log_std_init)
        elif log_std_init is not None:
            self.policy_head = GaussianHead([*hidden, last], torch.full((1, num_outputs), log_std_init))
        if has_value:
            hidden = _head(config.value_head, size, config)
            last = orthogonal(Float32Linear([size, *config.value_head][-1], 1), 1.0)
            self.value_head = nn.Sequential(*hidden, last)

    def forward(
        self,
        observation: Tensor,
        state: Tensor | None = None,
        lengths: NDArray[np.int64] | None = None,
        noise: Tensor | None = None,
        *,
        policy: bool = True,
        value: bool = True,
    ) -> ActorCriticOutput:
        """Compute distribution parameters and values. A shared torso is computed only once.

        observation: observations of steps, segment after segment, [batch, *obs]; state: recurrent state
        before each segment, [segments, state_size], None for the initial state; lengths: lengths of the
        segments, None if every step is a segment; noise: eps of an ExploringHead, [batch, features, size],
        None to compute only the parameters of its Gaussian; policy: whether to compute the parameters; value:
        whether to compute the values.
        """
        if self.state_size and self.one_torso:
            features, state = self.policy_torso(observation, state, lengths)
            value_features = features
        elif self.state_size:  # compute both torsos, so that the state of each advances
            of_policy, of_value = None, None
            if state is not None:
                of_policy, of_value = state.tensor_split((self.policy_torso.state_size,), 1)
            features, of_policy = self.policy_torso(observation, of_policy, lengths)
            value_features, of_value = self.value_torso(observation, of_value, lengths)
            state = torch.cat([of_policy, of_value], dim=1)
        else:
            features = self.policy_torso(observation) if policy or self.one_torso else observation
            value_features = self.value_torso(observation) if value and not self.one_torso else features
        parameters = None
        if policy:
            parameters = self.policy_head(features, noise) if self._explores else self.policy_head(features)
        if not value:
            return ActorCriticOutput(parameters, None, state)
        if self.has_value:
            return ActorCriticOutput(parameters, self.value_head(value_features).squeeze(1), state)
        return ActorCriticOutput(
            parameters, torch.zeros_like(value_features[:, 0], dtype=torch.float32), state
        )
