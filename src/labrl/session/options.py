"""Configuration of profiling, of asynchronous acting, and of starting from another run's weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from labrl.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt


@dataclass(kw_only=True)
class ProfileConfig:
    """A window of training that is profiled."""

    start: NonNegativeInt
    """First profiled frame, >= 0."""
    frames: PositiveInt
    """Number of profiled frames, >= 1. Frames for a few updates are enough, because each update enlarges the
    trace."""


@dataclass(kw_only=True)
class AsyncUnrollConfig:
    """A process that acts ahead of the learner."""

    queue_size: PositiveInt
    """Maximum number of vector steps by which the actor may be ahead of the learner, >= 1. With larger
    values, it acts with older weights."""
    update_period: PositiveInt
    """Number of optimizer updates after which the actor receives new weights, >= 1."""
    step_interval: NonNegativeFloat
    """Shortest time between two vector steps in seconds, >= 0, for environments that run in real time."""
    timeout: PositiveFloat
    """Seconds without a step before the actor is considered hung, > 0."""


@dataclass(kw_only=True)
class StartFromConfig:
    """The run whose weights the agent starts from. Optimizer, replay buffer and clock are not loaded."""

    run: str | None
    """A run folder, or latest; null: the agent starts with newly initialized weights."""
    session: NonNegativeInt | Literal["best", "same"]
    """Index of the session in that run; best: the session with the highest evaluation score; same: each
    session starts from the session with its own index."""
    checkpoint: NonNegativeInt | Literal["best", "latest"]
    """Checkpoint to load: best, latest, or a frame."""
    parts: str | list[str]
    """Parts of the networks to load: all, or names such as torso or [policy, critics]. The statistics of
    normalized observations are the part `observation`."""
    partial: bool
    """Whether weights that do not fit keep their new initialization; false: such weights are an error."""
