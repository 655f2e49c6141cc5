"""Torsos: modules that turn a batch of observations into a batch of features.

A torso is built from the observation space, has `forward(observation) -> [batch, num_features]`, and
may have `layout(observation)`, which brings raw observations once, when they are collected, into the
layout that `forward` reads fastest. A user's own `nn.Module` needs `forward` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import linear

from labrl.config.component import Component
from labrl.config.types import PositiveInt
from labrl.errors import InputError
from labrl.networks.in_numpy import ACTIVATIONS, Affine
from labrl.networks.inputs import Inputs, InputsConfig, check_reads
from labrl.networks.kept import Kept, along
from labrl.networks.layers import (
    Activation,
    Initialization,
    activation,
    activation_layer,
    initialized,
    normalization,
)
from labrl.networks.packed import Packable, Packed
from labrl.networks.spaces import Spaces, choices_of, is_image, range_of


def vectors(observation: Tensor, choices: list[tuple[int, int]], unit: float = 1.0) -> Tensor:
    """Observations as rows of numbers, one-hot where `choices` make them. [batch, *obs] -> [batch, size]

    unit: what they are multiplied by.
    """
    if choices:
        columns = observation.long().reshape(len(observation), -1).unbind(1)
        pairs = zip(columns, choices, strict=True)
        observation = torch.cat([nn.functional.one_hot(c - first, n) for c, (first, n) in pairs], dim=1)
    if observation.dim() != 2:
        observation = observation.reshape(len(observation), -1)
    numbers = observation if observation.dtype == torch.float32 else observation.float()
    return numbers if unit == 1 else numbers * unit


@dataclass(kw_only=True)
class MLPConfig:
    """Fully connected layers over the flattened observation."""

    hidden: list[PositiveInt]
    """Units of each layer."""
    activation: Activation
    """After each layer: an activation of torch.nn by its name."""
    initialization: Initialization
    """How weights begin."""
    layer_norm: bool
    """Whether each layer's outputs are normalized before the activation (arXiv:1607.06450)."""


class Shares(nn.Module):
    """Bytes as shares of their ranges, where these differ or do not begin at 0."""

    low: Tensor
    width: Tensor

    def __init__(self, low: NDArray[np.float32], width: NDArray[np.float32]) -> None:
        """low, width: smallest values and widths of the ranges, in the shape of an observation."""
        super().__init__()
        self.register_buffer("low", torch.tensor(low), persistent=False)
        self.register_buffer("width", torch.tensor(width), persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """[batch, *shape] -> [batch, *shape], in [0, 1]"""
        return (numbers - self.low) / self.width


class MLP(nn.Module):
    """Multi-layer perceptron for vectors; a Discrete or MultiDiscrete observation is one-hot encoded.

    Bytes, of RAM or of images that are too small for convolutions, are read as shares of the range of their
    space.
    """

    Config = MLPConfig

    def __init__(self, config: MLPConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self._choices, bounds = choices_of(observation_space), range_of(observation_space)
        self._unit = 1.0 if isinstance(bounds, tuple) else 1 / bounds
        self.shares = Shares(*(part.ravel() for part in bounds)) if isinstance(bounds, tuple) else None
        self.activate = activation(config.activation)
        sizes = [gym.spaces.flatdim(observation_space), *config.hidden]
        layers = [initialized(nn.Linear(a, b), config.initialization) for a, b in pairwise(sizes)]
        self.layers = nn.ModuleList(layers)
        # Acting in a small environment is bound by calls of modules and look-ups of their parameters,
        # more than by the products: here are the same parameters without either.
        self._weights = [(layer.weight, layer.bias) for layer in layers]
        self.norms = nn.ModuleList(nn.LayerNorm(n) for n in config.hidden if config.layer_norm)
        self._normed = config.layer_norm
        self._activation = config.activation

    def layers_in_numpy(self) -> list[Affine] | None:
        """The same for a `Chain`; None on a GPU, and where a layer does more than one can."""
        activate = ACTIVATIONS.get(self._activation)
        on_cpu = all(weight.device.type == "cpu" for weight, _ in self._weights)
        scaled = self._unit != 1 or self.shares is not None
        if self._choices or scaled or self._normed or activate is None or not on_cpu:
            return None
        return [(weight, bias, activate) for weight, bias in self._weights]

    def forward(self, observation: Tensor) -> Tensor:
        """observation: [batch, *obs]. Returns features [batch, hidden[-1]]."""
        observation = vectors(observation, self._choices, self._unit)
        if self.shares is not None:
            observation = self.shares(observation)
        activate = self.activate
        if self._normed:
            for (weight, bias), norm in zip(self._weights, self.norms, strict=True):
                observation = activate(norm(linear(observation, weight, bias)))
            return observation
        for weight, bias in self._weights:
            observation = activate(linear(observation, weight, bias))
        return observation


def image_shape(space: gym.Space[Any]) -> tuple[int, int, int, bool]:
    """Height, width, channels, and whether the channels (or stacked frames) are the first axis.

    Their axis is the short one: ALE puts it first, Gymnasium last.
    """
    shape = space.shape
    assert shape is not None
    channels_first = shape[0] < shape[2]
    height, width, channels = (*shape[1:], shape[0]) if channels_first else shape
    return height, width, channels, channels_first


class ImageTorso(nn.Module):
    """What torsos for images share: how pixels are laid out, and how they become numbers."""

    smallest: int
    """Pixels of height and width below which nothing is left after the convolutions."""
    all_in_autocast = True
    """Whether autocast rounds whatever its layers compute with, so that large weights may be kept rounded."""

    def __init__(self, config: Any, observation_space: gym.Space[Any]) -> None:
        """Raises InputError as `check` does."""
        super().__init__()
        self.check(config, observation_space)
        self.image_shape = image_shape(observation_space)[:3]
        """Height, width and channels."""
        self.channels_first = image_shape(observation_space)[3]
        bounds = range_of(observation_space)
        self.divisor = 1.0 if isinstance(bounds, tuple) else bounds
        """Divides the few weights of the first layer, which saves a pass over the many pixels."""
        self.shares: Shares | None = None
        if isinstance(bounds, tuple):
            axes = (0, 1, 2) if self.channels_first else (2, 0, 1)
            self.shares = Shares(*(part.transpose(axes) for part in bounds))

    @classmethod
    def check(cls, config: Any, observation_space: gym.Space[Any]) -> None:
        """Raises InputError for what is no image, or too small a one."""
        if not is_image(observation_space):
            raise InputError(
                f"agent.network.torso: {cls.__name__} needs images (three axes of bytes), "
                f"got {observation_space}. Use agent/network=auto or agent/network=mlp.",
                code="unsupported",
                key="agent.network.torso",
            )
        height, width, _, _ = image_shape(observation_space)
        if min(height, width) < cls.smallest:
            raise InputError(
                f"agent.network.torso: {cls.__name__} needs images of at least {cls.smallest} pixels each "
                f"way, got {height} x {width}. Use agent/network=mlp or a torso of your own.",
                code="unsupported",
                key="agent.network.torso",
            )

    def layout(self, observation: NDArray) -> NDArray:
        """Channels last, once for all epochs: [num_envs, *obs] -> [num_envs, height, width, channels]."""
        if not self.channels_first:
            return observation
        channels = observation.shape[1]
        pixels = np.empty((len(observation), *observation.shape[2:], channels), observation.dtype)
        for channel in range(channels):  # four times as fast as a copy of the transposed view
            pixels[..., channel] = observation[:, channel]
        return pixels

    def pixels(self, observation: Tensor, dtype: torch.dtype) -> Tensor:
        """Bytes [batch, height, width, channels] -> [batch, channels, height, width], not yet divided.

        A permuted view of channels-last bytes is what the fast convolutions want, so that one pass makes
        floats of them (every byte is exact in bfloat16).
        """
        pixels = observation.permute(0, 3, 1, 2)
        return pixels.to(dtype) if self.shares is None else self.shares(pixels.float()).to(dtype)

    def first_convolution(self, layer: nn.Conv2d, observation: Tensor) -> Tensor:
        """`layer` applied to pixels as shares of their range.

        observation: as `layout` makes it, [batch, height, width, channels]. Returns [batch, maps, h, w].
        """
        device = observation.device.type
        mixed = torch.is_autocast_enabled(device)
        pixels = self.pixels(observation, torch.get_autocast_dtype(device) if mixed else torch.float32)
        weight = layer.weight / self.divisor
        return nn.functional.conv2d(pixels, weight, layer.bias, layer.stride, layer.padding)


@dataclass(kw_only=True)
class NatureCNNConfig:
    """The convolutional network of Mnih et al. (2015), doi:10.1038/nature14236."""

    features: PositiveInt | None
    """Units of the fully connected layer after the convolutions; null: none, for a head that has its own."""
    activation: Activation
    """After each layer: an activation of torch.nn by its name."""
    initialization: Initialization
    """How weights begin."""
    layer_norm: bool
    """Whether each layer's outputs are normalized before the activation (arXiv:1607.06450)."""


class NatureCNN(ImageTorso):
    """Three convolutions and a fully connected layer, for images of at least 36 x 36 pixels."""

    Config = NatureCNNConfig
    smallest = 36
    packed: Packed | None = None
    """The same for inference under autocast; set by who says when the weights have changed."""
    kept: tuple[Kept, slice] | None = None
    """Where the outputs of all layers are kept for these rows, while it acts on them and learns from them."""

    def __init__(self, config: NatureCNNConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__(config, observation_space)
        height, width, channels = self.image_shape
        kind = config.initialization
        self.first = initialized(nn.Conv2d(channels, 32, 8, stride=4), kind)
        second = initialized(nn.Conv2d(32, 64, 4, stride=2), kind)
        third = initialized(nn.Conv2d(64, 64, 3, stride=1), kind)
        self.convolutions = nn.Sequential(
            *self._after(self.first, config), second, *self._after(second, config), third,
            *self._after(third, config), nn.Flatten(),
        )  # fmt: skip
        self.linear: nn.Module = nn.Identity()
        if config.features is not None:
            with torch.no_grad():
                flat = self.convolutions(self.first(torch.zeros(1, channels, height, width))).shape[1]
            linear = initialized(nn.Linear(flat, config.features), kind)
            self.linear = nn.Sequential(linear, *self._after(linear, config))

    def pack(self) -> Packed | None:
        """The layers for inference under autocast in bfloat16; None where they do more than can be packed."""
        leaves = [part for part in self.linear.modules() if not list(part.children())]
        parts = [self.first, *self.convolutions, *leaves]
        kinds = [type(part) for part in parts if not isinstance(part, nn.Flatten | nn.Identity)]
        layers = self._packable()
        expected = [kind for each in layers for kind in (type(each.layer), nn.ReLU)]
        # A class derived from this one may compute otherwise, or have changed the parts that it built.
        if type(self) is not NatureCNN or kinds != expected:
            return None
        height, width, channels = self.image_shape
        return Packed.possible(layers, torch.zeros(1, channels, height, width, dtype=torch.bfloat16))

    @staticmethod
    def _after(layer: nn.Conv2d | nn.Linear, config: NatureCNNConfig) -> list[nn.Module]:
        """What follows a layer."""
        activate = activation_layer(config.activation)
        if not config.layer_norm:
            return [activate]
        return [normalization(layer), activate]

    def forward(self, observation: Tensor) -> Tensor:
        """observation: as `layout` makes it, [batch, height, width, channels]. Returns [batch, features]."""
        if self.packed is not None and self.packed.usable:
            outputs = self.packed.outputs(self.pixels(observation, torch.bfloat16))
            if self.kept is not None:
                store, rows = self.kept
                store.put(rows, outputs)
            return outputs[-1].flatten(1)
        if self.kept is not None and torch.is_grad_enabled():
            store, rows = self.kept
            known = store.of(rows)
            if known is not None:
                return along(self._packable(), self.pixels(observation, torch.bfloat16), known)
        return self.linear(self.convolutions(self.first_convolution(self.first, observation)))

    def _packable(self) -> list[Packable]:
        """The layers, of which the first divides pixels by the width of their range."""
        parts = [*self.convolutions, *self.linear.modules()]
        later = [Packable(part) for part in parts if isinstance(part, nn.Conv2d | nn.Linear)]
        return [Packable(self.first, self.divisor), *later]


BY_THE_MINIBATCH = (
    "normalizes by the minibatch, and this agent would act with the statistics of its few environments"
)
"""Why a layer is refused to agents that have no `whole_minibatches`."""


def check_torso(
    torso: Component, spaces: Spaces, remembers: bool = False, whole_minibatches: bool = False
) -> None:
    """Raises InputError for observations that `torso` cannot read, where it knows of such.

    remembers: whether the agent carries a state from step to step; then the torso must have one;
    whole_minibatches: whether it learns from each as a whole, and acts by what its network keeps of them.
    """
    target = torso.load()
    for part in () if whole_minibatches else _components(torso):
        if getattr(part.load(), "batch_statistics", False):
            raise InputError(
                f"agent.network.torso: {part.target} {BY_THE_MINIBATCH}. Set agent=crossq, or "
                "agent/network=wide or another one (agent.network.torso.mlp.layer_norm=true normalizes each "
                "sample by itself).",
                code="unsupported",
                key="agent.network.torso",
            )
    if hasattr(target, "unroll") and not remembers:
        raise InputError(
            f"agent.network.torso: {torso.target} is recurrent, and this agent carries no state between "
            "steps. Set agent=recurrent_ppo, recurrent_a2c or recurrent_dqn, or another agent/network.",
            code="unsupported",
            key="agent.network.torso",
        )
    if remembers and not hasattr(target, "unroll"):
        raise InputError(
            f"agent.network.torso: {torso.target} is not recurrent, but a recurrent agent needs one that is: "
            "set agent/network=gru or lstm, or an agent that is not recurrent (agent=ppo, a2c, dqn).",
            code="unsupported",
            key="agent.network.torso",
        )
    check_reads(torso, spaces.observation)


def _components(settings: Any) -> Iterator[Component]:
    """All that stands in some settings, those of a part's parts too."""
    if isinstance(settings, Component):
        yield settings
        yield from _components(settings.config)
    elif is_dataclass(settings):
        for each in fields(settings):
            yield from _components(getattr(settings, each.name))
    elif isinstance(settings, dict):
        for inner in settings.values():
            yield from _components(inner)


@dataclass(kw_only=True)
class AutoTorsoConfig:
    """A torso that fits the observation space."""

    mlp: MLPConfig
    """Used for vectors and discrete observations."""
    cnn: NatureCNNConfig
    """Used for images."""


class AutoTorso:
    """The Nature CNN for images that are large enough, an MLP for everything else; both for several inputs.

    Building it gives one of the two itself: a module around it would cost a call in every step.
    """

    Config = AutoTorsoConfig
    several_inputs = True

    @classmethod
    def check(cls, config: AutoTorsoConfig, observation_space: gym.Space[Any]) -> None:
        """Raises InputError for stacked pictures in colour, which are neither of the two."""
        is_bytes = isinstance(observation_space, gym.spaces.Box) and observation_space.dtype == np.uint8
        if is_bytes and len(observation_space.shape or ()) == 4:
            raise InputError(
                f"agent.network.torso: {cls.__name__} reads vectors and images of three axes, and these are "
                f"stacks of pictures in colour, {observation_space.shape}. Set env.grayscale=true for a game "
                "of the ALE, or use a torso of your own: ~agent.network.torso "
                "'+agent.network.torso={_target_: my_module.MyTorso}'.",
                code="unsupported",
                key="agent.network.torso",
            )

    def __new__(cls, config: AutoTorsoConfig, observation_space: gym.Space[Any]) -> nn.Module:  # type: ignore[misc]
        """The torso that fits `observation_space`."""
        if isinstance(observation_space, gym.spaces.Dict):
            own = Component(f"{cls.__module__}.{cls.__qualname__}", config)
            return Inputs(InputsConfig(joint=own, image=own, own={}), observation_space)
        large = is_image(observation_space) and min(image_shape(observation_space)[:2]) >= NatureCNN.smallest
        return (cls.for_images if large else cls.for_vectors)(config, observation_space)

    @classmethod
    def for_images(cls, config: Any, observation_space: gym.Space[Any]) -> nn.Module:
        """The torso for an image."""
        return NatureCNN(config.cnn, observation_space)

    @classmethod
    def for_vectors(cls, config: Any, observation_space: gym.Space[Any]) -> nn.Module:
        """The torso for whatever is none, or too small."""
        return MLP(config.mlp, observation_space)
