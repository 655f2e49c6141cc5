"""Target networks: copies of a network that learns, and how their weights follow it (`agent/target`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

import torch

from labrl.learning.learner import Learner, Network, as_arrays
from labrl.types import Fraction, PositiveInt


class TargetNetwork(Generic[Network]):
    """A copy of a learner's network with weights of its own and no gradient; derived classes let them follow.

    Built as `Target(config, learner=Learner)`. It has no state but its weights.
    """

    def __init__(self, learner: Learner[Network]) -> None:
        self.network, self.weights = learner.twin()
        """`weights`: those of `network`, one flat vector, to be changed in place. [size]"""
        self.followed = learner.flat.vector
        """The weights that it follows. [size]"""
        self.forward_network = learner.in_precision(self.network)
        """The network in the session's precision, for losses."""
        self._kernel, self._tensor = learner.kernel_of(self.network), learner.tensor

    def forward(self, *inputs: Any) -> Any:
        """Compute `network(*inputs)`, with arrays in place of tensors; the next call overwrites them."""
        kernel = self._kernel.now
        if kernel is not None:
            return kernel.forward(*inputs)
        with torch.inference_mode():
            return as_arrays(self.network(*map(self._tensor, inputs)))

    def frames_passed(self, before: int, now: int) -> None:
        """Take in that a vector step passes, before the updates that it makes due.

        before, now: frames of the run.
        """

    def updated(self) -> None:
        """Take in an update of the weights that it follows."""

    @property
    def distance(self) -> float:
        """Euclidean distance of its weights from those that it follows."""
        return float((self.followed.detach() - self.weights).norm())


@dataclass(kw_only=True)
class ReplaceConfig:
    """A copy from time to time (Mnih et al., 2015)."""

    every: PositiveInt
    """Frames between copies, >= 1."""


class Replace(TargetNetwork[Network]):
    """The weights as they were at the last multiple of `every` frames."""

    Config = ReplaceConfig

    def __init__(self, config: ReplaceConfig, learner: Learner[Network]) -> None:
        super().__init__(learner)
        self._every = config.every

    def frames_passed(self, before: int, now: int) -> None:
        """Copy the weights if a multiple was crossed, whatever the number of frames in a step."""
        if now // self._every > before // self._every:
            with torch.no_grad():
                self.weights.copy_(self.followed)


@dataclass(kw_only=True)
class PolyakConfig:
    """A moving average of the weights (Lillicrap et al., 2016, arXiv:1509.02971)."""

    tau: Fraction
    """Step towards the online weights in each update, in (0, 1]; 1: no delay at all."""


class Polyak(TargetNetwork[Network]):
    """target <- (1 - tau) target + tau weights."""

    Config = PolyakConfig

    def __init__(self, config: PolyakConfig, learner: Learner[Network]) -> None:
        super().__init__(learner)
        self._tau = config.tau

    def updated(self) -> None:
        """Move the target towards the weights."""
        with torch.no_grad():
            self.weights.lerp_(self.followed, self._tau)
