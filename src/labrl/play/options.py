"""Options of `labrl +enjoy=...` and `labrl-replay`.

This module is separate from `labrl.trial.command` because it imports pydantic, and `labrl --cfg job` must not
wait for that import.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from labrl.config.validate import dataclass_of
from labrl.errors import InputError
from labrl.mistakes.spelling import did_you_mean
from labrl.trial.command import Command, frame_of, read
from labrl.trial.find import choices
from labrl.types import NonNegativeInt, PositiveInt, Probability

T = TypeVar("T")


def _or_frame(*names: str, frame: str) -> Callable[[Any], str]:
    """Return a validator that accepts one of `names` or a frame. frame: object whose frame is meant, for
    messages, such as "a checkpoint"."""

    def check(value: Any) -> str:
        number = None if isinstance(value, bool) else frame_of(value)
        if number is None and value not in names:
            raise PydanticCustomError("range", f"must be {', '.join(names)} or the frame of {frame}")
        return str(value if number is None else number)

    return check


@dataclass(frozen=True, kw_only=True)
class EnjoyRequest:
    """A request to play a trained policy: `+enjoy=<run>` and its options."""

    which: str
    """A run folder, or `latest`."""
    choices: list[str]
    """Overrides such as env=pong with which the run must have been started."""
    checkpoint: Annotated[
        str, BeforeValidator(_or_frame("best", "latest", "default", frame="a checkpoint"))
    ] = "default"
    """best, latest or a frame; default: the best checkpoint, or the latest if there is no best one."""
    session: NonNegativeInt | None = None
    """Index of the session; None: the session with the highest evaluation score."""
    episodes: PositiveInt = 10
    """Number of episodes to play, >= 1."""
    greedy: bool | None = None
    """Whether to play greedy actions instead of actions of the policy; None: as in the run's evaluation."""
    epsilon: Probability | None = None
    """Probability of a random action, in [0, 1]; None: as in the run's evaluation."""
    render: Literal["video", "human"] = "video"
    videos: NonNegativeInt | None = None
    """Number of episodes to record as videos; None: all episodes, or none with render=human."""
    seed: NonNegativeInt = 0
    """Seed of the episodes, >= 0."""


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """A request to show a recorded episode: `labrl-replay`."""

    which: str
    """A run folder, or `latest`."""
    episode: Annotated[str, BeforeValidator(_or_frame("best", "last", frame="an evaluation"))] = "best"
    """`best`, `last`, or the frame of an evaluation."""
    session: NonNegativeInt | None = None
    """Index of the session; None: the first session that recorded the episode."""
    render: Literal["video", "human"] = "video"


def enjoy_request(command: Command) -> EnjoyRequest:
    """Return the options of `+enjoy`. Raises InputError for a wrong override."""
    chosen = [override for override in command.overrides if choices([override])]
    others = [override for override in command.overrides if override not in chosen]
    takes = f"+enjoy={command.which} plays the trained policy in its environment, and takes"
    return _options(EnjoyRequest, others, takes, which=command.which, choices=chosen)


def replay_request(which: str, overrides: Sequence[str]) -> ReplayRequest:
    """Return the options of `labrl-replay <which> <overrides>`. Raises InputError for a wrong override."""
    return _options(ReplayRequest, overrides, "labrl-replay <run folder> takes", which=which)


def _options(cls: type[T], overrides: Sequence[str], takes: str, **known: Any) -> T:
    """Build a request of class `cls` from the options in `overrides`. Raises InputError for a wrong
    override."""
    names = [field.name for field in dataclasses.fields(cls) if field.name not in known]  # type: ignore[arg-type]
    given, others = read(overrides, names)
    if others:
        name = others[0].lstrip("+").partition("=")[0]
        why, fix = f"{takes} {', '.join(names)}", did_you_mean(name, names)
        raise InputError.about(others[0], why, fix, code="unknown-key", key=name)
    return dataclass_of(cls, {**known, **{name: _plain(value) for name, value in given.items()}})


def _plain(text: str) -> Any:
    """Return the bool or the number that a text represents, otherwise the text itself."""
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text
