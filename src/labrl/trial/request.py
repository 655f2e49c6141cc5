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
            raise InputError(
                f"+{name} is given twice: +{name}={asked[name]} and {word}. Leave one out.",
                code="contradiction",
                key=f"+{name}",
            )
        if name:
            asked[name] = value
    if not asked:
        return None
    kinds = [name for name in asked if name not in _SWITCHES]
    if "pin" in asked and (not multirun or kinds != ["resume"]):
        raise InputError(
            "+pin=true is for a resumed experiment: labrl -m +resume=<experiment folder> +pin=true",
            code="usage",
            key="+pin",
        )
    if not kinds:
        raise InputError(
            "+force=true is for +resume and +rerun: labrl +resume=<run folder> +force=true",
            code="usage",
            key="+force",
        )
    if len(kinds) > 1:
        raise InputError(
            "+resume continues a run in its folder and +rerun repeats a run in a new folder: leave one out",
            code="contradiction",
            key=f"+{kinds[1]}",
        )
    if multirun and kinds[0] == "rerun":
        raise InputError(
            "+rerun repeats one run, so it cannot be part of an experiment: leave out -m",
            code="contradiction",
            key="-m",
        )
    kind: Literal["resume", "rerun"] = "resume" if kinds[0] == "resume" else "rerun"
    edits = [word for word in words if not _asked(word)[0]]
    of_folder = "hydra.sweep.dir" if multirun else "hydra.run.dir"
    folder = next((word for word in edits if word.lstrip("+").startswith(f"{of_folder}=")), None)
    if kind == "resume" and folder:
        instead = "" if multirun else "; +rerun=<run> takes a new one"
        raise InputError(
            f"{folder}: {'an experiment' if multirun else 'a run'} is resumed in its own folder{instead}. "
            f"Leave out {of_folder}.",
            code="contradiction",
            key=of_folder,
        )
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
        raise InputError(f"{word}: needs a value, as in +{name}={example}", code="missing", key=f"+{name}")
    if not word.startswith("+") or word.startswith("++"):
        raise InputError(f"{word}: write +{name}={value}", code="syntax", key=f"+{name}")
    value = unquoted(value)
    if name in _SWITCHES and value not in ("true", "false"):
        raise InputError(f"{word}: must be true or false", code="range", key=f"+{name}")
    return name, value
