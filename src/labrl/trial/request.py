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
        raise InputError.value(f"+{name}", given[name], "be true or false")


def request_of(overrides: Sequence[str], multirun: bool = False) -> Request | None:
    """Return the request among `overrides`, or None if they name no earlier run.

    multirun: whether -m was typed. Raises InputError for overrides that contradict each other.
    """
    given, edits = read(overrides, (*SIGNED, "at"))
    kinds = [name for name in given if name in KINDS]
    if "enjoy" in kinds:
        if multirun:
            raise InputError.contradiction("-m", "+enjoy", "it plays a single run", "Leave out -m")
        others = [one for one in overrides if not one.startswith("+enjoy=")]
        return Request("enjoy", given["enjoy"], edits=others)
    if not given:
        return None
    _check_flag("force", given)
    kind: Any = kinds[0] if kinds else None
    if "at" in given and "fork" not in kinds:
        at = f"at={given['at']}"
        raise InputError.usage(at, "it is for +fork", f"Type labrl +fork=<run folder> {at}")
    if not kinds or ("force" in given and kinds == ["fork"]):
        why, fix = "it is for +resume and +rerun", "Type labrl +resume=<run folder> +force=true"
        raise InputError.usage("+force=true", why, fix)
    if len(kinds) > 1:
        why = "+resume continues a run in its folder, +rerun repeats it, and +fork continues it in a new one"
        fix = f"Leave out +{' or +'.join(kinds)}"
        raise InputError.contradiction(f"+{kinds[1]}", f"+{kinds[0]}", why, fix)
    if multirun and kind == "rerun":
        raise InputError.contradiction("-m", "+rerun", "it repeats a single run", "Leave out -m")
    if multirun and kind == "fork" and any(one.startswith("hydra/sweeper=optuna") for one in edits):
        why, fix = "its trials start at frame 0", "Type the values of a grid instead: agent.lr=1e-4,3e-4"
        raise InputError.contradiction("+fork", "hydra/sweeper=optuna", why, fix)
    of_folder = "hydra.sweep.dir" if multirun else "hydra.run.dir"
    folder = next((one for one in edits if one.lstrip("+").startswith(f"{of_folder}=")), None)
    if kind == "resume" and folder:
        why = "an experiment is resumed in its own folder"
        why = why if multirun else "a run is resumed in its own folder; +rerun=<run> uses a new one"
        raise InputError.about(folder, why, f"Leave out {of_folder}", code="contradiction", key=of_folder)
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
            fix = f"Type {key}={example}"
            raise InputError.about(one, "it needs a value", fix, code="missing", key=key)
        if one[: one.index(name)] not in (("+",) if name in SIGNED else ("", "+")):
            sign = "a" if name in SIGNED else "no"
            raise InputError.about(one, f"it has {sign} plus", f"Type {key}={value}", code="syntax", key=key)
        if name in given:
            raise InputError.contradiction(f"{key}={value}", f"{key}={given[name]}", "", "Leave one out")
        in_quotes = len(value) > 2 and value[0] == value[-1] and value[0] in "'\""
        given[name] = value[1:-1] if in_quotes else value
    return given, others
