"""The overrides of the commands that show what was learned: `labrl +enjoy=...` and `labrl-replay`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from labrl.errors import InputError
from labrl.mistakes.spelling import did_you_mean
from labrl.trial.past import choices
from labrl.trial.resume import own_overrides

Render = Literal["video", "human"]


@dataclass(frozen=True, kw_only=True)
class EnjoyRequest:
    """`+enjoy=<run>` and what goes with it."""

    which: str
    """A run folder, or `latest`."""
    choices: list[str]
    """Overrides such as env=pong, with which the run must agree."""
    checkpoint: str = "default"
    """best, latest, or a frame; default: the best, and where there is none the latest."""
    session: int | None = None
    """Number of the session; None: the one with the highest evaluation score."""
    episodes: int = 10
    """Episodes to play, >= 1."""
    greedy: bool | None = None
    """Whether the agent does what it thinks best, or acts by its policy; None: as under evaluation."""
    epsilon: float | None = None
    """Probability of a random action, in [0, 1]; None: as under evaluation."""
    render: Render = "video"
    videos: int | None = None
    """Number of episodes that become videos; None: all, or none with a window."""
    seed: int = 0
    """Another one gives other episodes."""


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """A request to `labrl-replay`."""

    which: str
    """A run folder, or `latest`."""
    episode: str = "best"
    """`best`, `last`, or the frame of an evaluation."""
    session: int | None = None
    """Number of the session; None: the first that has the episode."""
    render: Render = "video"


def enjoy_request(overrides: Sequence[str], multirun: bool = False) -> EnjoyRequest | None:
    """Return what `overrides` ask for, or None without `+enjoy`. Raises InputError for wrong ones."""
    found, others = own_overrides(overrides, ["enjoy"])
    if not found:
        return None
    which = found["enjoy"]
    if multirun:
        raise InputError(
            "+enjoy plays one run, so it cannot be part of an experiment: leave out -m",
            code="contradiction",
            key="-m",
        )
    chosen = [override for override in others if choices([override])]
    names = ("checkpoint", "session", "episodes", "greedy", "epsilon", "render", "videos", "seed")
    takes = f"+enjoy={which} plays what a run has learned, in the environment that it learned in, and takes"
    given = _options([override for override in others if override not in chosen], names, takes)
    return EnjoyRequest(which=which, choices=chosen, **given)


def replay_request(which: str, overrides: Sequence[str]) -> ReplayRequest:
    """Return what `labrl-replay <which> <overrides>` asks for. Raises InputError for a wrong override."""
    names = ("episode", "session", "render")
    return ReplayRequest(which=which, **_options(overrides, names, "labrl-replay <run folder> takes"))


def _options(overrides: Sequence[str], known: Sequence[str], takes: str) -> dict[str, Any]:
    """Return the value of each override by its name. Raises InputError for one that is unknown or wrong."""
    given: dict[str, str] = {}
    for override in overrides:
        name, _, value = override.partition("=")
        name = name.lstrip("+")
        if name not in known:
            raise InputError(
                f"{override}: {takes} {', '.join(known)}.{did_you_mean(name, known)}",
                code="unknown-key",
                key=name,
            )
        if not value:
            raise InputError(f"{override}: needs a value, as in {name}=<value>", code="missing", key=name)
        if name in given:
            raise InputError(
                f"{name} is given twice: {name}={given[name]} and {override}. Leave one out.",
                code="contradiction",
                key=name,
            )
        given[name] = value
    return {name: _VALUES[name](name, value) for name, value in given.items()}


def _at_least(least: int) -> Callable[[str, str], int]:
    def parsed(name: str, value: str) -> int:
        number = _whole(value)
        if number is None or number < least:
            none = " (0: none)" if least == 0 else ""
            raise InputError(
                f"{name}={value}: must be a whole number of at least {least}{none}",
                code="type" if number is None else "range",
                key=name,
            )
        return number

    return parsed


def _one_of(*allowed: str, frame_of: str = "") -> Callable[[str, str], str]:
    """Return a parser for one of the `allowed` values, or a frame. frame_of: whose frame that is."""

    def parsed(name: str, value: str) -> str:
        frame = _whole(value) if frame_of else None
        if frame is not None and frame >= 0:
            return str(frame)
        if value not in allowed:
            last = f"the frame of {frame_of}" if frame_of else ""
            *firsts, end = [*allowed, *([last] if last else [])]
            raise InputError(f"{name}={value}: must be {', '.join(firsts)} or {end}", code="range", key=name)
        return value

    return parsed


def _probability(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise InputError(
            f"{name}={value}: must be a number between 0 and 1",
            code="type" if math.isnan(number) else "range",
            key=name,
        )
    return number


def _whole(value: str) -> int | None:
    """Return 5e4 as 50000, and None for what is no whole number."""
    try:
        number = float(value)
        return int(number) if number == int(number) else None
    except (ValueError, OverflowError):
        return None


_VALUES: dict[str, Callable[[str, str], Any]] = {
    "checkpoint": _one_of("best", "latest", "default", frame_of="a checkpoint"),
    "episode": _one_of("best", "last", frame_of="an evaluation"),
    "session": _at_least(0),
    "episodes": _at_least(1),
    "videos": _at_least(0),
    "seed": _at_least(0),
    "greedy": lambda name, value: _one_of("true", "false")(name, value) == "true",
    "epsilon": _probability,
    "render": _one_of("video", "human"),
}
"""Parsers of the values, by override."""
