"""Batch renormalization (Ioffe, 2017, arXiv:1702.03275), and torsos that use it."""

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
from labrl.networks.building import TorsoTraits
from labrl.networks.layers import Activation, Initialization, activation_layer, initialize, numbers
from labrl.networks.torso import FittingTorso, ImageTorso, NatureCNN, NatureCNNConfig
from labrl.types import Fraction, NonNegativeInt, PositiveFloat, PositiveInt


@dataclass(kw_only=True)
class BatchRenormConfig:
    """Settings of batch renormalization."""

    momentum: Fraction
    """Weight of a minibatch in the running mean and variance, in (0, 1]."""
    warmup: NonNegativeInt
    """Number of initial minibatches that are normalized without correction, as in batch normalization, >= 0.
    """
    r_max: Annotated[float, Field(ge=1)]
    """Upper limit of the correction factor of a minibatch's standard deviation, >= 1. The lower limit is its
    inverse."""
    d_max: PositiveFloat
    """Maximum correction of a minibatch's mean, in running standard deviations, > 0."""
    eps: PositiveFloat
    """Number added to every variance before its square root is taken, > 0."""


class BatchRenorm(nn.Module):
    """Normalizes features to mean 0 and variance 1, then scales and shifts them.

    The correction makes the results of training and evaluation agree. In training, x is normalized over the
    minibatch and corrected by r and d, through which no gradient flows (algorithm 1): x_hat = (x - mu_B) /
    sigma_B r + d with r = clip(sigma_B / sigma, 1/r_max, r_max) and d = clip((mu_B - mu) / sigma, -d_max,
    d_max). In evaluation, x_hat = (x - mu) / sigma. The paper widens the clips gradually; here, as in CrossQ
    (Bhatt et al., 2024), r = 1 and d = 0 until the warm-up ends.
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
        """Normalize features, [batch, num_features], or images, [batch, num_features, height, width].

        In training, there must be at least two rows; each pixel of an image counts as a row. Returns float32
        in the shape of `x`.
        """
        x = x.float()  # statistics need float32 precision, even if autocast computed the previous layer
        config = self._config
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if self.training:
            if int(self.minibatches) >= config.warmup:
                with torch.no_grad():  # r and d, [num_features] each
                    _, mean, inverse = torch.native_batch_norm(
                        x, None, None, None, None, True, 0.0, config.eps
                    )
                    running = torch.rsqrt(self.variance + config.eps)
                    r = (running / inverse).clamp_(1 / config.r_max, config.r_max)
                    d = ((mean - self.mean) * running).clamp_(-config.d_max, config.d_max)
                weight, bias = weight * r, bias + weight * d
            self.minibatches += 1
        return batch_norm(
            x, self.mean, self.variance, weight, bias, self.training, config.momentum, config.eps
        )


@dataclass(kw_only=True)
class RenormalizedMLPConfig:
    """Fully connected layers with batch renormalization."""

    hidden: list[PositiveInt]
    """Number of units in each layer."""
    activation: Activation
    """Activation after each layer, by its name in torch.nn."""
    initialization: Initialization
    """Initialization of the weights."""
    renorm: BatchRenormConfig
    """Batch renormalization of vector observations and of the outputs of each layer."""


class RenormalizedMLP(nn.Module):
    """Perceptron that renormalizes the inputs of each layer and the features (Bhatt et al., 2024)."""

    Config = RenormalizedMLPConfig
    TRAITS = TorsoTraits(batch_statistics=True)

    def __init__(self, config: RenormalizedMLPConfig, observation_space: gym.Space) -> None:
        super().__init__()
        self.numbers = nn.Sequential(*numbers(observation_space, shares=False))
        self.activation = activation_layer(config.activation)
        sizes = [gym.spaces.flatdim(observation_space), *config.hidden]
        layers = [initialize(nn.Linear(a, b), config.initialization) for a, b in pairwise(sizes)]
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList([BatchRenorm(config.renorm, size) for size in sizes])

    def forward(self, observation: Tensor) -> Tensor:
        """Return features, [batch, hidden[-1]]. observation: [batch, *obs]"""
        x = self.norms[0](self.numbers(observation))
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            x = norm(self.activation(layer(x)))
        return x


@dataclass(kw_only=True)
class RenormalizedConfig(RenormalizedMLPConfig):
    """Torso with batch renormalization that fits the observation space; `hidden` is for vectors."""

    features: PositiveInt
    """Number of units in the fully connected layer after the convolutions, for images."""


class RenormalizedCNN(ImageTorso):
    """Nature CNN with batch renormalization after each layer."""

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
        """Return features, [batch, features]. observation: [batch, height, width, channels]"""
        return self.layers(self.first(observation))


class RenormalizedTorso(FittingTorso):
    """Renormalized CNN for images that are large enough, renormalized perceptron for everything else."""

    Config = RenormalizedConfig
    TRAITS = TorsoTraits(several_inputs=True, batch_statistics=True)

    @classmethod
    def parts(cls, config: RenormalizedConfig) -> tuple[Component, Component]:
        """Return the renormalized CNN and the renormalized perceptron."""
        image, other = (f"{__name__}.{kind.__name__}" for kind in (RenormalizedCNN, RenormalizedMLP))
        return Component(image, config), Component(other, config)
