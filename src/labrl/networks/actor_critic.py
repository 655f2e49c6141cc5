"""Policy and value function over one torso or two."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.config.component import Component
from labrl.config.types import PositiveInt
from labrl.networks.compute import in_float32
from labrl.networks.in_numpy import Affine, Chain, InNumpy
from labrl.networks.inputs import build_torso, layout_of, num_features
from labrl.networks.layers import Activation, check_head, orthogonal
from labrl.networks.spaces import Spaces, sees_images
from labrl.networks.torso import MLP, MLPConfig


@dataclass(kw_only=True)
class ActorCriticConfig:
    """Networks of a policy-gradient agent."""

    torso: Component
    """Module from observations to features: a labrl torso or any `nn.Module` by `_target_`."""
    shared: bool | None
    """Whether policy and value function share one torso; null: they do for images only."""
    policy_head: list[PositiveInt]
    """Units of each layer between the torso and the policy's outputs."""
    value_head: list[PositiveInt]
    """Units of each layer between the torso and the value."""
    head_activation: Activation
    """After each of these layers: an activation of torch.nn by its name."""
    head_layer_norm: bool
    """Whether their outputs are normalized before the activation (arXiv:1607.06450)."""

    def __post_init__(self) -> None:
        units = {"policy_head": self.policy_head, "value_head": self.value_head}
        check_head(units, self.head_layer_norm)


def is_shared(config: ActorCriticConfig, spaces: Spaces) -> bool:
    """Whether policy and value function are to have one torso."""
    return sees_images(spaces.observation) if config.shared is None else config.shared


def _layers(units: list[int], num_features: int, config: ActorCriticConfig) -> list[MLP]:
    """The layers of a head before its last, none where there are no units."""
    if not units:
        return []
    layers = MLPConfig(
        hidden=units,
        activation=config.head_activation,
        initialization="orthogonal",
        layer_norm=config.head_layer_norm,
    )
    return [MLP(layers, gym.spaces.Box(-np.inf, np.inf, (num_features,), np.float32))]


class PolicyHead(nn.Module):
    """Features to the parameters of a distribution; a Gaussian's deviations do not depend on the state."""

    def __init__(
        self, num_features: int, num_outputs: int, log_std_init: float | None, config: ActorCriticConfig
    ) -> None:
        super().__init__()
        self.log_std: nn.Parameter | None = None
        if log_std_init is not None:
            num_outputs //= 2
            self.log_std = nn.Parameter(torch.full((1, num_outputs), log_std_init))
        self.hidden = nn.ModuleList(_layers(config.policy_head, num_features, config))
        num_features = [num_features, *config.policy_head][-1]
        # A small gain makes the first policy nearly uniform (Andrychowicz et al., 2021, arXiv:2006.05990).
        self.linear = orthogonal(nn.Linear(num_features, num_outputs), 0.01)

    def layers_in_numpy(self) -> list[Affine] | None:
        """The layers of the policy for a `Chain`; None on a GPU, and where one does more than it can."""
        hidden = [layers.layers_in_numpy() for layers in self.hidden]  # type: ignore[operator]
        if None in hidden or self.linear.weight.device.type != "cpu":
            return None
        return [*chain.from_iterable(hidden), (self.linear.weight, self.linear.bias, None)]

    def forward(self, features: Tensor) -> Tensor:
        """features: [batch, num_features]. Returns parameters [batch, num_outputs], float32."""
        outputs = in_float32(self._outputs, features)
        if self.log_std is None:
            return outputs
        return torch.cat([outputs, self.log_std.expand_as(outputs)], dim=1)

    def _outputs(self, features: Tensor) -> Tensor:
        for layers in self.hidden:
            features = layers.forward(features)
        return self.linear.forward(features)


class ActorCritic(nn.Module):
    """A policy and a state-value function.

    spaces: what it is built for; num_outputs: parameters of the action distribution; log_std_init:
    initial log standard deviation of a Gaussian policy, None for others; has_value: otherwise there is a
    policy alone, and all values are 0.
    """

    def __init__(
        self,
        config: ActorCriticConfig,
        spaces: Spaces,
        num_outputs: int,
        log_std_init: float | None,
        has_value: bool = True,
    ) -> None:
        super().__init__()
        self.has_value = has_value
        self.shared = has_value and is_shared(config, spaces)
        self.policy_torso: nn.Module = build_torso(config.torso, spaces.observation)
        self.value_torso: nn.Module = self.policy_torso
        if has_value and not self.shared:
            self.value_torso = build_torso(config.torso, spaces.observation)
        self.layout = layout_of(self.policy_torso)
        size = num_features(self.policy_torso, spaces.observation)
        self.policy_head = PolicyHead(size, num_outputs, log_std_init, config)
        if has_value:
            hidden = _layers(config.value_head, size, config)
            last = orthogonal(nn.Linear([size, *config.value_head][-1], 1), 1.0)
            self.value_head: nn.Module = nn.Sequential(*hidden, last) if hidden else last

    def policy(self, observation: Tensor) -> Tensor:
        """observation: [batch, *obs]. Returns distribution parameters [batch, num_outputs]."""
        return self.policy_head.forward(self.policy_torso.forward(observation))

    def value(self, observation: Tensor) -> Tensor:
        """observation: [batch, *obs]. Returns state values [batch]."""
        return self._value(self.value_torso.forward(observation))

    def in_numpy(self) -> InNumpy | None:
        """`policy` by NumPy, None where it is more than a chain of layers or not alone on its torso."""
        layers = getattr(self.policy_torso, "layers_in_numpy", lambda: None)()
        head, log_std = self.policy_head.layers_in_numpy(), self.policy_head.log_std
        if layers is None or head is None or self.shared:
            return None
        policy = Chain([*layers, *head])
        if log_std is None:
            return policy
        spread = log_std.detach().numpy()

        def gaussian(observation: NDArray) -> NDArray | None:
            mean = policy(observation)
            return (
                None if mean is None else np.concatenate([mean, np.broadcast_to(spread, mean.shape)], axis=1)
            )

        return gaussian

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Distribution parameters [batch, num_outputs] and values [batch]; a shared torso runs once."""
        # Not `self.policy_torso(...)`: that call asks for hooks, which nobody hangs on, and is as dear
        features = self.policy_torso.forward(observation)
        if not self.has_value:
            parameters = self.policy_head.forward(features)
            return parameters, parameters.new_zeros(len(features))
        value_features = features if self.shared else self.value_torso.forward(observation)
        return self.policy_head.forward(features), self._value(value_features)

    @property
    def state_size(self) -> int:
        """Numbers that torsos with a memory carry for each environment."""
        memory: Any = self.policy_torso
        return int(memory.state_size) * (1 if self.shared else 2)

    def unroll(
        self, observation: Tensor, state: Tensor, lengths: NDArray[np.int64] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `forward`, of torsos with a memory, and the state after each piece.

        observation: of the steps, piece after piece [batch, *obs]; state: before each piece
        [pieces, state_size]; lengths: of the pieces; None: every step is one.
        """
        policy: Any = self.policy_torso
        value: Any = self.value_torso
        size = int(policy.state_size)
        features, after = policy.unroll(observation, state[:, :size], lengths)
        parameters = self.policy_head.forward(features)
        if self.shared:
            return parameters, self._value(features), after
        features, value_after = value.unroll(observation, state[:, size:], lengths)
        return parameters, self._value(features), torch.cat([after, value_after], dim=1)

    def _value(self, features: Tensor) -> Tensor:
        return in_float32(self.value_head.forward, features).squeeze(1)
