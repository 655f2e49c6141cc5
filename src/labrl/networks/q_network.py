"""Action values from observations: a torso, then fully connected layers, two streams or noisy on demand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.config.component import Component
from labrl.config.types import PositiveFloat, PositiveInt
from labrl.networks.compute import in_float32
from labrl.networks.in_numpy import ACTIVATIONS, Affine, Chain, InNumpy
from labrl.networks.inputs import build_torso, layout_of, num_features
from labrl.networks.layers import Activation, activation, check_head
from labrl.networks.noisy import NoisyLinear
from labrl.networks.spaces import Spaces


@dataclass(kw_only=True)
class QNetworkConfig:
    """Network of an agent that learns action values."""

    torso: Component
    """Module from observations to features: a labrl torso or any `nn.Module` by `_target_`."""
    head: list[PositiveInt]
    """Units of each layer between torso and outputs; in a dueling network of both streams."""
    head_activation: Activation
    """After each of these layers: an activation of torch.nn by its name."""
    head_layer_norm: bool
    """Whether their outputs are normalized before the activation (arXiv:1607.06450)."""
    dueling: bool
    """Whether the state's value and the actions' advantages have a stream each."""
    noisy: PositiveFloat | None
    """Initial noise of the layers after the torso, sigma_0, 0.5 in the paper; null: they are not noisy."""

    def __post_init__(self) -> None:
        check_head({"head": self.head}, self.head_layer_norm)


class Stream(nn.Module):
    """Fully connected layers with activations between them; the last is computed in float32."""

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
        """Noise variables of all layers."""
        layers = [
            nn.Linear(inputs, outputs) if noisy is None else NoisyLinear(inputs, outputs, noisy)
            for inputs, outputs in sizes
        ]
        self.layers = nn.ModuleList(layers)
        # The same without look-ups and calls of modules, as dear as the products of a small network.
        self._hidden = [(layer, layer.weight, layer.bias) for layer in layers]
        self._last = self._hidden.pop()
        self.norms = nn.ModuleList(nn.LayerNorm(n) for n in hidden if layer_norm)
        self._between, self._activate, self._normed = between, activation(between), layer_norm

    def layers_in_numpy(self) -> list[Affine] | None:
        """The same for a `Chain`, without noise; None on a GPU, and where a layer does more than one can."""
        activate = ACTIVATIONS.get(self._between)
        if self._last[1].device.type != "cpu" or (self._hidden and (activate is None or self._normed)):
            return None
        hidden: list[Affine] = [(weight, bias, activate) for _, weight, bias in self._hidden]
        return [*hidden, (*self._last[1:], None)]

    def forward(self, x: Tensor, noise: Tensor | None) -> Tensor:
        """x: features [batch, num_inputs]; noise: [num_noise] or [batch, num_noise], None for none.

        Returns [batch, num_outputs].
        """
        for i, (layer, weight, bias) in enumerate(self._hidden):
            if noise is None:
                x = nn.functional.linear(x, weight, bias)
            else:
                x = layer(x, noise[..., : layer.num_noise])
                noise = noise[..., layer.num_noise :]
            x = self._activate(self.norms[i](x) if self._normed else x)
        return in_float32(lambda features: self._outputs(features, noise), x)

    def _outputs(self, x: Tensor, noise: Tensor | None) -> Tensor:
        layer, weight, bias = self._last
        if noise is None:
            return nn.functional.linear(x, weight, bias)
        return layer(x, noise[..., : layer.num_noise])


class QNetwork(nn.Module):
    """Outputs for each action, as many as an agent's `value` asks for.

    spaces: what it is built for, with discrete actions; num_outputs: for each action.
    """

    def __init__(self, config: QNetworkConfig, spaces: Spaces, num_actions: int, num_outputs: int) -> None:
        super().__init__()
        self.torso: nn.Module = build_torso(config.torso, spaces.observation)
        self.layout = layout_of(self.torso)
        size = num_features(self.torso, spaces.observation)
        self._shape = (-1, num_actions, num_outputs)
        options = config.noisy, config.head_activation, config.head_layer_norm
        self.advantage = Stream(size, config.head, num_actions * num_outputs, *options)
        self.value = Stream(size, config.head, num_outputs, *options) if config.dueling else None
        self.num_noise = self.advantage.num_noise + (self.value.num_noise if self.value is not None else 0)
        """Noise variables of all layers; 0 without noise."""

    def in_numpy(self) -> InNumpy | None:
        """`forward` without noise by NumPy, None where the torso is more than a chain of layers."""
        layers = getattr(self.torso, "layers_in_numpy", lambda: None)()
        advantages = self.advantage.layers_in_numpy()
        if layers is None or advantages is None:
            return None
        if self.value is None:
            actions = Chain([*layers, *advantages])

            def plain(observation: NDArray) -> NDArray | None:
                outputs = actions(observation)
                return None if outputs is None else outputs.reshape(self._shape)

            return plain

        torso = Chain(layers)
        streams = Chain(advantages), Chain(self.value.layers_in_numpy() or [])

        def dueling(observation: NDArray) -> NDArray | None:
            if (features := torso(observation)) is None:
                return None
            advantage, value = (stream(features) for stream in streams)
            if advantage is None or value is None:
                return None
            advantage = advantage.reshape(self._shape)
            return value[:, None] + advantage - advantage.mean(1, keepdims=True)

        return dueling

    def forward(self, observation: Tensor, noise: Tensor | None = None) -> Tensor:
        """Outputs for each action, [batch, actions, outputs], float32.

        observation: [batch, *obs]; noise: made by `factor_noise`, the same for all rows [num_noise] or one
        for each [batch, num_noise]; None: the mean weights alone.

        Dueling: V + A - mean of A over the actions (Wang et al., 2016, arXiv:1511.06581, eq. 9). Their
        factor on the gradient into the torso is left out: but for its `eps`, and for a gradient that is
        clipped, Adam's step does not depend on it.
        """
        # Not `self.torso(...)`: that call asks for hooks, which nobody hangs on, and costs what a layer does.
        return self._outputs(self.torso.forward(observation), noise)

    @property
    def state_size(self) -> int:
        """Numbers that a torso with a memory carries for each environment."""
        memory: Any = self.torso
        return int(memory.state_size)

    def unroll(
        self,
        observation: Tensor,
        state: Tensor,
        lengths: NDArray[np.int64] | None = None,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As `forward`, of a torso with a memory, and the state after each piece.

        observation: of the steps, piece after piece [batch, *obs]; state: before each piece
        [pieces, state_size]; lengths: of the pieces; None: every step is one.
        """
        memory: Any = self.torso
        features, after = memory.unroll(observation, state, lengths)
        return self._outputs(features, noise), after

    def _outputs(self, features: Tensor, noise: Tensor | None) -> Tensor:
        """[batch, actions, outputs]"""
        advantage = self.advantage.forward(features, noise).view(self._shape)
        if self.value is None:
            return advantage
        rest = None if noise is None else noise[..., self.advantage.num_noise :]
        value = self.value.forward(features, rest).unsqueeze(1)
        return value + advantage - advantage.mean(1, keepdim=True)
