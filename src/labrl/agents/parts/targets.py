"""Target networks: copies of a learning network whose weights follow it (`agent/target`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from labrl.learning.flat import Network
from labrl.learning.learner import Learner
from labrl.types import Fraction, PositiveInt


class TargetNetwork(Generic[Network]):
    """A copy of a learner's network with separate weights and no gradients, which derived classes update.

    Built as `Target(config, learner=Learner)`. Its weights are its only state.
    """

    def __init__(self, learner: Learner[Network]) -> None:
        self.network, self.weights = learner.copy_network()
        """Weights of `network` as one flat vector, to be changed in place. [size]"""
        self.followed = learner.flat.vector
        """Weights that the target network follows. [size]"""
        self.forward_network = learner.accelerate(self.network)
        """Function that computes the target network for losses, as fast as the learner's own network."""

    def frames_passed(self, before: int, now: int) -> None:
        """Advance the target network after a vector step, before the updates that are due.

        before, now: frames of the run before and after the step.
        """

    def updated(self) -> None:
        """React to an update of the followed weights."""

    @property
    def distance(self) -> float:
        """Euclidean distance between the target network's weights and the followed weights."""
        return float((self.followed.detach() - self.weights).norm())


@dataclass(kw_only=True)
class ReplaceConfig:
    """Periodic copies of the weights (Mnih et al., 2015)."""

    every: PositiveInt
    """Number of frames between copies, >= 1."""


class Replace(TargetNetwork[Network]):
    """Hard update of the target network: a copy every `every` frames."""

    Config = ReplaceConfig

    def __init__(self, config: ReplaceConfig, learner: Learner[Network]) -> None:
        super().__init__(learner)
        self._every = config.every

    def frames_passed(self, before: int, now: int) -> None:
        """Copy the weights if the step reaches a multiple of `every`, even if it jumps past the multiple."""
        if now // self._every > before // self._every:
            self.weights.copy_(self.followed.detach())


@dataclass(kw_only=True)
class PolyakConfig:
    """Moving average of the weights (Lillicrap et al., 2016, arXiv:1509.02971)."""

    tau: Fraction
    """Fraction of the distance to the online weights that each update covers, in (0, 1]; 1: no delay."""


class Polyak(TargetNetwork[Network]):
    """Target network with a moving average of the weights: target <- (1 - tau) target + tau weights."""

    Config = PolyakConfig

    def __init__(self, config: PolyakConfig, learner: Learner[Network]) -> None:
        super().__init__(learner)
        self._tau = config.tau

    def updated(self) -> None:
        """Move the target network's weights toward the followed weights."""
        self.weights.lerp_(self.followed.detach(), self._tau)
