"""Scalar types for config dataclasses. Ranges are part of the type.

`labrl.config.validate` reads every int with `whole_number` and every float with `real_number`: `true` and
`"3"` are not numbers, and `1e7` is a whole number.
"""

from __future__ import annotations

import fractions
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from labrl import schedules
from labrl.schedules import LARGEST, SMALLEST


def whole_number(value: Any) -> int:
    """Return `value` as a 64-bit int. Floats such as 1e7 are accepted; bools and text are not."""
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not whole or isinstance(value, bool):
        raise PydanticCustomError("type", "must be a whole number")
    if abs(value) >= 2**63:
        raise PydanticCustomError("range", "must be a whole number below 2^63, about 9e18")
    return int(value)


def real_number(value: Any) -> float:
    """Return `value` as a float in the range of single precision. Bools and text are not accepted."""
    if not _is_finite_number(value):
        raise PydanticCustomError("type", "must be a finite number")
    # Networks use single precision, in which a larger number would fail during the run, and a smaller one
    # would become 0, even if the key requires a positive number.
    if value and not SMALLEST <= abs(value) <= LARGEST:
        allowed = f"must be 0 or have a magnitude between {SMALLEST:.2g} and {LARGEST:.2g}"
        raise PydanticCustomError("range", allowed)
    return float(value)


def _seed(value: Any) -> Any:
    """Return `value`. Raises for `auto`, which only a grid accepts."""
    if isinstance(value, str) and value.startswith("auto"):
        grid = "auto is for a grid of several groups, such as labrl -m agent=ppo,a2c seed=auto"
        raise PydanticCustomError("usage", f"must be a whole number ({grid})")
    return value


def _info_keys(value: Any, parent: str = "") -> Any:
    """Return a dict from dotted names of entries to reductions. A list means `last`; groups may be nested."""
    if value == "auto" and not parent:
        return {"success": "auto"}
    if isinstance(value, list) and not parent and all(isinstance(name, str) for name in value):
        return dict.fromkeys(value, "last")
    if parent and value in get_args(Reduction):
        return {parent: value}
    if not isinstance(value, Mapping):
        ways = ", ".join(get_args(Reduction))
        told = f"must be a list of names, or have one of {ways} for each name, such as {{success: last}}"
        raise PydanticCustomError("type", told)
    found: dict[str, Any] = {}
    for name, inner in value.items():
        found |= _info_keys(inner, f"{parent}.{name}" if parent else str(name))
    return found


INFO = "info/"
"""Prefix of the names of the columns for `env.info_keys`."""


def _is_finite_number(value: Any) -> bool:
    """Return whether `value` is a number, and neither infinite nor a bool."""
    # math.isfinite fails for integers above the largest float.
    return isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0


def _schedule(value: Any) -> Any:
    """Expand the short form of a schedule. Raises unless the value is a number or a group of keys."""
    schedule = schedules.expanded(value) if isinstance(value, str) else value
    readable = _is_finite_number(schedule) or isinstance(schedule, Mapping | Shape | schedules.AdaptiveRate)
    if not readable or (isinstance(value, str) and "${" in str(schedule)):  # only Hydra knows the budget
        text = f"{'|'.join(schedules.SHORT)}:<start>:<end>[:<horizon>], or a group of keys with a kind"
        raise PydanticCustomError("type", f"must be a finite number or a schedule ({text})")
    return schedule


Shape = schedules.ShapedSchedule | schedules.PiecewiseSchedule | schedules.SequenceSchedule
Schedule = Annotated[float | Annotated[Shape, Field(discriminator="kind")], BeforeValidator(_schedule)]
"""number or schedule"""


def _in_range(lowest: float, highest: float, allowed: str) -> AfterValidator:
    """Return a validator that refuses a number or schedule outside the range at any frame."""

    def check(value: Any) -> Any:
        if schedules.smallest(value) < lowest or schedules.largest(value) > highest:
            when = "" if isinstance(value, int | float) else " at every frame"
            raise PydanticCustomError("range", f"must {allowed}{when}")
        return value

    return AfterValidator(check)


def _exact_ratio(value: Any, example: str = "1/3") -> fractions.Fraction:
    """Return `value` exactly as written: 0.1 is one tenth, not the nearest float."""
    if isinstance(value, fractions.Fraction) and value > 0:
        return value
    quotient = isinstance(value, str) and re.fullmatch(r"\s*\d+\s*/\s*0*[1-9]\d*\s*", value)
    ratio = fractions.Fraction(str(value).replace(" ", "")) if _is_finite_number(value) or quotient else None
    if ratio is None or ratio <= 0:
        code = "type" if ratio is None else "range"
        raise PydanticCustomError(code, f'must be a number greater than 0, or a quotient such as "{example}"')
    return ratio


def _frequency(value: Any) -> int | fractions.Fraction:
    """Return a number of frames, or a fraction of the budget."""
    amount = _exact_ratio(value, "1/20")
    is_part = isinstance(value, str | fractions.Fraction)
    if amount > 1 if is_part else amount.denominator > 1:
        allowed = 'must be a whole number of frames, or a fraction of env.max_frame such as "1/20"'
        raise PydanticCustomError("range", allowed)
    return amount if is_part else int(amount)


class Early(NamedTuple):
    """A frequency of rows, with additional rows at the start of a run."""

    frequency: int | fractions.Fraction


def _row_frequency(value: Any) -> int | fractions.Fraction | Early:
    """Return a `Frequency`, or `Early` for text that starts with `early:`."""
    try:
        if isinstance(value, str) and value.startswith("early:"):
            rest = value.removeprefix("early:")
            return Early(_frequency(int(rest) if rest.isdecimal() else rest))
        return _frequency(value)
    except PydanticCustomError as error:
        also = 'either of these after "early:", such as early:10000'
        raise PydanticCustomError(error.type, f"{error.message()}, or {also}") from None


def frames_between(frequency: int | fractions.Fraction | Early, max_frame: int) -> int:
    """Return a frequency as a number of frames, for a budget of `max_frame` frames."""
    if isinstance(frequency, Early):
        frequency = frequency.frequency
    return frequency if isinstance(frequency, int) else max(math.ceil(frequency * max_frame), 1)


Reduction = Literal["last", "sum", "mean", "min", "max", "auto"]
"""How an episode's value of an `env.info_keys` entry is computed from the values of its steps. auto: the last
step's value of the entry, or else of the entry with the prefix `is_`; no column if there is neither."""
InfoKeys = Annotated[dict[str, Reduction], BeforeValidator(_info_keys)]
"""`auto`, list of names, or one of `last`, `sum`, `mean`, `min`, `max`, `auto` for each name"""
PositiveInt = Annotated[int, Field(ge=1)]
"""integer >= 1"""
NonNegativeInt = Annotated[int, Field(ge=0)]
"""integer >= 0"""
Seed = Annotated[NonNegativeInt | None, BeforeValidator(_seed)]
"""integer >= 0 or null"""
PositiveFloat = Annotated[float, Field(gt=0)]
"""number > 0"""
NonNegativeFloat = Annotated[float, Field(ge=0)]
"""number >= 0"""
Probability = Annotated[float, Field(ge=0, le=1)]
"""number in [0, 1]"""
Fraction = Annotated[float, Field(gt=0, le=1)]
"""number in (0, 1]"""
# Standard deviations from 2e-9 to 2e4; far outside this range the first losses are not finite.
LogDeviation = Annotated[float, Field(ge=-20, le=10)]
"""number in [-20, 10]"""
NonNegativeSchedule = Annotated[Schedule, _in_range(0, math.inf, "be at least 0")]
"""number or schedule >= 0"""
AdaptiveSchedule = Annotated[
    float | Annotated[Shape | schedules.AdaptiveRate, Field(discriminator="kind")],
    BeforeValidator(_schedule),
    _in_range(0, math.inf, "be at least 0"),
]
"""number or schedule >= 0, or a rate adapted to the divergence, `{kind: kl, rate: 3e-4, target: 0.01}`"""
ProbabilitySchedule = Annotated[Schedule, _in_range(0, 1, "lie between 0 and 1")]
"""number or schedule in [0, 1]"""
PositiveRatio = Annotated[fractions.Fraction, PlainValidator(_exact_ratio)]
"""number or quotient such as "1/3", > 0, stored exactly"""
Frequency = Annotated[int | fractions.Fraction, PlainValidator(_frequency)]
"""frames >= 1, or a fraction of the budget such as "1/20" """
RowFrequency = Annotated[int | fractions.Fraction | Early, PlainValidator(_row_frequency)]
"""frames >= 1 or a fraction of the budget such as "1/20"; prefix "early:" for more rows at the start"""
