"""Networks over several inputs: torsos for observations that are a Dict.

Vectors and choices side by side are one vector, and any torso for vectors reads it. With images among them,
each image has a torso of its own; its features and all that is no image, side by side, are what one more
torso reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.config.component import Component
from labrl.errors import InputError
from labrl.networks.building import TorsoTraits, build_torso, check_reads, refusal
from labrl.networks.layers import in_float32
from labrl.networks.preprocessing import SideBySide
from labrl.networks.spaces import is_image, several_images


@dataclass(kw_only=True)
class InputsConfig:
    """Torsos of several inputs."""

    joint: Component
    """Over the features of all images and all other inputs side by side: a torso for vectors."""
    image: Component
    """For each image."""
    own: dict[str, Component]
    """For single images, by name, in place of `image`."""


class Inputs(nn.Module):
    """A torso for each image, and one over what they make of them beside all other inputs.

    It reads rows of bytes: images as they are, all else as float32. Images alone have no joint torso.
    """

    Config = InputsConfig
    TRAITS = TorsoTraits(several_inputs=True)

    def __init__(self, config: InputsConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self.check(config, observation_space)
        assert isinstance(observation_space, gym.spaces.Dict)
        images = {name: inner for name, inner in observation_space.spaces.items() if is_image(inner)}
        others = {name: inner for name, inner in observation_space.spaces.items() if name not in images}
        self._numbers = SideBySide(gym.spaces.Dict(others)) if others else None
        size = math.prod(self._numbers.space.shape) if self._numbers is not None else 0
        # A module has methods of its own, which an input may be called as.
        self.images = nn.ModuleDict()
        self._layouts: dict[str, Any] = {}
        self._num_bytes = 4 * size
        """Of the numbers, with which a row begins."""
        self._shapes: list[tuple[int, ...]] = []
        for name, inner in images.items():
            part = build_torso(_of(config, name), inner)
            self.images[f"{name}_torso"], self._layouts[name] = part, part.layout
            self._shapes.append(part.layout(np.zeros((1, *(inner.shape or ())), np.uint8)).shape[1:])
            size += part.num_features
        self.joint: nn.Module = nn.Identity()
        if others:
            self.joint = build_torso(config.joint, gym.spaces.Box(-np.inf, np.inf, (size,), np.float32))

    @classmethod
    def check(cls, config: InputsConfig, observation_space: gym.Space[Any]) -> None:
        """Raise InputError for observations that are no Dict, and torsos that cannot read their input."""
        if not several_images(observation_space):
            raise refusal(
                f"Inputs is for several inputs with images among them, got {observation_space}. Use "
                "agent/network=auto."
            )
        assert isinstance(observation_space, gym.spaces.Dict)
        names = [name for name, inner in observation_space.spaces.items() if is_image(inner)]
        for name in config.own:
            if name not in names:
                raise InputError(
                    f"agent.network.torso.own.{name}: there is no such image; there are {', '.join(names)}",
                    code="unknown-key",
                    key=f"agent.network.torso.own.{name}",
                )
        for name in names:
            check_reads(_of(config, name), observation_space.spaces[name])

    def layout(self, observation: NDArray) -> NDArray[np.uint8]:
        """A batch with a field for each input as rows of bytes. [batch] -> [batch, bytes]"""
        count, parts = len(observation), []
        if self._numbers is not None:
            parts.append(self._numbers(observation).view(np.uint8))
        for name, layout in self._layouts.items():
            parts.append(layout(observation[name]).reshape(count, -1))
        return np.concatenate(parts, axis=1)

    def forward(self, observation: Tensor) -> Tensor:
        """observation: as `layout` makes it, [batch, bytes]. Returns [batch, features]."""
        features, begin = [], self._num_bytes
        for part, shape in zip(self.images.values(), self._shapes, strict=True):
            end = begin + math.prod(shape)
            features.append(part(observation[:, begin:end].reshape(-1, *shape)))
            begin = end
        if self._numbers is None:
            return torch.cat(features, dim=1)
        # A copy even of one row, which counts as contiguous whatever number of bytes follows it.
        bytes_of = observation[:, : self._num_bytes].clone(memory_format=torch.contiguous_format)
        numbers = bytes_of.view(torch.float32)
        # Positions need more than bfloat16's three digits.
        return in_float32(self.joint, torch.cat([*(part.float() for part in features), numbers], dim=1))


def _of(config: InputsConfig, name: str) -> Component:
    return config.own.get(name, config.image)
