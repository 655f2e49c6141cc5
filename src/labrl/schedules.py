"""Schedules: coefficients that change over the frames of a run, as pure functions without state.

Each schedule has an explicit `horizon`, the frame from which its value is constant, so that a larger budget
never changes the past of a run.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, MinLen

SMALLEST, LARGEST = 1.2e-38, 3.4e38
"""Range of magnitudes that single precision represents with full accuracy."""

Frames = Annotated[int, Ge(0)]


@dataclass(kw_only=True, frozen=True)
class _Shaped:
    """A schedule that starts at `start` and follows a shape until `horizon`, after an optional warm-up."""

    start: float
    """Value at the first frame, or after the warm-up."""
    horizon: Annotated[int, Ge(1)]
    """Frame from which the value is constant, >= 1."""
    warmup: Frames = 0
    """Number of frames, <= `horizon`, over which the value first changes linearly from 0 to `start`."""

    def __post_init__(self) -> None:
        if self.warmup > self.horizon:
            raise ValueError(f"warmup must not be longer than the horizon, {self.horizon}, got {self.warmup}")

    @abstractmethod
    def shape(self, done: int, way: int) -> float:
        """Return the value `done` frames after the warm-up, of the `way` frames until the horizon.

        0 <= done <= way.
        """


@dataclass(kw_only=True, frozen=True)
class LinearSchedule(_Shaped):
    """Linear change from `start` to `end`."""

    kind: Literal["linear"]
    end: float
    """Value at `horizon` and after."""

    def shape(self, done: int, way: int) -> float:
        """Return the value `done` frames after the warm-up, of the `way` frames until the horizon."""
        return self.start + (self.end - self.start) * (done / way)


@dataclass(kw_only=True, frozen=True)
class CosineSchedule(_Shaped):
    """Half a cosine period from `start` to `end` (Loshchilov & Hutter, 2017, arXiv:1608.03983, eq. 5)."""

    kind: Literal["cosine"]
    end: float
    """Value at `horizon` and after."""

    def shape(self, done: int, way: int) -> float:
        """Return the value `done` frames after the warm-up, of the `way` frames until the horizon."""
        return self.end + (self.start - self.end) * 0.5 * (1 + math.cos(math.pi * (done / way)))


@dataclass(kw_only=True, frozen=True)
class ExponentialSchedule(_Shaped):
    """Exponential change from `start` to `end`, with a constant ratio per frame."""

    kind: Literal["exponential"]
    start: Annotated[float, Gt(0)]
    """Value at the first frame, or after the warm-up, > 0."""
    end: Annotated[float, Gt(0)]
    """Value at `horizon` and after, > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.end / self.start < math.inf:
            raise ValueError(f"end / start must be a finite number > 0, got {self.end:g} / {self.start:g}")

    def shape(self, done: int, way: int) -> float:
        """Return the value `done` frames after the warm-up, of the `way` frames until the horizon."""
        return self.start * (self.end / self.start) ** (done / way)


@dataclass(kw_only=True, frozen=True)
class StepSchedule(_Shaped):
    """`start`, multiplied by `factor` at each of `steps` equally spaced frames, the last one at `horizon`."""

    kind: Literal["step"]
    factor: float
    """Factor by which the value is multiplied at each step."""
    steps: Annotated[int, Ge(1)]
    """Number of steps, >= 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            last = self.shape(1, 1)
        except OverflowError:
            last = math.inf
        if not abs(last) <= LARGEST:
            raise ValueError(
                f"start * factor ** steps must be a finite number, got {self.start:g} * {self.factor:g} ** "
                f"{self.steps}"
            )

    def shape(self, done: int, way: int) -> float:
        """Return the value `done` frames after the warm-up, of the `way` frames until the horizon."""
        return self.start * self.factor ** (self.steps * done // way)


ShapedSchedule = LinearSchedule | CosineSchedule | ExponentialSchedule | StepSchedule


@dataclass(kw_only=True, frozen=True)
class PiecewiseSchedule:
    """Linear interpolation between `points`, constant before the first and after the last one."""

    kind: Literal["piecewise"]
    points: Annotated[list[tuple[Frames, float]], MinLen(1), "[[frame, value], ...]"]
    """`[frame, value]` pairs with increasing frames."""

    def __post_init__(self) -> None:
        frames = [frame for frame, _ in self.points]
        if sorted(set(frames)) != frames:
            raise ValueError(f"the frames of the points must increase, got {frames}")

    def at(self, frame: int) -> float:
        """Return the value of the schedule at `frame`."""
        before = self.points[0]
        for point in self.points:
            if frame < point[0]:
                if frame <= before[0]:
                    return before[1]
                share = (frame - before[0]) / (point[0] - before[0])
                return before[1] + (point[1] - before[1]) * share
            before = point
        return before[1]


@dataclass(kw_only=True, frozen=True)
class SequenceSchedule:
    """Schedules that apply one after another, for a coefficient that was changed when its run was resumed."""

    kind: Literal["sequence"]
    parts: Annotated[list[tuple[Frames, float | ShapedSchedule | PiecewiseSchedule]], MinLen(1)]
    """`[frame, schedule]` pairs with increasing frames. Each schedule applies after its frame, the first one
    even before it. Each schedule counts frames from the start of the run, not from its own frame."""

    def __post_init__(self) -> None:
        frames = [frame for frame, _ in self.parts]
        if sorted(set(frames)) != frames:
            raise ValueError(f"the frames of the parts must increase, got {frames}")

    def at(self, frame: int) -> float:
        """Return the value of the schedule at `frame`."""
        held = [schedule for after, schedule in self.parts if after < frame]
        return value_at(held[-1] if held else self.parts[0][1], frame)


@dataclass(kw_only=True, frozen=True)
class AdaptiveRate:
    """Learning rate adapted to the divergence of the new policy from the old one (Rudin et al., 2022,
    arXiv:2109.11978, appendix; RL Games and skrl).

    The rate is not a function of the frame: the agent keeps and saves the current rate.
    """

    kind: Literal["kl"]
    rate: Annotated[float, Gt(0), "3e-4"]
    """Rate at the first frame, > 0. If a resume changes this key, the new value is the rate from then on."""
    target: Annotated[float, Gt(0), "0.01"]
    """KL divergence, > 0, in nats. The rate is adapted if the actual divergence is over twice or under half
    this target."""
    factor: Annotated[float, Gt(1), "1.5"] = 1.5
    """Factor, > 1, by which an adaptation multiplies or divides the rate."""
    min: Annotated[float, Gt(0)] = 1e-6
    """Lowest rate, > 0."""
    max: Annotated[float, Gt(0)] = 1e-2
    """Highest rate, > 0. The rate may rise to this limit at first, because a policy that is close to uniform
    diverges little. For images, choose at most 1e-3."""

    def __post_init__(self) -> None:
        if not self.min <= self.rate <= self.max:
            raise ValueError(f"must have min <= rate <= max, got {self.min:g}, {self.rate:g}, {self.max:g}")

    def adapted(self, rate: float, kl: float) -> float:
        """Return the next rate: lower if the divergence is over twice the target, higher if under half."""
        if kl > 2 * self.target:
            return max(rate / self.factor, self.min)
        return min(rate * self.factor, self.max) if kl < self.target / 2 else rate


Schedule = float | ShapedSchedule | PiecewiseSchedule | SequenceSchedule
"""A constant, or a function of the frame."""

SHAPED = ("linear", "cosine", "exponential", "step")
"""Kinds of schedules that may have a warm-up."""
KINDS = (*SHAPED, "piecewise", "sequence", "kl")
"""All kinds of schedules, with the adapted learning rate."""
SHORT = ("linear", "cosine", "exponential")
"""Kinds of schedules with a short form, `linear:<start>:<end>[:<horizon>[:<warmup>]]`."""

_PIECE = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|\$\{[^}]*\}"
_SHORT_FORM = re.compile(rf"({'|'.join(SHORT)})((?::(?:{_PIECE})){{2,4}})")


def expanded(value: Any) -> Any:
    """Expand a schedule that is in short form, or that lacks keys with defaults, to all its keys.

    Other values are returned unchanged. In short form, the default horizon is the budget, `env.max_frame`.
    """
    if isinstance(value, str) and (short := _SHORT_FORM.fullmatch(value)):
        default = {"kind": short[1], "start": 0, "end": 0, "horizon": "${env.max_frame}", "warmup": 0}
        return default | dict(zip([*default][1:], map(_piece, re.findall(_PIECE, short[2])), strict=False))
    if isinstance(value, dict) and value.get("kind") in SHAPED and {"start", "horizon"} <= value.keys():
        return {**value, "warmup": value.get("warmup", 0)}
    if isinstance(value, dict) and value.get("kind") == "kl":
        usual = {field.name: field.default for field in fields(AdaptiveRate) if field.default is not MISSING}
        return usual | value
    return value


def short_form(value: Any) -> list[Any] | None:
    """Return the parts of a schedule's short form, such as `["linear", 3e-4, 0, 1e6]`; None if none."""
    names = ("kind", "start", "end", "horizon", "warmup")
    if not isinstance(value, Mapping) or value.get("kind") not in SHORT or set(expanded(value)) != set(names):
        return None
    parts = [value.get(name) for name in names]
    return parts if parts[-1] else parts[:-1]


def _piece(text: str) -> Any:
    """Parse a number as YAML does. An interpolation such as `${env.max_frame}` is returned as text."""
    if text.startswith("$"):
        return text
    return int(float(text)) if float(text).is_integer() else float(text)


def smallest(schedule: Schedule | AdaptiveRate) -> float:
    """Return the minimum of a coefficient over all frames."""
    return min(_turning_values(schedule))


def largest(schedule: Schedule | AdaptiveRate) -> float:
    """Return the maximum of a coefficient over all frames."""
    return max(_turning_values(schedule))


def _turning_values(schedule: Schedule | AdaptiveRate) -> list[float]:
    """Return a list of values of a coefficient that includes its minimum and its maximum over all frames."""
    if isinstance(schedule, int | float):
        return [float(schedule)]
    if isinstance(schedule, AdaptiveRate):
        return [schedule.min, schedule.max]
    if isinstance(schedule, PiecewiseSchedule):
        return [value for _, value in schedule.points]
    if isinstance(schedule, SequenceSchedule):
        return [value for _, part in schedule.parts for value in _turning_values(part)]
    warm = [0.0] if schedule.warmup else []
    if isinstance(schedule, StepSchedule):
        # Powers are monotonic, or alternate in sign for a negative factor, so the extremes are at the ends.
        ends = {0, 1, schedule.steps - 1, schedule.steps}
        return [*warm, *(schedule.shape(step, schedule.steps) for step in sorted(ends))]
    return [*warm, schedule.start, schedule.end]


def value_at(schedule: Schedule, frame: int) -> float:
    """Return the coefficient at `frame` of the run."""
    if isinstance(schedule, int | float):
        return float(schedule)
    if isinstance(schedule, PiecewiseSchedule | SequenceSchedule):
        return schedule.at(frame)
    if frame < schedule.warmup:
        return schedule.start * frame / schedule.warmup
    way = schedule.horizon - schedule.warmup
    if not way:
        return schedule.shape(1, 1)  # the warm-up lasts until the horizon
    return schedule.shape(min(frame - schedule.warmup, way), way)
