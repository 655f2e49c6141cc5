"""Scalar types of config dataclasses: strict where YAML is sloppy.

`true` is not a number, `"3"` is not a number, and `1e7` is a whole number. Ranges are part of the type.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from labrl.schedules import Schedule, smallest

__all__ = [
    "Fraction",
    "NonNegativeFloat",
    "NonNegativeInt",
    "NonNegativeSchedule",
    "PositiveFloat",
    "PositiveInt",
    "Probability",
    "Schedule",
    "real_number",
    "whole_number",
]


def whole_number(value: Any) -> int:
    """`value` as an int; a float such as 1e7 counts, a bool or text does not."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise ValueError("must be a whole number")


def real_number(value: Any) -> float:
    """`value` as a finite float; a bool or text does not count."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ValueError("must be a finite number")


def _never_negative(schedule: Schedule) -> Schedule:
    if smallest(schedule) < 0:
        raise ValueError("must be at least 0 at every frame")
    return schedule


_Whole = BeforeValidator(whole_number)
_Real = BeforeValidator(real_number)

PositiveInt = Annotated[int, _Whole, Field(ge=1)]
"""1, 2, ..."""
NonNegativeInt = Annotated[int, _Whole, Field(ge=0)]
"""0, 1, ..."""
PositiveFloat = Annotated[float, _Real, Field(gt=0)]
"""(0, inf)"""
NonNegativeFloat = Annotated[float, _Real, Field(ge=0)]
"""[0, inf)"""
Probability = Annotated[float, _Real, Field(ge=0, le=1)]
"""[0, 1]"""
Fraction = Annotated[float, _Real, Field(gt=0, le=1)]
"""(0, 1]"""
NonNegativeSchedule = Annotated[Schedule, AfterValidator(_never_negative)]
"""A number or a schedule in [0, inf)"""
