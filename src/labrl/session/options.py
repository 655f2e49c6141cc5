"""The keys of `meta` that are groups of their own: what is profiled, and how a process acts ahead."""

from __future__ import annotations

from dataclasses import dataclass

from labrl.config.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from labrl.errors import InputError


@dataclass(kw_only=True)
class ProfileConfig:
    """A window of training that is profiled."""

    start: NonNegativeInt
    """Frame at which it begins, >= 0."""
    frames: PositiveInt
    """Frames that it lasts, >= 1: a few updates are enough, and each makes a trace longer."""


@dataclass(kw_only=True)
class AsyncUnrollConfig:
    """One process that acts ahead of the learner."""

    queue_size: PositiveInt
    """Vector steps that it may be ahead, >= 1: with more, the weights that act are older."""
    update_period: PositiveInt
    """Optimizer updates from one publication of the weights to the next, >= 1."""
    step_interval: NonNegativeFloat
    """Seconds from one vector step to the next at least, for what runs in real time, >= 0."""
    timeout: PositiveFloat
    """Seconds of silence after which it counts as hanging, > 0."""

    def __post_init__(self) -> None:
        if self.timeout <= self.step_interval:
            raise InputError(
                f"meta.async_unroll.timeout={self.timeout:g} must be more than meta.async_unroll."
                f"step_interval={self.step_interval:g}, or an actor that keeps its pace counts as hanging",
                code="contradiction",
                key="meta.async_unroll.timeout",
            )
