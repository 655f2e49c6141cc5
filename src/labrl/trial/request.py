"""Parse the overrides `+resume`, `+rerun`, `+fork` and `+enjoy`, and their options."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from labrl.errors import InputError
from labrl.run.signature import Trust

KINDS = ("resume", "rerun", "fork", "enjoy")
"""Names of the overrides whose value is a run folder or `latest`."""

SIGNED = (*KINDS, "force", "trust")
"""Names of the overrides that need a leading plus."""

TRUST = "+trust=true. To accept only classes in your own files: --config-dir <their folder>"
"""Advice in messages: how to permit labrl to import the code that someone else's run names."""

_EXAMPLES = {"at": "<frame>", "force": "true", "trust": "true"} | dict.fromkeys(
    KINDS, "latest or +{name}=<run folder>"
)


@dataclass(frozen=True)
class Request:
    """A request to use an earlier run (`+resume`, `+rerun`, `+fork` or `+enjoy`), with the other
    overrides."""

    kind: Literal["resume", "rerun", "fork", "enjoy"]
    which: str
    """A run folder, or `latest`; for `+rerun`, also a YAML file with a configuration."""
    edits: list[str]
    """The other overrides of the command line: changes of the run's configuration, or options of `+enjoy`."""
    force: bool = False
    """Whether to continue even if new values contradict the past of the run."""
    at: str | None = None
    """Frame at which to fork, as given on the command line; None if it is missing."""


def frame_of(text: str | float | None) -> int | None:
    """Convert a frame such as 5e4 to an integer; None if `text` is not a frame."""
    try:
        number = float("nan" if text is None else text)
        return int(number) if number == int(number) and number >= 0 else None
    except (ValueError, OverflowError):
        return None


def trust_in(overrides: Sequence[str], config_dir: str | os.PathLike[str] | None) -> tuple[Trust, list[str]]:
    """Return the trust in earlier runs that `+trust=true` and --config-dir express, and the other overrides.

    Raises InputError if +trust is neither true nor false.
    """
    given, others = read(overrides, ("trust",))
    _check_flag("trust", given)
    folder = None if config_dir is None else os.path.abspath(config_dir)
    typed = TRUST if folder is None else "+trust=true"
    return Trust(given.get("trust") == "true", folder, typed, " ".join(others)), others


def _check_flag(name: str, given: Mapping[str, str]) -> None:
    if given.get(name, "true") not in ("true", "false"):
        raise InputError.value(f"+{name}", given[name], "be true or false")


def request_of(overrides: Sequence[str], multirun: bool = False) -> Request | None:
    """Return the request that `overrides` express; None if they name no earlier run.

    multirun: whether -m was given. Raises InputError for overrides that contradict each other.
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
        raise InputError.usage(at, "it is an option of +fork", f"Type labrl +fork=<run folder> {at}")
    if not kinds or ("force" in given and kinds == ["fork"]):
        why, fix = "it is an option of +resume and +rerun", "Type labrl +resume=<run folder> +force=true"
        raise InputError.usage("+force=true", why, fix)
    if len(kinds) > 1:
        why = (
            "+resume continues a run in its folder, +fork continues it in a new folder, and +rerun repeats it"
        )
        fix = f"Leave out +{' or +'.join(kinds)}"
        raise InputError.contradiction(f"+{kinds[1]}", f"+{kinds[0]}", why, fix)
    if multirun and kind == "rerun":
        raise InputError.contradiction("-m", "+rerun", "it repeats a single run", "Leave out -m")
    if multirun and kind == "fork" and any(one.startswith("hydra/sweeper=optuna") for one in edits):
        why, fix = "its trials start at frame 0", "Use a grid of values instead: agent.lr=1e-4,3e-4"
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
    """Return the values of the overrides called `names`, by name, and the other overrides.

    Raises InputError if an override lacks its value, has a wrong sign, or is given twice.
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
            sign = "needs a" if name in SIGNED else "takes no"
            raise InputError.about(one, f"it {sign} plus", f"Type {key}={value}", code="syntax", key=key)
        if name in given:
            raise InputError.contradiction(f"{key}={value}", f"{key}={given[name]}", "", "Leave one out")
        in_quotes = len(value) > 2 and value[0] == value[-1] and value[0] in "'\""
        given[name] = value[1:-1] if in_quotes else value
    return given, others
