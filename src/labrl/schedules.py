"""Coefficients that change over the frames of a run: pure functions of the clock, with no state of their own.

Each shape has an explicit `horizon`, the frame at which it ends and from which it stays as it is, so
that a longer budget never changes the past of a run.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, MinLen

SMALLEST, LARGEST = 1.2e-38, 3.4e38
"""Between these sizes single precision holds a number in all its digits."""

Frames = Annotated[int, Ge(0)]


@dataclass(kw_only=True, frozen=True)
class _Shaped:
    """A schedule from `start` along a shape until `horizon`, after an optional warm-up."""

    start: float
    """Value at the first frame, or after the warm-up."""
    horizon: Annotated[int, Ge(1)]
    """Frame at which the shape has ended, >= 1."""
    warmup: Frames = 0
    """Frames over which the value first rises from 0 to `start`, <= horizon."""

    def __post_init__(self) -> None:
        if self.warmup > self.horizon:
            raise ValueError(
                f"warmup must not be longer than horizon {self.horizon}, where all ends, got {self.warmup}"
            )

    @abstractmethod
    def shape(self, done: int, way: int) -> float:
        """Value after `done` of the `way`'s frames, 0 <= done <= way."""


@dataclass(kw_only=True, frozen=True)
class LinearSchedule(_Shaped):
    """A straight line from `start` to `end`."""

    kind: Literal["linear"]
    end: float
    """Value at `horizon` and after."""

    def shape(self, done: int, way: int) -> float:
        """Return the value on the line."""
        return self.start + (self.end - self.start) * (done / way)


@dataclass(kw_only=True, frozen=True)
class CosineSchedule(_Shaped):
    """Half a cosine from `start` to `end` (Loshchilov & Hutter, 2017, arXiv:1608.03983, eq. 5)."""

    kind: Literal["cosine"]
    end: float
    """Value at `horizon` and after."""

    def shape(self, done: int, way: int) -> float:
        """Return the value on the cosine."""
        return self.end + (self.start - self.end) * 0.5 * (1 + math.cos(math.pi * (done / way)))


@dataclass(kw_only=True, frozen=True)
class ExponentialSchedule(_Shaped):
    """A constant ratio per frame from `start` to `end`."""

    kind: Literal["exponential"]
    start: Annotated[float, Gt(0)]
    """Value at the first frame, or after the warm-up, > 0."""
    end: Annotated[float, Gt(0)]
    """Value at `horizon` and after, > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.end / self.start < math.inf:
            raise ValueError(f"end / start is beyond all numbers, got {self.end:g} / {self.start:g}")

    def shape(self, done: int, way: int) -> float:
        """A power of the whole ratio."""
        return self.start * (self.end / self.start) ** (done / way)


@dataclass(kw_only=True, frozen=True)
class StepSchedule(_Shaped):
    """`start`, multiplied by `factor` at each of `steps` equal parts of the way; the last is at `horizon`."""

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
                f"start * factor ** steps is beyond all numbers, got {self.start:g} * {self.factor:g} ** "
                f"{self.steps}"
            )

    def shape(self, done: int, way: int) -> float:
        """Return the product of the factors of the steps so far."""
        return self.start * self.factor ** (self.steps * done // way)


@dataclass(kw_only=True, frozen=True)
class PiecewiseSchedule:
    """Straight lines through `points`; constant before the first and after the last."""

    kind: Literal["piecewise"]
    points: Annotated[list[tuple[Frames, float]], MinLen(1)]
    """`[frame, value]` pairs with growing frames."""

    def __post_init__(self) -> None:
        frames = [frame for frame, _ in self.points]
        if sorted(set(frames)) != frames:
            raise ValueError(f"the frames of the points must grow, got {frames}")

    def at(self, frame: int) -> float:
        """Value at `frame`."""
        before = self.points[0]
        for point in self.points:
            if frame < point[0]:
                if frame <= before[0]:
                    return before[1]
                share = (frame - before[0]) / (point[0] - before[0])
                return before[1] + (point[1] - before[1]) * share
            before = point
        return before[1]


ShapedSchedule = LinearSchedule | CosineSchedule | ExponentialSchedule | StepSchedule
Schedule = float | ShapedSchedule | PiecewiseSchedule
"""A constant, or a function of the frame."""

SHAPED = ("linear", "cosine", "exponential", "step")
"""Kinds that have a warm-up."""
SHORT = ("linear", "cosine", "exponential")
"""Kinds that have a short form, `linear:<start>:<end>[:<horizon>[:<warmup>]]`."""

_PIECE = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|\$\{[^}]*\}"
_SHORT_FORM = re.compile(rf"({'|'.join(SHORT)})((?::(?:{_PIECE})){{2,4}})")


def written_out(value: Any) -> Any:
    """Give a schedule in short form, or one without `warmup`, all its keys. Return other values as they are.

    In short form the horizon is the budget, `env.max_frame`, unless it is given.
    """
    if isinstance(value, str) and (short := _SHORT_FORM.fullmatch(value)):
        default = {"kind": short[1], "start": 0, "end": 0, "horizon": "${env.max_frame}", "warmup": 0}
        return default | dict(zip([*default][1:], map(_piece, short[2].split(":")[1:]), strict=False))
    if isinstance(value, dict) and value.get("kind") in SHAPED and {"start", "horizon"} <= value.keys():
        return {**value, "warmup": value.get("warmup", 0)}
    return value


def _piece(text: str) -> Any:
    """A number as YAML would have it. A reference such as `${env.max_frame}` remains text."""
    if text.startswith("$"):
        return text
    return int(float(text)) if float(text).is_integer() else float(text)


def smallest(schedule: Schedule) -> float:
    """The lowest value that the coefficient ever has."""
    return min(_turning_values(schedule))


def largest(schedule: Schedule) -> float:
    """The highest value that the coefficient ever has."""
    return max(_turning_values(schedule))


def _turning_values(schedule: Schedule) -> list[float]:
    """Values between which all others lie."""
    if isinstance(schedule, int | float):
        return [float(schedule)]
    if isinstance(schedule, PiecewiseSchedule):
        return [value for _, value in schedule.points]
    warm = [0.0] if schedule.warmup else []
    if isinstance(schedule, StepSchedule):
        # A power grows or falls, a negative factor's from one side of 0 to the other: the ends are furthest.
        ends = {0, 1, schedule.steps - 1, schedule.steps}
        return [*warm, *(schedule.shape(step, schedule.steps) for step in sorted(ends))]
    return [*warm, schedule.start, schedule.end]


def value_at(schedule: Schedule, frame: int) -> float:
    """The coefficient at `frame` of the run."""
    if isinstance(schedule, int | float):
        return float(schedule)
    if isinstance(schedule, PiecewiseSchedule):
        return schedule.at(frame)
    if frame < schedule.warmup:
        return schedule.start * frame / schedule.warmup
    way = schedule.horizon - schedule.warmup
    if not way:
        return schedule.shape(1, 1)  # a warm-up until the horizon, where all has ended
    return schedule.shape(min(frame - schedule.warmup, way), way)
