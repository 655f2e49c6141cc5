"""Keys that are groups: the profiled frames, acting in a process of its own, weights to begin with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from labrl.config.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from labrl.errors import InputError


@dataclass(kw_only=True)
class ProfileConfig:
    """A window of training that is profiled."""

    start: NonNegativeInt
    """First profiled frame, >= 0."""
    frames: PositiveInt
    """Number of profiled frames, >= 1: a few updates are enough, and each lengthens the trace."""


@dataclass(kw_only=True)
class AsyncUnrollConfig:
    """One process that acts ahead of the learner."""

    queue_size: PositiveInt
    """Vector steps that the actor may be ahead of the learner, >= 1: with more, acting weights are older."""
    update_period: PositiveInt
    """Optimizer updates between two publications of the weights, >= 1."""
    step_interval: NonNegativeFloat
    """Least seconds between two vector steps, for environments in real time, >= 0."""
    timeout: PositiveFloat
    """Seconds without a step after which the actor counts as hanging, > 0."""

    def __post_init__(self) -> None:
        if self.timeout <= self.step_interval:
            raise InputError(
                f"meta.async_unroll.timeout={self.timeout:g} must be more than meta.async_unroll."
                f"step_interval={self.step_interval:g}, or an actor that keeps its pace counts as hanging",
                code="contradiction",
                key="meta.async_unroll.timeout",
            )


@dataclass(kw_only=True)
class StartFromConfig:
    """The run whose weights the agent begins with. Its optimizer, replay buffer and clock begin anew."""

    run: str | None
    """A run folder, or latest; null: the agent begins with weights of its own."""
    session: NonNegativeInt | Literal["best", "same"]
    """Number of the session of that run; best: the one with the highest evaluation score; same: each session
    begins with the weights of the session of its number."""
    checkpoint: NonNegativeInt | Literal["best", "latest"]
    """Checkpoint: best, latest, or a frame."""
    parts: str | list[str]
    """Parts of the networks that are taken: all, or names such as torso or [policy, critics]; the statistics
    of normalized observations are the part `observation`."""
    partial: bool
    """Whether what does not fit begins anew; false: the run is refused then."""
