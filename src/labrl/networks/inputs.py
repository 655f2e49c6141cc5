"""Networks over several inputs: torsos for observations that are a Dict.

Vectors and choices side by side are one vector, and any torso for vectors reads it. With images among them,
each image has a torso of its own; its features and all that is no image, side by side, are what one more
torso reads. A torso that takes a Dict with images has an attribute `several_inputs` that is true.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.config.component import Component, accepted_settings
from labrl.errors import InputError, LabrlError
from labrl.networks.spaces import choices_of, is_image, range_of, sees_images
from labrl.observations import example


def build_torso(torso: Component, space: gym.Space[Any]) -> nn.Module:
    """The torso for observations of `space`; its `layout` makes one array of several inputs."""
    check_reads(torso, space)
    layout = SideBySide(space) if isinstance(space, gym.spaces.Dict) and not sees_images(space) else None
    try:
        built: nn.Module = torso.build(observation_space=space if layout is None else layout.space)
        weights = list(built.parameters()) if isinstance(built, nn.Module) else []
    except LabrlError:
        raise
    except Exception as error:  # whatever a user's own code may raise
        raise _not_a_torso(f"{torso.target} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(built, nn.Module):
        raise _not_a_torso(f"{torso.target} is not a torch.nn.Module; derive it from that class.")
    for weight in weights:
        if weight.dtype != torch.float32:
            raise _not_a_torso(
                f"{torso.target} has weights in {weight.dtype}; labrl trains weights in torch.float32, and "
                "meta.precision=bf16 computes in bfloat16 with them."
            )
    if layout is not None:
        built.layout = layout  # type: ignore[assignment]  # no module, nor a tensor
    if any(isinstance(weight, nn.UninitializedParameter) for weight in weights):
        num_features(built, space)  # the first observation says how large its weights are
    return built


def layout_of(torso: nn.Module) -> Callable[[NDArray], NDArray]:
    """How observations, [batch, *obs], become what the torso takes: as they are where it has no `layout`."""
    return getattr(torso, "layout", _as_they_are)


def _as_they_are(observation: NDArray) -> NDArray:
    return observation


@dataclass(frozen=True)
class Habits:
    """What a forward pass of a torso does beside computing features."""

    draws: bool
    """Whether it draws random numbers."""
    changes: tuple[str, ...]
    """Names of the buffers that it writes to."""


def num_features(torso: nn.Module, space: gym.Space[Any]) -> int:
    """How many features the torso makes of an observation, which leaves statistics that it keeps as they are.

    Notes the torso's `habits`. Raises InputError for one that fails or gives anything but [batch, features].
    """
    seen = layout_of(torso)(example(space))
    one = torch.as_tensor(seen.astype(np.float32) if seen.dtype == np.float64 else seen)  # as agents do
    torso.eval()
    try:
        with torch.no_grad():
            size = _num_features(torso, one)
        torso.train()
        several = torch.cat([one, one])
        torso.habits = _habits(torso, several)  # type: ignore[assignment]  # no module, nor a tensor
        with torch.no_grad():
            _num_features(torso.eval(), several)
    finally:
        torso.train()
    return size


def _num_features(torso: nn.Module, batch: Tensor) -> int:
    version = batch._version
    features = _features(torso, batch)
    if batch._version != version:
        raise _not_a_torso(
            f"{type(torso).__name__} changes the observations that it is given, which are stored to be "
            "learned from. Clone them first in its forward()."
        )
    told = f"{type(torso).__name__} must turn observations into features [batch, features]"
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != len(batch):
        given = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise _not_a_torso(f"{told}, it turned {list(batch.shape)} into {given}.")
    if features.dtype not in (torch.float32, torch.bfloat16):
        raise _not_a_torso(f"{told} in float32, it returned {features.dtype}.")
    return int(features.shape[1])


def _features(torso: nn.Module, batch: Tensor) -> Any:
    try:
        return torso(batch)
    except Exception as error:  # whatever a user's own code may raise
        raise _not_a_torso(
            f"{type(torso).__name__} must turn observations into features [batch, features], and fails on "
            f"{list(batch.shape)}: {type(error).__name__}: {error}"
        ) from error


def _not_a_torso(what: str) -> InputError:
    return InputError(f"agent.network.torso: {what}", code="target", key="agent.network.torso")


def _habits(torso: nn.Module, batch: Tensor) -> Habits:
    """Seen in one forward pass as in training, after which all is as before."""
    generator = torch.get_rng_state()
    before = {name: buffer.clone() for name, buffer in torso.named_buffers()}
    _features(torso, batch)
    draws = not torch.equal(generator, torch.get_rng_state())
    torch.set_rng_state(generator)
    changed = [
        name for name, buffer in torso.named_buffers() if not torch.equal(buffer, before.get(name, batch))
    ]
    with torch.no_grad():
        for name, buffer in torso.named_buffers():
            buffer.copy_(before.get(name, buffer))
    return Habits(draws, tuple(changed))


def check_reads(torso: Component, space: gym.Space[Any]) -> None:
    """Raises InputError for observations that the torso cannot read."""
    target = torso.load()
    several_images = isinstance(space, gym.spaces.Dict) and sees_images(space)
    if several_images and not getattr(target, "several_inputs", False):
        raise InputError(
            f"agent.network.torso: {target.__name__} reads one array, this environment's observations are "
            f"{space}. Use agent/network=auto or agent/network=inputs.",
            code="unsupported",
            key="agent.network.torso",
        )
    taken = accepted_settings(target)
    if taken is not None and "observation_space" not in taken:
        raise _not_a_torso(
            f"{torso.target} cannot be built for an environment, because its __init__ takes no argument "
            "observation_space. Derive a class from it whose __init__ does, and name that one."
        )
    if hasattr(target, "check"):
        target.check(torso.config, vector_space(space))


def vector_space(space: gym.Space[Any]) -> gym.Space[Any]:
    """What networks see of observations: of several inputs without images, one vector."""
    if isinstance(space, gym.spaces.Dict) and not sees_images(space):
        return SideBySide(space).space
    return space


class SideBySide:
    """Inputs that are no images as one vector of real numbers, choices one-hot."""

    def __init__(self, space: gym.spaces.Dict) -> None:
        self._parts = [(name, choices_of(inner), range_of(inner)) for name, inner in space.spaces.items()]
        size = sum(gym.spaces.flatdim(inner) for inner in space.spaces.values())
        self.space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        """Of the vector."""

    def __call__(self, observation: NDArray) -> NDArray[np.float32]:
        """A batch with a field for each input -> [batch, size]"""
        columns = [_numbers(observation[name], choices, bounds) for name, choices, bounds in self._parts]
        return np.concatenate(columns, axis=1, dtype=np.float32)


def _numbers(values: NDArray, choices: list[tuple[int, int]], bounds: Any) -> NDArray:
    """[batch, *input] -> [batch, numbers]; bounds: what `range_of` says of the input's space."""
    if not choices and isinstance(bounds, tuple):
        low, width = bounds
        return ((values - low) / width).reshape(len(values), -1)
    rows = values.reshape(len(values), -1)
    if not choices:
        return rows if bounds == 1 else rows * np.float32(1 / bounds)
    return np.concatenate(
        [rows[:, i, None] == np.arange(first, first + n) for i, (first, n) in enumerate(choices)], axis=1
    )


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
    several_inputs = True

    def __init__(self, config: InputsConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self.check(config, observation_space)
        assert isinstance(observation_space, gym.spaces.Dict)
        images = {name: inner for name, inner in observation_space.spaces.items() if is_image(inner)}
        others = {name: inner for name, inner in observation_space.spaces.items() if name not in images}
        self._numbers = SideBySide(gym.spaces.Dict(others)) if others else None
        size = math.prod(self._numbers.space.shape) if self._numbers is not None else 0
        # A module has methods of its own, which an input may be called as.
        self.images = nn.ModuleDict(
            {
                f"{name}_torso": _of(config, name).build(observation_space=inner)
                for name, inner in images.items()
            }
        )
        self._names = list(images)
        self._num_bytes = 4 * size
        """Of the numbers, with which a row begins."""
        self._shapes: list[tuple[int, ...]] = []
        for part, inner in zip(self.images.values(), images.values(), strict=True):
            self._shapes.append(layout_of(part)(np.zeros((1, *(inner.shape or ())), np.uint8)).shape[1:])
            size += num_features(part, inner)
        self.joint: nn.Module = nn.Identity()
        if others:
            space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
            self.joint = config.joint.build(observation_space=space)

    @classmethod
    def check(cls, config: InputsConfig, observation_space: gym.Space[Any]) -> None:
        """Raises InputError for observations that are no Dict, and torsos that cannot read their input."""
        if not isinstance(observation_space, gym.spaces.Dict) or not sees_images(observation_space):
            raise InputError(
                "agent.network.torso: Inputs is for several inputs with images among them, got "
                f"{observation_space}. Use agent/network=auto.",
                code="unsupported",
                key="agent.network.torso",
            )
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
        for name, part in zip(self._names, self.images.values(), strict=True):
            parts.append(layout_of(part)(observation[name]).reshape(count, -1))
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
        with torch.autocast(observation.device.type, enabled=False):
            return self.joint(torch.cat([*(part.float() for part in features), numbers], dim=1))


def _of(config: InputsConfig, name: str) -> Component:
    return config.own.get(name, config.image)
