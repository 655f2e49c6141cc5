"""The options of the commands that show what was learned: `labrl +enjoy=...` and `labrl-replay`."""

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
from labrl.trial.find import choices
from labrl.trial.request import Request, frame_of, read
from labrl.types import NonNegativeInt, PositiveInt, Probability

T = TypeVar("T")


def _or_frame(*names: str, frame: str) -> Callable[[Any], str]:
    """Return the check of a value that is one of `names` or a frame. frame: whose."""

    def check(value: Any) -> str:
        number = None if isinstance(value, bool) else frame_of(value)
        if number is None and value not in names:
            raise PydanticCustomError("range", f"must be {', '.join(names)} or the frame of {frame}")
        return str(value if number is None else number)

    return check


@dataclass(frozen=True, kw_only=True)
class EnjoyRequest:
    """`+enjoy=<run>` and what goes with it."""

    which: str
    """A run folder, or `latest`."""
    choices: list[str]
    """Overrides such as env=pong, with which the run must agree."""
    checkpoint: Annotated[
        str, BeforeValidator(_or_frame("best", "latest", "default", frame="a checkpoint"))
    ] = "default"
    """best, latest, or a frame; default: the best, and where there is none the latest."""
    session: NonNegativeInt | None = None
    """Number of the session; None: the one with the highest evaluation score."""
    episodes: PositiveInt = 10
    """Episodes to play, >= 1."""
    greedy: bool | None = None
    """Whether the agent does what it thinks best, or acts by its policy; None: as under evaluation."""
    epsilon: Probability | None = None
    """Probability of a random action, in [0, 1]; None: as under evaluation."""
    render: Literal["video", "human"] = "video"
    videos: NonNegativeInt | None = None
    """Number of episodes that become videos; None: all, or none with a window."""
    seed: NonNegativeInt = 0
    """Another one gives other episodes."""


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """A request to `labrl-replay`."""

    which: str
    """A run folder, or `latest`."""
    episode: Annotated[str, BeforeValidator(_or_frame("best", "last", frame="an evaluation"))] = "best"
    """`best`, `last`, or the frame of an evaluation."""
    session: NonNegativeInt | None = None
    """Number of the session; None: the first that has the episode."""
    render: Literal["video", "human"] = "video"


def enjoy_request(request: Request) -> EnjoyRequest:
    """Return what `+enjoy` asks for. Raises InputError for a wrong override."""
    chosen = [override for override in request.edits if choices([override])]
    others = [override for override in request.edits if override not in chosen]
    takes = f"+enjoy={request.which} plays what a run has learned, where it learned it, and takes"
    return _options(EnjoyRequest, others, takes, which=request.which, choices=chosen)


def replay_request(which: str, overrides: Sequence[str]) -> ReplayRequest:
    """Return what `labrl-replay <which> <overrides>` asks for. Raises InputError for a wrong override."""
    return _options(ReplayRequest, overrides, "labrl-replay <run folder> takes", which=which)


def _options(cls: type[T], overrides: Sequence[str], takes: str, **known: Any) -> T:
    """Return the request with the options that `overrides` give. Raises InputError for a wrong one."""
    names = [field.name for field in dataclasses.fields(cls) if field.name not in known]  # type: ignore[arg-type]
    given, others = read(overrides, names)
    if others:
        name = others[0].lstrip("+").partition("=")[0]
        raise InputError(
            f"{others[0]}: {takes} {', '.join(names)}.{did_you_mean(name, names)}",
            code="unknown-key",
            key=name,
        )
    return dataclass_of(cls, {**known, **{name: _plain(value) for name, value in given.items()}})


def _plain(text: str) -> Any:
    """Return a number, true or false where the text is one."""
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text
