"""Scalar types of config dataclasses: strict where YAML is sloppy.

`true` is not a number, `"3"` is not a number, and `1e7` is a whole number. Ranges are part of the type.
"""

from __future__ import annotations

import fractions
import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from labrl.schedules import LARGEST, SMALLEST, Schedule, largest, smallest

__all__ = [
    "Fraction",
    "Frequency",
    "LogDeviation",
    "NonNegativeFloat",
    "NonNegativeInt",
    "NonNegativeSchedule",
    "PositiveFloat",
    "PositiveInt",
    "PositiveRatio",
    "Probability",
    "ProbabilitySchedule",
    "Schedule",
    "frames_between",
    "real_number",
    "whole_number",
]


def whole_number(value: Any) -> int:
    """`value` as an int of 64 bits; a float such as 1e7 counts, a bool or text does not."""
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not whole or isinstance(value, bool):
        raise ValueError("must be a whole number")
    if abs(value) >= 2**63:  # arrays and clocks of such a size there are not
        raise ValueError("must be a whole number below 2^63, some 9e18")
    return int(value)


def _is_finite_number(value: Any) -> bool:
    """A bool or text is none. Not by math.isfinite, which fails for a whole number beyond all floats."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0


def real_number(value: Any) -> float:
    """`value` as a float that single precision holds; a bool or text does not count."""
    if not _is_finite_number(value):
        raise ValueError("must be a finite number")
    # All computing is in single precision: beyond it torch stumbles in the middle of a run, and what is
    # nearer to 0 counts as 0, although it may have to be greater.
    if value and not SMALLEST <= abs(value) <= LARGEST:
        raise ValueError(f"must be 0 or a number of a size between {SMALLEST:.2g} and {LARGEST:.2g}")
    return float(value)


def _never_negative(schedule: Schedule) -> Schedule:
    if smallest(schedule) < 0:
        raise ValueError("must be at least 0 at every frame")
    return schedule


def _a_probability(schedule: Schedule) -> Schedule:
    if smallest(schedule) < 0 or largest(schedule) > 1:
        raise ValueError("must lie between 0 and 1 at every frame")
    return schedule


def _exact_ratio(value: Any) -> fractions.Fraction:
    """`value` as it is written: 0.1 is a tenth, and no float near it."""
    if isinstance(value, fractions.Fraction) and value > 0:
        return value
    quotient = isinstance(value, str) and re.fullmatch(r"\s*\d+\s*/\s*0*[1-9]\d*\s*", value)
    ratio = fractions.Fraction(str(value).replace(" ", "")) if _is_finite_number(value) or quotient else None
    if ratio is None or ratio <= 0:
        raise ValueError('must be a number greater than 0, or a quotient of two such as "1/3"')
    return ratio


def _frequency(value: Any) -> int | fractions.Fraction:
    """Frames, or a share of the budget as a quotient."""
    told = 'must be a number of frames >= 1, or a share of the budget such as "1/20"'
    try:
        amount = _exact_ratio(value) if isinstance(value, str | fractions.Fraction) else whole_number(value)
    except ValueError:
        raise ValueError(told) from None
    allowed = amount >= 1 if isinstance(amount, int) else amount <= 1
    if not allowed:
        raise ValueError(told)
    return amount


def frames_between(frequency: int | fractions.Fraction, max_frame: int) -> int:
    """What a `Frequency` comes to in a budget of `max_frame` frames."""
    return frequency if isinstance(frequency, int) else max(math.ceil(frequency * max_frame), 1)


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
LogDeviation = Annotated[float, _Real, Field(ge=-20, le=10)]
"""[-20, 10], which are deviations of 2e-9 to 2e4: far beyond, the first losses are no numbers"""
NonNegativeSchedule = Annotated[Schedule, AfterValidator(_never_negative)]
"""A number or a schedule in [0, inf)"""
ProbabilitySchedule = Annotated[Schedule, AfterValidator(_a_probability)]
"""A number or a schedule in [0, 1]"""
PositiveRatio = Annotated[fractions.Fraction, PlainValidator(_exact_ratio)]
"""A number or a quotient such as "1/3" in (0, inf), kept exactly"""
Frequency = Annotated[int | fractions.Fraction, PlainValidator(_frequency)]
"""Frames from one time to the next, >= 1; or as a quotient in (0, 1], "1/20", a share of the budget"""
