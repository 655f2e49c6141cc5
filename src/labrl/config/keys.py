"""The keys of a configuration: how to walk over them, what depends on the value of each, which differ between
two configurations, and how an override is written."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from labrl.config.component import Component
from labrl.schedules import written_out

T = TypeVar("T")


def walk(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full key and the value of `node`, which stands at `key`, and of everything below it."""
    yield key, node
    if isinstance(node, Mapping):
        for name, inner in node.items():
            yield from walk(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list | tuple):
        for index, inner in enumerate(node):
            yield from walk(inner, f"{key}[{index}]")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Traits of a key: what depends on its value. Without an annotation, everything does."""

    resume: bool = False
    """Whether a resumed run may have another value, because nothing that was learned depends on it."""
    same_group: bool = False
    """Whether runs that differ only in it are one group in statistics."""
    score: bool = True
    """Whether the worth of a trial in a search depends on it."""


Watches = Annotated[T, Traits(resume=True, same_group=True, score=False)]
"""A key that changes no number of a run: it only says what is watched, shown or kept."""
Continues = Annotated[T, Traits(resume=True, score=False)]
"""A key that a resume may change, such as the device. Runs that differ in it can differ in their rows."""
Scores = Annotated[T, Traits(resume=True)]
"""A key that changes how long a run goes on or how it is evaluated, and no update before that."""


@cache
def traits(key: str) -> Traits:
    """Return the traits of the full `key` of a trial's configuration: its own, or those of the nearest key
    above that has any."""
    # Imported late: the command line shows help without pydantic.
    from labrl.config.schema import TrialConfig

    found = Traits()
    kinds: list[type] = [TrialConfig]
    for name in key.split("."):
        hint = next((hints(kind)[name] for kind in kinds if name in hints(kind)), None)
        found = traits_in(hint) or found
        kinds = list(dataclasses_in(hint))
    return found


def traits_in(hint: Any) -> Traits | None:
    """The traits with which a type is annotated, if it is."""
    annotations = hint.__metadata__ if get_origin(hint) is Annotated else ()
    return next((one for one in annotations if isinstance(one, Traits)), None)


def dataclasses_in(hint: Any) -> Iterator[type]:
    """The dataclasses whose fields are keys below a field of type `hint`.

    For a component, whose class only its `_target_` names, they are those in the annotation of its type.
    """
    if isinstance(hint, type):
        yield from [hint] if dataclasses.is_dataclass(hint) and hint is not Component else []
    else:
        for part in get_args(hint):
            yield from dataclasses_in(part)


@cache
def hints(cls: type) -> dict[str, Any]:
    """The types of the fields of a dataclass, with their annotations."""
    return get_type_hints(cls, include_extras=True)


ABSENT = object()
"""Stands for the value of a key that is not there."""


@dataclass(frozen=True)
class Change:
    """One key whose value differs."""

    key: str
    old: Any
    """Old value as plain data, or ABSENT."""
    new: Any

    @property
    def pinnable(self) -> bool:
        """Whether the old value can be typed: the key is on both sides."""
        return self.old is not ABSENT and self.new is not ABSENT

    def as_json(self) -> dict[str, Any]:
        """Return the key, and its values `then` and `now` where it has them."""
        values = {"then": self.old, "now": self.new}
        return {"key": self.key, **{name: value for name, value in values.items() if value is not ABSENT}}


def changes(old: Mapping[str, Any], new: Mapping[str, Any], parent: str = "") -> list[Change]:
    """Return every key that differs between two resolved configurations, in order.

    1e5 and 100000 are the same number, true and 1 are not the same value. Lists are compared as a whole.
    """
    found: list[Change] = []
    for name in {**old, **new}:
        key = f"{parent}.{name}" if parent else str(name)
        then, now = old.get(name, ABSENT), new.get(name, ABSENT)
        if isinstance(then, Mapping) and isinstance(now, Mapping):
            found += changes(then, now, key)
        elif not _same(then, now):
            found.append(Change(key, then, now))
    return found


def contradictions(found: Iterable[Change]) -> list[Change]:
    """Return those of `found` that would have made another past."""
    return [change for change in found if not traits(change.key).resume]


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return not changes(old, new)
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)


def override_of(key: str, value: Any) -> str:
    """Return the override that sets `key` to `value`."""
    return f"{key}={written(value)}"


def typed_override(key: str, value: Any) -> str:
    """Return the same override as one types it into a shell."""
    return shlex.quote(override_of(key, value))


def is_hydras(override: str) -> bool:
    """Return whether an override of the command line is for Hydra, not for a trial."""
    return override.lstrip("+~").startswith(("hydra.", "hydra/"))


def split_override(override: str) -> tuple[str, str]:
    """Return key and value of an override, without the signs that add or remove a key."""
    key, _, value = override.lstrip("+~").partition("=")
    return key, value


def key_of(override: str) -> str:
    """Return the key or group of an override, without signs and package."""
    return split_override(override)[0].partition("@")[0]


def quoted(text: str) -> str:
    """Return `text` in quotes: for Hydra a backslash means itself unless a quote follows."""
    inner = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)$", r"\1\1", inner) + "'"


def unescaped(override: str) -> str:
    """Return `override` without the backslashes that Hydra puts before colons (`agent.lr=linear:3e-4:0`)."""
    key, _, value = override.partition("=")
    plain = value.replace("\\:", ":")
    return override if written_out(plain) is plain else f"{key}={plain}"


def written(value: Any) -> str:
    """Return a value as an override has it; `-` for one that is not there."""
    if value is ABSENT:
        return "-"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {written(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./-]*", value)
    if isinstance(value, str) and (not plain or value.lower() in ("null", "true", "false", "nan", "inf")):
        return quoted(value)
    return str(value)
