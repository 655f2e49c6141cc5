"""Batch renormalization (Ioffe, 2017, arXiv:1702.03275), and torsos that are made with it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import gymnasium as gym
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from labrl.component import Component
from labrl.networks.building import TorsoTraits, build_torso
from labrl.networks.layers import Activation, Initialization, activation_layer, initialized, numbers
from labrl.networks.torso import ImageTorso, NatureCNN, NatureCNNConfig, fitting
from labrl.types import Fraction, NonNegativeInt, PositiveFloat, PositiveInt


@dataclass(kw_only=True)
class BatchRenormConfig:
    """Options of the normalization of a layer's features."""

    momentum: Fraction
    """Share of a minibatch in the running mean and variance, in (0, 1]."""
    warmup: NonNegativeInt
    """Minibatches in which the minibatch alone counts, as in batch normalization, >= 0."""
    r_max: Annotated[float, Field(ge=1)]
    """Largest correction of a minibatch's deviation, as a factor and as its inverse, >= 1."""
    d_max: PositiveFloat
    """Largest correction of its mean, in running deviations."""
    eps: PositiveFloat
    """Added to every variance."""


class BatchRenorm(nn.Module):
    """Features with mean 0 and variance 1, then scaled and shifted, the same in training as afterwards.

    In training x is normalized by the minibatch and corrected by r and d, through which no gradient flows
    (algorithm 1): x_hat = (x - mu_B) / sigma_B r + d with r = clip(sigma_B / sigma, 1/r_max, r_max) and
    d = clip((mu_B - mu) / sigma, -d_max, d_max). In evaluation it is (x - mu) / sigma. The paper widens the
    clips step by step; here, as in CrossQ (Bhatt et al., 2024), r = 1 and d = 0 until the warm-up ends.
    """

    mean: Tensor
    variance: Tensor
    minibatches: Tensor

    def __init__(self, config: BatchRenormConfig, num_features: int) -> None:
        super().__init__()
        self._config = config
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("variance", torch.ones(num_features))
        self.register_buffer("minibatches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, num_features], in training at least two rows, or maps of images, [batch, num_features,
        height, width], each place of which is a row. Returns the same shape, float32."""
        x = x.float()  # statistics of many small differences, whatever autocast has made of the layer before
        config = self._config
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if self.training:
            if int(self.minibatches) >= config.warmup:
                r, d = self._correction(x)
                weight, bias = weight * r, bias + weight * d
            self.minibatches += 1
        return batch_norm(
            x, self.mean, self.variance, weight, bias, self.training, config.momentum, config.eps
        )

    @torch.no_grad()
    def _correction(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """r and d of a minibatch, each [num_features]."""
        config = self._config
        _, mean, inverse = torch.native_batch_norm(x, None, None, None, None, True, 0.0, config.eps)
        running = torch.rsqrt(self.variance + config.eps)
        r = (running / inverse).clamp_(1 / config.r_max, config.r_max)
        d = ((mean - self.mean) * running).clamp_(-config.d_max, config.d_max)
        return r, d


@dataclass(kw_only=True)
class RenormalizedMLPConfig:
    """Fully connected layers, their inputs normalized."""

    hidden: list[PositiveInt]
    """Units of each layer."""
    activation: Activation
    """After each layer: an activation of torch.nn by its name."""
    initialization: Initialization
    """Initialization of the weights."""
    renorm: BatchRenormConfig
    """Normalization of vectors and of the outputs of each layer."""


class RenormalizedMLP(nn.Module):
    """A perceptron with batch renormalization before each layer and of its features (Bhatt et al., 2024)."""

    Config = RenormalizedMLPConfig
    TRAITS = TorsoTraits(batch_statistics=True)

    def __init__(self, config: RenormalizedMLPConfig, observation_space: gym.Space) -> None:
        super().__init__()
        self.numbers = nn.Sequential(*numbers(observation_space, shares=False))
        self.activation = activation_layer(config.activation)
        sizes = [gym.spaces.flatdim(observation_space), *config.hidden]
        layers = [initialized(nn.Linear(a, b), config.initialization) for a, b in pairwise(sizes)]
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList([BatchRenorm(config.renorm, size) for size in sizes])

    def forward(self, observation: Tensor) -> Tensor:
        """observation: [batch, *obs]. Returns features [batch, hidden[-1]]."""
        x = self.norms[0](self.numbers(observation))
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            x = norm(self.activation(layer(x)))
        return x


@dataclass(kw_only=True)
class RenormalizedConfig(RenormalizedMLPConfig):
    """A normalized torso that fits the observation space: the layers of a perceptron are for vectors."""

    features: PositiveInt
    """Units after the convolutions, for images."""


class RenormalizedCNN(ImageTorso):
    """The Nature CNN with batch renormalization of what each layer gives."""

    Config = RenormalizedConfig
    smallest = NatureCNN.smallest
    TRAITS = TorsoTraits(batch_statistics=True)

    def __init__(self, config: RenormalizedConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__(config, observation_space)
        kind, between = config.initialization, config.activation
        plain = NatureCNN(
            NatureCNNConfig(
                features=config.features, activation=between, initialization=kind, layer_norm=False
            ),
            observation_space,
        )
        self.first = plain.first
        layers: list[nn.Module] = []
        num_features = self.first.out_channels
        for part in (*plain.convolutions, *plain.linear):  # type: ignore[misc]  # both are nn.Sequential
            layers.append(part)
            if isinstance(part, nn.Conv2d | nn.Linear):
                num_features = part.out_channels if isinstance(part, nn.Conv2d) else part.out_features
            elif not isinstance(part, nn.Flatten):
                layers.append(BatchRenorm(config.renorm, num_features))
        self.layers = nn.Sequential(*layers)

    def forward(self, observation: Tensor) -> Tensor:
        """observation: as `layout` makes it, [batch, height, width, channels]. Returns [batch, features]."""
        return self.layers(self.first(observation))


class RenormalizedTorso(nn.Sequential):
    """A normalized CNN for images that are large enough, a normalized perceptron for everything else."""

    Config = RenormalizedConfig
    TRAITS = TorsoTraits(several_inputs=True, batch_statistics=True)

    def __init__(self, config: RenormalizedConfig, observation_space: gym.Space[Any]) -> None:
        torso = build_torso(self.check(config, observation_space), observation_space)
        super().__init__(torso)
        self.layout = torso.layout

    @classmethod
    def check(cls, config: RenormalizedConfig, observation_space: gym.Space[Any]) -> Component:
        """Return the torso that fits. Raise InputError where none does."""
        kinds = RenormalizedTorso, RenormalizedCNN, RenormalizedMLP
        own, cnn, mlp = (Component(f"{__name__}.{kind.__name__}", config) for kind in kinds)
        return fitting(own, cnn, mlp, observation_space)
