"""Coefficients of a resumed run: learning rates, clip ranges and other settings that may be schedules.

A resume may change coefficients; a change takes effect at the frame of the checkpoint. The recorded
configuration then contains the old schedule, the new schedule and that frame, so that the past stays exact
and a repetition of the run gives the same rows.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from labrl.component import Component
from labrl.config.keys import changes, written
from labrl.config.traits import dataclasses_in, hints
from labrl.errors import InputError
from labrl.schedules import (
    LinearSchedule,
    Schedule,
    SequenceSchedule,
    ShapedSchedule,
    largest,
    value_at,
)

if TYPE_CHECKING:
    from labrl.config.schema import TrialConfig

NEEDED = ("lr", "clip_range")
"""Endings of the names of coefficients that stop all learning while they are 0."""

_POINTS = 64
"""Number of equal intervals into which a range of frames is divided. Coefficients are evaluated at the ends
of the intervals."""


def coefficients(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the key and the value of each coefficient, that is, each setting that may be a schedule, in a
    configuration."""
    if isinstance(node, Component):
        node = node.config
    if isinstance(node, Mapping):
        for name, inner in node.items():
            yield from coefficients(inner, f"{key}.{name}" if key else str(name))
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        return
    for field in dataclasses.fields(node):
        name, value = f"{key}.{field.name}" if key else field.name, getattr(node, field.name)
        if LinearSchedule in dataclasses_in(hints(type(node))[field.name]):
            yield name, value
        else:
            yield from coefficients(value, name)


def hold_changes(
    then: Mapping[str, Any], now: Mapping[str, Any], config: TrialConfig, frame: int
) -> tuple[dict[str, Any], list[str]]:
    """Return a configuration in which changed coefficients keep their old values up to `frame` and then take
    their new ones, and the keys of these coefficients.

    then, now: the recorded and the new configuration as plain data; config: the new configuration as typed
    dataclasses.
    """
    held, keys = copy.deepcopy(dict(now)), []
    for key, value in coefficients(config):
        old, new = _at(then, key), _at(now, key)
        adapts = any(isinstance(one, Mapping) and one.get("kind") == "kl" for one in (old, new))
        if old is None or value is None or adapts or not changes({key: old}, {key: new}):
            continue
        parts = old["parts"] if isinstance(old, Mapping) and old["kind"] == "sequence" else [[0, old]]
        parts = [part for part in parts if part[0] < frame or part[0] == 0]
        parent, _, name = key.rpartition(".")
        _at(held, parent)[name] = {"kind": "sequence", "parts": [*parts, [frame, new]]}
        keys.append(key)
    return held, keys


def refuse_idle(config: TrialConfig, frame: int, before: int, typed: str) -> None:
    """Raise InputError if a run with a larger budget would learn nothing more, because a learning rate or a
    clip range stays at 0.

    config: configuration with the new budget; frame: frame of the checkpoint; before: the old budget, in
    frames; typed: command line of a new run.
    """
    budget = config.env.config.max_frame
    if budget <= before:
        return
    first = max(frame, before) + 1
    frames = [first + (budget - first) * at // _POINTS for at in range(_POINTS + 1)]
    idle: dict[str, float] = {}
    for key, value in coefficients(config):
        if not key.endswith(NEEDED) or not isinstance(value, Schedule):
            continue
        since, current = _last_part(value)
        if largest(current) > 0 and not any(value_at(value, one) for one in frames):
            # Values from before the last change of the coefficient are not those of the run as it is now.
            held = [since + (first - since) * at // _POINTS for at in range(_POINTS + 1)] if since else []
            idle[key] = max((value_at(current, one) for one in held), default=0) or largest(current)
    if not idle:
        return
    names = " and ".join(f"{key}={written(0)}" for key in idle)
    values = " ".join(f"{key}={_rounded(value)}" for key, value in idle.items())
    why = f"from frame {first - 1:,} on, the schedules of this run keep {names}, so nothing would be learned"
    fix = f"\nTo continue training with these values: env.max_frame={budget} {values}"
    fix += f"\nTo train a new run with the larger budget: {typed}"
    place = f"env.max_frame={budget}"
    raise InputError.about(place, f"{why}.{fix}", code="contradiction", key=next(iter(idle)))


def schedule_jumps(before: TrialConfig, now: TrialConfig, frame: int) -> Iterator[str]:
    """Yield a line on each coefficient whose new schedule has another value at `frame` than the coefficient
    had. This happens because schedules count frames from the start of the run.

    before, now: configurations of the run that continues and of its continuation; frame: frame of the
    checkpoint.
    """
    old, budget = dict(coefficients(before)), now.env.config.max_frame
    for key, value in coefficients(now):
        was, new = old.get(key), _last_part(value)[1] if isinstance(value, Schedule) else None
        if value == was or not isinstance(was, Schedule) or not isinstance(new, ShapedSchedule):
            continue
        here, there = value_at(was, frame), value_at(new, frame)
        if not math.isclose(here, there):
            points = f"[[{frame}, {_rounded(here)}], [{budget}, {_rounded(value_at(new, budget))}]]"
            yield (
                f"{key} is {_rounded(there)} at frame {frame:,}: schedules count from frame 0. To continue "
                f"from {_rounded(here)}: '{key}={{kind: piecewise, points: {points}}}'"
            )


def _last_part(schedule: Schedule) -> tuple[int, Schedule]:
    """Return the schedule that now applies, and the frame from which it applies: 0, or the frame of the last
    change by a resume."""
    return schedule.parts[-1] if isinstance(schedule, SequenceSchedule) else (0, schedule)


def _rounded(value: float) -> str:
    return written(float(f"{value:.3g}"))


def _at(plain: Mapping[str, Any], key: str) -> Any:
    node: Any = plain
    for name in key.split(".") if key else ():
        node = node.get(name) if isinstance(node, Mapping) else None
    return node
