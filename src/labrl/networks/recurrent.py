"""Recurrent layers after any torso: a GRU or an LSTM, whose state is carried from step to step.

A recurrent torso sets `recurrent` in its `TRAITS`, has a `state_size`, and is called with the state:
`torso(observation, state, lengths) -> (features, state)`. Only agents that carry a state can use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from labrl.component import Component
from labrl.networks.building import TorsoTraits, build_torso
from labrl.networks.layers import in_float32
from labrl.types import PositiveInt


@dataclass(kw_only=True)
class RecurrentConfig:
    """GRU (Cho et al., 2014, arXiv:1406.1078) or LSTM (Hochreiter & Schmidhuber, 1997) after a torso."""

    torso: Component
    """Torso before the recurrent layers: a labrl torso, or any `nn.Module` named by `_target_`."""
    kind: Literal["gru", "lstm"]
    """Type of the recurrent layers."""
    hidden_size: PositiveInt
    """Number of units in each recurrent layer, and number of features."""
    layers: PositiveInt
    """Number of stacked recurrent layers, >= 1."""


class Recurrent(nn.Module):
    """Features that depend on all observations since the start of the episode.

    Weights are initially orthogonal and biases 0 (Huang et al., 2022, "The 37 implementation details of
    PPO"). The recurrent layers compute in float32, because errors accumulate over a sequence.
    """

    Config = RecurrentConfig
    TRAITS = TorsoTraits(several_inputs=True, recurrent=True)  # several inputs if the torso accepts them

    def __init__(self, config: RecurrentConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self.torso = build_torso(config.torso, observation_space)
        self.layout = self.torso.layout
        size = self.torso.num_features
        cells = {"gru": nn.GRU, "lstm": nn.LSTM}[config.kind]
        self.core: nn.RNNBase = cells(size, config.hidden_size, config.layers)
        for name, parameter in self.core.named_parameters():
            nn.init.zeros_(parameter) if "bias" in name else nn.init.orthogonal_(parameter)
        # The state of an LSTM contains outputs and cells of all layers, the state of a GRU only outputs.
        self._parts = (2 if config.kind == "lstm" else 1) * config.layers
        self._layers = config.layers
        self.state_size = self._parts * config.hidden_size
        """Size of the state of each environment."""

    def forward(
        self, observation: Tensor, state: Tensor | None = None, lengths: NDArray[np.int64] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the features of steps in segments of consecutive steps, and the state after each segment.

        observation: observations in the network's layout, segment after segment, [batch, *obs]; state: state
        before each segment, [segments, state_size], None for the initial state, 0; lengths: lengths of the
        segments, which add up to `batch`, None if every step is a segment. Returns the features, [batch,
        hidden_size], and the states, [segments, state_size].
        """
        return in_float32(lambda features: self._carried(features, state, lengths), self.torso(observation))

    def _carried(
        self, features: Tensor, state: Tensor | None, lengths: NDArray[np.int64] | None
    ) -> tuple[Tensor, Tensor]:
        features = features.float()
        if state is None:
            segments = features.shape[0] if lengths is None else len(lengths)
            state = features.new_zeros((segments, self.state_size))
        if lengths is None:
            outputs, after = self.core(features.unsqueeze(0), self._split(state))
            return outputs.squeeze(0), self._joined(after)
        # PackedSequence needs all first steps, then all second steps, and so on, in segments of falling
        # length.
        order = np.argsort(-lengths, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        age = np.arange(len(features)) - np.repeat(lengths.cumsum() - lengths, lengths)
        row = np.lexsort((np.repeat(rank, lengths), age))
        place = np.empty_like(row)
        place[row] = np.arange(len(row))
        device = features.device
        there, back, by_length, by_rank = (
            torch.from_numpy(index).to(device) for index in (row, place, order, rank)
        )
        packed = PackedSequence(features[there], torch.from_numpy(np.bincount(age)))
        outputs, after = self.core(packed, self._split(state[by_length]))
        return outputs.data[back], self._joined(after)[by_rank]

    def _split(self, state: Tensor) -> Any:
        """Convert a state, [segments, state_size], to the format of torch's recurrent layers."""
        parts = state.view(-1, self._parts, self.core.hidden_size).transpose(0, 1).contiguous()
        return (parts[: self._layers], parts[self._layers :]) if self._parts > self._layers else parts

    def _joined(self, parts: Any) -> Tensor:
        """Convert a state of torch's recurrent layers to [segments, state_size]."""
        whole = torch.cat((parts[0], parts[1])) if self._parts > self._layers else parts
        return whole.view(self._parts, -1, self.core.hidden_size).transpose(0, 1).flatten(1)
