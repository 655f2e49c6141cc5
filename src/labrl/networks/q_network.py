"""Q network: a torso followed by fully connected layers, optionally dueling or noisy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.component import Component
from labrl.networks.building import build_torso
from labrl.networks.layers import (
    Activation,
    Float32Linear,
    NoisyLinear,
    activation_layer,
    in_float32,
)
from labrl.spaces import Spaces
from labrl.types import PositiveFloat, PositiveInt


@dataclass(kw_only=True)
class QNetworkConfig:
    """Network of an agent that learns action values."""

    torso: Component
    """Module that maps observations to features: a labrl torso, or any `nn.Module` named by `_target_`."""
    head: list[PositiveInt]
    """Number of units in each layer between torso and outputs, in both streams if the network is dueling."""
    head_activation: Activation
    """Activation after each layer of the head, by its name in torch.nn."""
    head_layer_norm: bool
    """Whether the outputs of the head's layers are normalized before the activation (arXiv:1607.06450)."""
    dueling: bool
    """Whether separate streams compute the value of the state and the advantages of the actions."""
    noisy: PositiveFloat | None
    """Initial magnitude of the noise in the layers after the torso, sigma_0, > 0, 0.5 in the paper
    (arXiv:1706.10295); null: no noise."""


class Stream(nn.Module):
    """Fully connected layers with activations between them. The last one computes in float32."""

    def __init__(
        self,
        num_inputs: int,
        hidden: list[int],
        num_outputs: int,
        noisy: float | None = None,
        between: Activation = "ReLU",
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        sizes = list(pairwise([num_inputs, *hidden, num_outputs]))
        self.num_noise = sum(inputs + outputs for inputs, outputs in sizes) if noisy is not None else 0
        """Number of noise variables of all layers."""
        self.layers = nn.ModuleList()
        for size in sizes:
            plain = Float32Linear if size is sizes[-1] else nn.Linear
            self.layers.append(plain(*size) if noisy is None else NoisyLinear(*size, noisy))
        self.norms = nn.ModuleList(nn.LayerNorm(n) for n in hidden if layer_norm)
        self.activations = nn.ModuleList(activation_layer(between) for _ in hidden)

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Compute all layers. Returns [batch, num_outputs].

        x: features, [batch, num_inputs]; noise: [num_noise] or [batch, num_noise], None for no noise.
        """
        *hidden, last = self.layers
        for i, layer in enumerate(hidden):
            if noise is None:
                x = layer(x)
            else:
                x = layer(x, noise[..., : layer.num_noise])
                noise = noise[..., layer.num_noise :]
            x = self.activations[i](self.norms[i](x) if len(self.norms) else x)
        if not self.num_noise:
            return last(x)
        return in_float32(last, x, None if noise is None else noise[..., : last.num_noise])


class QOutput(NamedTuple):
    """Result of a QNetwork for a batch of observations."""

    outputs: Tensor
    """Outputs for each action, [batch, actions, outputs], float32."""
    state: Tensor | None
    """Recurrent state after each segment, [segments, state_size]; unchanged if the network is not
    recurrent."""


class QNetwork(nn.Module):
    """Network with outputs for each action, from which the agent's `value` computes expected returns.

    num_outputs: number of outputs for each action.
    """

    def __init__(self, config: QNetworkConfig, spaces: Spaces, num_actions: int, num_outputs: int) -> None:
        super().__init__()
        self.torso = build_torso(config.torso, spaces.observation)
        self.layout, self.state_size = self.torso.layout, self.torso.state_size
        size = self.torso.num_features
        self.output_shape = (-1, num_actions, num_outputs)
        options = config.noisy, config.head_activation, config.head_layer_norm
        self.advantage = Stream(size, config.head, num_actions * num_outputs, *options)
        self.value = Stream(size, config.head, num_outputs, *options) if config.dueling else None
        self.num_noise = self.advantage.num_noise + (self.value.num_noise if self.value is not None else 0)
        """Number of noise variables of all layers; 0 without noise."""

    def forward(
        self,
        observation: Tensor,
        state: Tensor | None = None,
        lengths: NDArray[np.int64] | None = None,
        noise: Tensor | None = None,
    ) -> QOutput:
        """Compute the outputs for each action.

        observation: observations of steps, segment after segment, [batch, *obs]; state: recurrent state
        before each segment, [segments, state_size], None for the initial state; lengths: lengths of the
        segments, None if every step is a segment; noise: result of `factor_noise`, either one for all rows,
        [num_noise], or one for each row, [batch, num_noise]; None to use the mean weights.

        Dueling networks compute V + A - mean of A over the actions (Wang et al., 2016, arXiv:1511.06581, eq.
        9). The paper's scaling of the gradient that enters the torso is omitted, because Adam's step does not
        depend on that factor, apart from `eps` and clipping.
        """
        if self.state_size:
            features, state = self.torso(observation, state, lengths)
        else:
            features = self.torso(observation)
        advantage = self.advantage(features, noise).view(self.output_shape)
        if self.value is None:
            return QOutput(advantage, state)
        rest = None if noise is None else noise[..., self.advantage.num_noise :]
        value = self.value(features, rest).unsqueeze(1)
        return QOutput(value + advantage - advantage.mean(1, keepdim=True), state)
