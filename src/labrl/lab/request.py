"""The words of a command line that go back to a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from labrl.errors import InputError

_WORDS = ("resume", "rerun", "force", "pin")
_SWITCHES = ("force", "pin")
"""The words that are true or false and go with one of the others."""


@dataclass(frozen=True)
class Request:
    """`+resume=<run>` or `+rerun=<run>`, with what else was typed."""

    kind: Literal["resume", "rerun"]
    """Go on in the run's folder, or run the same again in a new one."""
    which: str
    """A run folder, or `latest`."""
    force: bool
    """Whether to go on where the past would have been another one."""
    edits: list[str]
    """The other words, which change the run's own."""
    pin: bool = False
    """Whether, in an experiment, keys that follow an edit keep the value that they had in each trial."""


def request_of(words: Sequence[str], multirun: bool = False) -> Request | None:
    """What `words` ask for, or None if they go back to no run.

    multirun: whether they come with -m. Raises InputError for words that contradict each other.
    """
    asked: dict[str, str] = {}
    for word in words:
        name, value = _asked(word)
        if name in asked:
            raise InputError(f"+{name} is given twice: +{name}={asked[name]} and {word}")
        if name:
            asked[name] = value
    if not asked:
        return None
    kinds = [name for name in asked if name not in _SWITCHES]
    if "pin" in asked and (not multirun or kinds != ["resume"]):
        raise InputError("+pin=true goes with an experiment: labrl -m +resume=<experiment folder> +pin=true")
    if not kinds:
        raise InputError("+force=true goes with +resume or +rerun: labrl +resume=<run folder> +force=true")
    if len(kinds) > 1:
        raise InputError("+resume goes on in a run's folder, +rerun repeats a run in a new one: give one")
    if multirun and kinds[0] == "rerun":
        raise InputError("+rerun takes one run, so it cannot be part of an experiment: leave out -m")
    kind: Literal["resume", "rerun"] = "resume" if kinds[0] == "resume" else "rerun"
    edits = [word for word in words if not _asked(word)[0]]
    of_folder = "hydra.sweep.dir=" if multirun else "hydra.run.dir="
    folder = next((word for word in edits if word.lstrip("+").startswith(of_folder)), None)
    if kind == "resume" and multirun and folder:
        raise InputError(f"{folder}: a resumed experiment goes on in its own folder")
    if kind == "resume" and folder:
        raise InputError(f"{folder}: a resumed run goes on in its own folder; +rerun=<run> takes a new one")
    return Request(kind, asked[kind], asked.get("force") == "true", edits, asked.get("pin") == "true")


def unquoted(value: str) -> str:
    """Without the quotes that other words need around blanks and signs: 'my run' -> my run."""
    quoted = len(value) > 2 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value


def _asked(word: str) -> tuple[str, str]:
    """Name and value if `word` is one of ours, else empty. Raises InputError for what is meant but wrong."""
    name, equals, value = word.lstrip("+").partition("=")
    if name not in _WORDS:
        return "", ""
    example = "true" if name in _SWITCHES else "latest"
    if not equals or not value:
        raise InputError(f"{word}: needs a value, as in +{name}={example}")
    if not word.startswith("+") or word.startswith("++"):
        raise InputError(f"{word}: write +{name}={value}")
    value = unquoted(value)
    if name in _SWITCHES and value not in ("true", "false"):
        raise InputError(f"{word}: must be true or false")
    return name, value
