"""The words of the commands that show what was learned: `labrl +enjoy=...` and `labrl-replay`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from labrl.errors import InputError
from labrl.mistakes.spelling import did_you_mean
from labrl.trial.past import choices
from labrl.trial.request import unquoted

Render = Literal["video", "human"]


@dataclass(frozen=True, kw_only=True)
class EnjoyRequest:
    """`+enjoy=<run>` and what goes with it."""

    which: str
    """A run folder, or `latest`."""
    choices: list[str]
    """Words such as env=pong, with which the run must agree."""
    checkpoint: str = "default"
    """best, latest, or a frame; default: the best, and where there is none the latest."""
    session: int | None = None
    """Number of the session; None: the one with the highest evaluation score."""
    episodes: int = 10
    """To be played, >= 1."""
    greedy: bool | None = None
    """Whether the agent does what it thinks best, or acts by its policy; None: as under evaluation."""
    epsilon: float | None = None
    """Probability of a random action, in [0, 1]; None: as under evaluation."""
    render: Render = "video"
    videos: int | None = None
    """How many of the episodes become videos; None: all, and none in a window."""
    seed: int = 0
    """Another one gives other episodes."""


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """What `labrl-replay` was asked for."""

    which: str
    """A run folder, or `latest`."""
    episode: str = "best"
    """`best`, `last`, or the frame of an evaluation."""
    session: int | None = None
    """Number of the session; None: the first that has the episode."""
    render: Render = "video"


def enjoy_request(words: Sequence[str], multirun: bool = False) -> EnjoyRequest | None:
    """What `words` ask for, or None without `+enjoy` among them. Raises InputError for what does not fit."""
    asked = [word for word in words if word.lstrip("+").partition("=")[0] == "enjoy"]
    if not asked:
        return None
    name, _, which = asked[0].partition("=")
    if not which:
        raise InputError(
            f"{asked[0]}: needs a run, as in +enjoy=latest or +enjoy=<run folder>",
            code="missing",
            key="+enjoy",
        )
    if name != "+enjoy":
        raise InputError(f"{asked[0]}: write +enjoy={which}", code="syntax", key="+enjoy")
    if len(asked) > 1:
        raise InputError(
            f"+enjoy is given twice: {asked[0]} and {asked[1]}. Leave one out.",
            code="contradiction",
            key="+enjoy",
        )
    if multirun:
        raise InputError(
            "+enjoy plays one run, so it cannot be part of an experiment: leave out -m",
            code="contradiction",
            key="-m",
        )
    others = [word for word in words if word is not asked[0]]
    chosen = [word for word in others if choices([word])]
    given = _options(
        [word for word in others if word not in chosen],
        ("checkpoint", "session", "episodes", "greedy", "epsilon", "render", "videos", "seed"),
        f"{asked[0]} plays what a run has learned, in the environment that it learned in, and takes",
    )
    which = unquoted(which)
    defaults = EnjoyRequest(which=which, choices=chosen)
    return EnjoyRequest(
        which=which,
        choices=chosen,
        checkpoint=_checkpoint(given),
        session=_number(given, "session", 0),
        episodes=_number(given, "episodes", 1) or defaults.episodes,
        greedy=_one_of(given, "greedy", ("true", "false"), "true") == "true" if "greedy" in given else None,
        epsilon=_probability(given, "epsilon"),
        render=_render(given),
        videos=_number(given, "videos", 0),
        seed=_number(given, "seed", 0) or 0,
    )


def replay_request(which: str, words: Sequence[str]) -> ReplayRequest:
    """which: the first word of `labrl-replay`; words: the others. Raises InputError for what is wrong."""
    given = _options(words, ("episode", "session", "render"), "labrl-replay <run folder> takes")
    episode = given.get("episode", "best")
    if episode not in ("best", "last") and not episode.isdigit():
        raise InputError(
            f"episode={episode}: must be best, last or the frame of an evaluation",
            code="range",
            key="episode",
        )
    return ReplayRequest(
        which=which, episode=episode, session=_number(given, "session", 0), render=_render(given)
    )


def _options(words: Sequence[str], known: Sequence[str], takes: str) -> dict[str, str]:
    """Value by name. Raises InputError for a word that is none of the `known` ones."""
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name.lstrip("+") not in known:
            raise InputError(
                f"{word}: {takes} {', '.join(known)}.{did_you_mean(name, known)}",
                code="unknown-key",
                key=name,
            )
        name = name.lstrip("+")
        if not equals or not value:
            raise InputError(f"{word}: needs a value, as in {name}=<value>", code="missing", key=name)
        if name in given:
            raise InputError(
                f"{name} is given twice: {name}={given[name]} and {word}. Leave one out.",
                code="contradiction",
                key=name,
            )
        given[name] = value
    return given


def _number(given: Mapping[str, str], name: str, least: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    number = _whole(value)
    if number is None or number < least:
        none = " (0: none)" if least == 0 else ""
        raise InputError(
            f"{name}={value}: must be a whole number of at least {least}{none}",
            code="type" if number is None else "range",
            key=name,
        )
    return number


def _probability(given: Mapping[str, str], name: str) -> float | None:
    if name not in given:
        return None
    try:
        number = float(given[name])
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise InputError(
            f"{name}={given[name]}: must be a number between 0 and 1",
            code="type" if math.isnan(number) else "range",
            key=name,
        )
    return number


def _whole(value: str) -> int | None:
    """5e4 as 50000; None for what is no whole number."""
    try:
        number = float(value)
        return int(number) if number == int(number) else None
    except (ValueError, OverflowError):
        return None


def _checkpoint(given: Mapping[str, str]) -> str:
    value = given.get("checkpoint", "default")
    if value in ("best", "latest", "default"):
        return value
    frame = _whole(value)
    if frame is None or frame < 0:
        raise InputError(
            f"checkpoint={value}: must be best, latest or the frame of a checkpoint",
            code="range",
            key="checkpoint",
        )
    return str(frame)


def _one_of(given: Mapping[str, str], name: str, allowed: Sequence[str], default: str) -> str:
    value = given.get(name, default)
    if value not in allowed:
        raise InputError(f"{name}={value}: must be {' or '.join(allowed)}", code="range", key=name)
    return value


def _render(given: Mapping[str, str]) -> Render:
    return "human" if _one_of(given, "render", ("video", "human"), "video") == "human" else "video"
