"""Parse `+resume`, `+rerun`, `+fork` and `+enjoy` with their options."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from labrl.errors import InputError
from labrl.run.signature import Trust

KINDS = ("resume", "rerun", "fork", "enjoy")
"""Names whose value is a run."""

SIGNED = (*KINDS, "force", "trust")
"""Names that need a leading plus."""

TRUST = "+trust=true. To accept only classes in your own files: --config-dir <their folder>"
"""How to let labrl import what a run of someone else names."""

_EXAMPLES = {"at": "<frame>", "force": "true", "trust": "true"} | dict.fromkeys(
    KINDS, "latest or +{name}=<run folder>"
)


@dataclass(frozen=True)
class Request:
    """`+resume=<run>`, `+rerun=<run>`, `+fork=<run>` or `+enjoy=<run>`, and the other overrides."""

    kind: Literal["resume", "rerun", "fork", "enjoy"]
    which: str
    """A run folder, or `latest`."""
    edits: list[str]
    """The other overrides, which change those of the run, or are options of `+enjoy`."""
    force: bool = False
    """Whether to continue even if new values contradict the past of the run."""
    at: str | None = None
    """Frame to fork at."""


def frame_of(text: str | float | None) -> int | None:
    """Return a frame such as 5e4 as an integer, or None if `text` is not a frame."""
    try:
        number = float("nan" if text is None else text)
        return int(number) if number == int(number) and number >= 0 else None
    except (ValueError, OverflowError):
        return None


def trust_in(overrides: Sequence[str], config_dir: str | os.PathLike[str] | None) -> tuple[Trust, list[str]]:
    """Return what `+trust=true` and --config-dir say about earlier runs, and the other overrides.

    Raises InputError if +trust is neither true nor false.
    """
    given, others = read(overrides, ("trust",))
    _check_flag("trust", given)
    folder = None if config_dir is None else os.path.abspath(config_dir)
    return Trust(given.get("trust") == "true", folder, TRUST, " ".join(others)), others


def _check_flag(name: str, given: Mapping[str, str]) -> None:
    if given.get(name, "true") not in ("true", "false"):
        raise InputError(f"+{name}={given[name]}: must be true or false", code="range", key=f"+{name}")


def request_of(overrides: Sequence[str], multirun: bool = False) -> Request | None:
    """Return the request among `overrides`, or None if they name no earlier run.

    multirun: whether -m was typed. Raises InputError for overrides that contradict each other.
    """
    given, edits = read(overrides, (*SIGNED, "at"))
    kinds = [name for name in given if name in KINDS]
    if "enjoy" in kinds:
        if multirun:
            raise InputError(
                "+enjoy plays a single run. Leave out -m",
                code="contradiction",
                key="-m",
            )
        others = [one for one in overrides if not one.startswith("+enjoy=")]
        return Request("enjoy", given["enjoy"], edits=others)
    if not given:
        return None
    _check_flag("force", given)
    kind: Any = kinds[0] if kinds else None
    if "at" in given and "fork" not in kinds:
        at = given["at"]
        raise InputError(f"at={at} is for +fork: labrl +fork=<run folder> at={at}", code="usage", key="at")
    if not kinds or ("force" in given and kinds == ["fork"]):
        raise InputError(
            "+force=true is for +resume and +rerun: labrl +resume=<run folder> +force=true",
            code="usage",
            key="+force",
        )
    if len(kinds) > 1:
        raise InputError(
            "+resume continues a run in its folder, +rerun repeats it, and +fork continues it in a new "
            f"folder. Leave out +{' or +'.join(kinds)}",
            code="contradiction",
            key=f"+{kinds[1]}",
        )
    if multirun and kind == "rerun":
        raise InputError(
            "+rerun repeats a single run. Leave out -m",
            code="contradiction",
            key="-m",
        )
    if multirun and kind == "fork" and any(one.startswith("hydra/sweeper=optuna") for one in edits):
        raise InputError(
            "+fork cannot be combined with a search, whose trials start at frame 0. Leave out "
            "hydra/sweeper=optuna, and type the values of a grid: agent.lr=1e-4,3e-4",
            code="contradiction",
            key="+fork",
        )
    of_folder = "hydra.sweep.dir" if multirun else "hydra.run.dir"
    folder = next((one for one in edits if one.lstrip("+").startswith(f"{of_folder}=")), None)
    if kind == "resume" and folder:
        instead = "" if multirun else "; +rerun=<run> uses a new one"
        raise InputError(
            f"{folder}: {'an experiment' if multirun else 'a run'} is resumed in its own folder{instead}. "
            f"Leave out {of_folder}.",
            code="contradiction",
            key=of_folder,
        )
    force = given.get("force") == "true"
    return Request(kind, given[kind], edits=edits, at=given.get("at"), force=force)


def read(overrides: Sequence[str], names: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Return the values of the overrides with these names, and the other overrides.

    Raises InputError for an override with a missing value or a wrong sign, or that is given twice.
    """
    given: dict[str, str] = {}
    others = []
    for one in overrides:
        name, _, value = one.lstrip("+").partition("=")
        if name not in names:
            others.append(one)
            continue
        key = f"+{name}" if name in SIGNED else name
        if not value:
            example = _EXAMPLES.get(name, "<value>").format(name=name)
            raise InputError(f"{one}: needs a value, as in {key}={example}", code="missing", key=key)
        if one[: one.index(name)] not in (("+",) if name in SIGNED else ("", "+")):
            raise InputError(f"{one}: write {key}={value}", code="syntax", key=key)
        if name in given:
            raise InputError(
                f"{key} is given twice: {key}={given[name]} and {one}. Leave one out.",
                code="contradiction",
                key=key,
            )
        in_quotes = len(value) > 2 and value[0] == value[-1] and value[0] in "'\""
        given[name] = value[1:-1] if in_quotes else value
    return given, others
