"""Torsos for vectors, images and several inputs. `labrl.networks.building` defines and checks torsos."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from labrl.component import Component
from labrl.errors import InputError
from labrl.networks.building import TorsoTraits, build_torso, refusal
from labrl.networks.layers import (
    Activation,
    ConcatInputs,
    Initialization,
    ScaleBytes,
    activation_layer,
    autocast_device,
    in_float32,
    initialize,
    normalization,
    numbers,
    with_activations,
)
from labrl.spaces import is_image, range_of, several_images
from labrl.types import PositiveInt


@dataclass(kw_only=True)
class MLPConfig:
    """Fully connected layers that read the flattened observation."""

    hidden: list[PositiveInt]
    """Number of units in each layer."""
    activation: Activation
    """Activation after each layer, by its name in torch.nn."""
    initialization: Initialization
    """Initialization of the weights."""
    layer_norm: bool
    """Whether each layer's outputs are normalized before the activation (arXiv:1607.06450)."""


class MLP(nn.Sequential):
    """Multi-layer perceptron for vectors and for one-hot encoded Discrete or MultiDiscrete observations.

    Bytes, such as RAM or images that are too small for convolutions, are scaled to [0, 1].
    """

    Config = MLPConfig

    def __init__(self, config: MLPConfig, observation_space: gym.Space[Any]) -> None:
        sizes = [gym.spaces.flatdim(observation_space), *config.hidden]
        layers = [initialize(nn.Linear(a, b), config.initialization) for a, b in pairwise(sizes)]
        hidden = with_activations(layers, config.activation, config.layer_norm)
        super().__init__(*numbers(observation_space), *hidden)
        self.activation, self.layer_norm = config.activation, config.layer_norm


class PixelConvolution(nn.Conv2d):
    """Convolution that scales the bytes of images to [0, 1].

    Dividing the few weights by `divisor` saves a pass over the many pixels.
    """

    def __init__(
        self, space: gym.Space[Any], maps: int, size: int, stride: int = 1, padding: int = 0
    ) -> None:
        channels, channels_first = image_shape(space)[2:]
        super().__init__(channels, maps, size, stride, padding)
        bounds = range_of(space)
        self.divisor = 1.0 if isinstance(bounds, tuple) else bounds
        self.shares: ScaleBytes | None = None
        if isinstance(bounds, tuple):
            axes = (0, 1, 2) if channels_first else (2, 0, 1)
            self.shares = ScaleBytes(*(part.transpose(axes) for part in bounds))

    def forward(self, observation: Tensor) -> Tensor:
        """Compute the output channels. [batch, height, width, channels] -> [batch, maps, h, w]"""
        device = autocast_device()
        dtype = torch.float32 if device is None else torch.get_autocast_dtype(device)
        pixels = observation.permute(0, 3, 1, 2)
        if self.shares is not None:
            pixels = self.shares(pixels.float()).to(dtype)
        else:
            # Fast convolutions accept a permuted view of channels-last bytes, so one pass converts them.
            # bfloat16 represents every byte exactly.
            pixels = pixels.to(dtype, memory_format=torch.channels_last)
        return nn.functional.conv2d(pixels, self.weight / self.divisor, self.bias, self.stride, self.padding)


def image_shape(space: gym.Space[Any]) -> tuple[int, int, int, bool]:
    """Return the height, width and channels, and whether the channels (or stacked frames) are the first axis.

    The channels are the shortest axis: the first one in the ALE, the last one in Gymnasium.
    """
    shape = space.shape
    assert shape is not None
    channels_first = shape[0] < shape[2]
    height, width, channels = (*shape[1:], shape[0]) if channels_first else shape
    return height, width, channels, channels_first


class ImageTorso(nn.Module):
    """Base of torsos for images; converts the layout of images."""

    smallest: int
    """Smallest height and width in pixels that the convolutions support."""

    def __init__(self, config: Any, observation_space: gym.Space[Any]) -> None:
        """Raise InputError for observations that are not images."""
        super().__init__()
        if not is_image(observation_space):
            raise refusal(
                f"{type(self).__name__} needs images (three axes of bytes), not {observation_space}"
            )
        self.image_shape = image_shape(observation_space)[:3]
        """Height, width and number of channels."""
        self.channels_first = image_shape(observation_space)[3]

    def layout(self, observation: Any) -> Any:
        """Move the channels to the last axis. [num_envs, *obs] -> [num_envs, height, width, channels]

        In an exported policy, the observation is a tensor.
        """
        if not self.channels_first:
            return observation
        if isinstance(observation, Tensor):
            return observation.permute(0, 2, 3, 1)
        channels = observation.shape[1]
        pixels = np.empty((len(observation), *observation.shape[2:], channels), observation.dtype)
        for channel in range(channels):  # four times faster than copying the transposed view
            pixels[..., channel] = observation[:, channel]
        return pixels


@dataclass(kw_only=True)
class NatureCNNConfig:
    """Convolutional network of Mnih et al. (2015), doi:10.1038/nature14236."""

    features: PositiveInt | None
    """Number of units in the fully connected layer after the convolutions; null: no such layer, if the heads
    have hidden layers of their own."""
    activation: Activation
    """Activation after each layer, by its name in torch.nn."""
    initialization: Initialization
    """Initialization of the weights."""
    layer_norm: bool
    """Whether each layer's outputs are normalized before the activation (arXiv:1607.06450)."""


class NatureCNN(ImageTorso):
    """Nature CNN: three convolutions and a fully connected layer, for images of at least 36 x 36 pixels."""

    Config = NatureCNNConfig
    smallest = 36

    def __init__(self, config: NatureCNNConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__(config, observation_space)
        kind = config.initialization
        self.first = initialize(PixelConvolution(observation_space, 32, 8, stride=4), kind)
        second = initialize(nn.Conv2d(32, 64, 4, stride=2), kind)
        third = initialize(nn.Conv2d(64, 64, 3, stride=1), kind)
        self.convolutions = nn.Sequential(
            *self._after(self.first, config), second, *self._after(second, config), third,
            *self._after(third, config), nn.Flatten(),
        )  # fmt: skip
        self.linear: nn.Module = nn.Identity()
        if config.features is not None:
            with torch.no_grad():
                flat = self.convolutions(self.first(torch.zeros(1, *self.image_shape))).shape[1]
            linear = initialize(nn.Linear(flat, config.features), kind)
            self.linear = nn.Sequential(linear, *self._after(linear, config))

    @staticmethod
    def _after(layer: nn.Conv2d | nn.Linear, config: NatureCNNConfig) -> list[nn.Module]:
        """Return the modules that follow `layer`: the optional normalization and the activation."""
        activate = activation_layer(config.activation)
        if not config.layer_norm:
            return [activate]
        return [normalization(layer), activate]

    def forward(self, observation: Tensor) -> Tensor:
        """Return features, [batch, features]. observation: [batch, height, width, channels]"""
        return self.linear(self.convolutions(self.first(observation)))


@dataclass(kw_only=True)
class InputsConfig:
    """Torsos for observations with several inputs."""

    joint: Component
    """Torso for the concatenated features of all images and all other inputs; it must accept vectors."""
    image: Component
    """Torso of each image."""
    own: dict[str, Component]
    """Torsos of particular images, by the name of the image; they replace `image`."""

    def torso_of(self, name: str) -> Component:
        """Return the torso of the image called `name`."""
        return self.own.get(name, self.image)


class Inputs(nn.Module):
    """A torso for each image, and a joint torso for their features and all other inputs.

    Without images, several inputs are one vector, which any torso for vectors accepts. With images, the
    network's input is rows of bytes: images unchanged, other inputs as float32. If there are only images,
    there is no joint torso.
    """

    Config = InputsConfig
    TRAITS = TorsoTraits(several_inputs=True)

    def __init__(self, config: InputsConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        if not (isinstance(observation_space, gym.spaces.Dict) and several_images(observation_space)):
            raise refusal(f"Inputs needs several inputs with an image, got {observation_space}")
        images = {name: inner for name, inner in observation_space.spaces.items() if is_image(inner)}
        for name in config.own:
            if name not in images:
                why = f"there is no such image; the images are {', '.join(images)}"
                raise InputError.about(f"agent.network.torso.own.{name}", why, code="unknown-key")
        others = {name: inner for name, inner in observation_space.spaces.items() if name not in images}
        self._numbers = ConcatInputs(gym.spaces.Dict(others)) if others else None
        size = math.prod(self._numbers.space.shape) if self._numbers is not None else 0
        # Add a suffix, because an input may have the name of a method of modules.
        self.images = nn.ModuleDict()
        self._layouts: dict[str, Any] = {}
        self._num_bytes = 4 * size
        """Number of bytes at the start of a row that contain the inputs without images."""
        self._shapes: list[tuple[int, ...]] = []
        for name, inner in images.items():
            part = build_torso(config.torso_of(name), inner)
            self.images[f"{name}_torso"], self._layouts[name] = part, part.layout
            self._shapes.append(part.layout(np.zeros((1, *(inner.shape or ())), np.uint8)).shape[1:])
            size += part.num_features
        self.joint: nn.Module = nn.Identity()
        if others:
            self.joint = build_torso(config.joint, gym.spaces.Box(-np.inf, np.inf, (size,), np.float32))

    def layout(self, observation: Any) -> Any:
        """Convert a structured array with a field for each input to rows of bytes. [batch] -> [batch, bytes]

        In an exported policy, the observation is a dict of tensors, which are converted to rows of float32,
        because other runtimes cannot reinterpret bytes as numbers.
        """
        if isinstance(observation, dict):
            rows = [] if self._numbers is None else [self._numbers(observation)]
            for name, layout in self._layouts.items():
                rows.append(layout(observation[name]).flatten(1).float())
            return torch.cat(rows, dim=1)
        count, parts = len(observation), []
        if self._numbers is not None:
            parts.append(self._numbers(observation).view(np.uint8))
        for name, layout in self._layouts.items():
            parts.append(layout(observation[name]).reshape(count, -1))
        return np.concatenate(parts, axis=1)

    def forward(self, observation: Tensor) -> Tensor:
        """Return features, [batch, features]. observation: [batch, bytes]"""
        numbers, pictures = _numbers_and_pictures(observation, self._num_bytes)
        features, begin = [], 0
        for part, shape in zip(self.images.values(), self._shapes, strict=True):
            end = begin + math.prod(shape)
            features.append(part(pictures[:, begin:end].reshape(-1, *shape)))
            begin = end
        if self._numbers is None:
            return torch.cat(features, dim=1)
        # Values such as positions need more than the three digits of bfloat16.
        return in_float32(self.joint, torch.cat([*(part.float() for part in features), numbers], dim=1))


@torch.fx.wrap  # torch.fx cannot trace a branch on a dtype
def _numbers_and_pictures(rows: Tensor, num_bytes: int) -> tuple[Tensor, Tensor]:
    """Split rows of `Inputs.layout` into the vector of all other inputs in float32 and the values of images.

    num_bytes: size of the vector in bytes, as float32.
    """
    if rows.dtype != torch.uint8 or num_bytes == 0:
        return rows[:, : num_bytes // 4], rows[:, num_bytes // 4 :]
    # Copy even a single row, which torch considers contiguous although other bytes follow.
    numbers = rows[:, :num_bytes].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return numbers, rows[:, num_bytes:]


class FittingTorso(nn.Sequential, ABC):
    """Base of torsos that choose a torso according to the observation space and consist of the chosen one."""

    TRAITS = TorsoTraits(several_inputs=True)

    def __init__(self, config: Any, observation_space: gym.Space[Any]) -> None:
        """Raise InputError if no torso fits."""
        torso = build_torso(self.choose(config, observation_space), observation_space)
        super().__init__(torso)
        self.layout = torso.layout

    @classmethod
    @abstractmethod
    def parts(cls, config: Any) -> tuple[Component, Component]:
        """Return the torso for images that are large enough, and the torso for everything else."""

    @classmethod
    def choose(cls, config: Any, observation_space: gym.Space[Any]) -> Component:
        """Return the torso that fits. Raises InputError for stacked color images, which no torso supports."""
        space, target = observation_space, f"{cls.__module__}.{cls.__qualname__}"
        if isinstance(space, gym.spaces.Dict):
            own = Component(target, config)
            return Component(f"{__name__}.Inputs", InputsConfig(joint=own, image=own, own={}))
        if isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 4:
            raise refusal(
                f"{target} supports images with three axes, but observations are stacks of color images, "
                f"{space.shape}. Set env.grayscale=true for a game of the ALE, or use your own torso."
            )
        images, others = cls.parts(config)
        return images if is_image(space) and min(image_shape(space)[:2]) >= NatureCNN.smallest else others


@dataclass(kw_only=True)
class AutoTorsoConfig:
    """Torso that fits the observation space."""

    mlp: MLPConfig
    """Torso for vectors and discrete observations."""
    cnn: NatureCNNConfig
    """Torso for images."""


class AutoTorso(FittingTorso):
    """Nature CNN for images that are large enough, MLP for everything else; for several inputs, both."""

    Config = AutoTorsoConfig

    @classmethod
    def parts(cls, config: AutoTorsoConfig) -> tuple[Component, Component]:
        """Return the Nature CNN and the MLP."""
        return Component(f"{__name__}.NatureCNN", config.cnn), Component(f"{__name__}.MLP", config.mlp)
