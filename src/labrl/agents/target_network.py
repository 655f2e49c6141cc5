"""Target networks: the twin of a network that learns, and how its weights follow (`agent/target`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol

import torch
from torch import Tensor

from labrl.config.types import Fraction, PositiveInt
from labrl.networks.trained import Network, Trained


class TargetUpdate(Protocol):
    """Changes a target's weights, one flat vector, in place. Built as `Target(config)`; has no state."""

    def frames_passed(self, target: Tensor, weights: Tensor, before: int, now: int) -> None:
        """Called once a vector step, before the updates that it is time for; frames of the run. [size]"""
        ...

    def updated(self, target: Tensor, weights: Tensor) -> None:
        """Called after each update of `weights`. [size]"""
        ...


class Delayed(Generic[Network]):
    """The twin of a network that learns. It has no gradient."""

    def __init__(self, trained: Trained[Network], following: TargetUpdate) -> None:
        self.network, self.weights = trained.twin()
        self._learning, self._following = trained.weights, following

    def frames_passed(self, before: int, now: int) -> None:
        """To be called once a vector step, before the updates that it is time for; frames of the run."""
        self._following.frames_passed(self.weights, self._learning, before, now)

    def updated(self) -> None:
        """To be called after each update that it follows."""
        self._following.updated(self.weights, self._learning)

    @property
    def distance(self) -> float:
        """Euclidean distance of the weights."""
        return float((self._learning.detach() - self.weights).norm())


@dataclass(kw_only=True)
class ReplaceConfig:
    """A copy from time to time (Mnih et al., 2015)."""

    every: PositiveInt
    """Frames between copies, >= 1."""


class Replace:
    """The weights as they were at the last multiple of `every` frames."""

    Config = ReplaceConfig

    def __init__(self, config: ReplaceConfig) -> None:
        self._every = config.every

    def frames_passed(self, target: Tensor, weights: Tensor, before: int, now: int) -> None:
        """Copy where a multiple was crossed, whatever the number of frames in a step."""
        if now // self._every > before // self._every:
            with torch.no_grad():
                target.copy_(weights)

    def updated(self, target: Tensor, weights: Tensor) -> None:
        """Not its time."""


@dataclass(kw_only=True)
class PolyakConfig:
    """A moving average of the weights (Lillicrap et al., 2016, arXiv:1509.02971)."""

    tau: Fraction
    """Step towards the online weights in each update, in (0, 1]; 1: no delay at all."""


class Polyak:
    """target <- (1 - tau) target + tau weights."""

    Config = PolyakConfig

    def __init__(self, config: PolyakConfig) -> None:
        self._tau = config.tau

    def frames_passed(self, target: Tensor, weights: Tensor, before: int, now: int) -> None:
        """It follows updates, not frames."""

    def updated(self, target: Tensor, weights: Tensor) -> None:
        """Move a little."""
        with torch.no_grad():
            target.lerp_(weights, self._tau)
