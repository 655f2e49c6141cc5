"""Whether a configuration that was changed would have had the same past."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from labrl.config.keys import Traits, traits_of

ABSENT = object()
"""Stands for the value of a key that is not there."""


@cache
def traits(key: str) -> Traits:
    """What depends on the full `key` of a trial's configuration."""
    # Imported late: the command line shows help without pydantic.
    from labrl.config.schema import TrialConfig

    return traits_of(key, TrialConfig)


def only_watches(key: str) -> bool:
    """Whether a run learns the same with another value of `key`."""
    return traits(key).resume


@dataclass(frozen=True)
class Change:
    """One key whose value differs."""

    key: str
    old: Any
    """As plain data, or ABSENT."""
    new: Any

    @property
    def harmless(self) -> bool:
        """Whether the past would have been the same with the new value."""
        return only_watches(self.key)

    @property
    def pinnable(self) -> bool:
        """Whether the old value can be typed: the key is on both sides."""
        return self.old is not ABSENT and self.new is not ABSENT

    def told(self) -> str:
        """Key, old and new value, in a line."""
        return f"{self.key} {_told(self.old)} -> {_told(self.new)}"


def changes(old: Mapping[str, Any], new: Mapping[str, Any], parent: str = "") -> list[Change]:
    """Every key that differs between two resolved configurations, in order.

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


def contradictions(found: Sequence[Change]) -> list[Change]:
    """Those of `found` that would have made another past."""
    return [change for change in found if not change.harmless]


def refusal(
    contradicting: Sequence[Change], unresolved: Mapping[str, Any], edited: Collection[str] = ()
) -> str:
    """A table of the keys with their old and new values, and what to type instead.

    unresolved: the new configuration with its references to other keys still in it, so that the keys
    that follow another one can be told from those that were typed; edited: those that were changed in
    the run's `config.yaml`.
    """
    lines = ["with these values the past of the run would have been another one:"]
    lines += table(
        [("key", "then", "now", ""), *(told_change(one, unresolved, edited) for one in contradicting)]
    )
    pinned = {one.key: one.old for one in contradicting if one.pinnable}
    return "\n".join([*lines, *ways_out(contradicting, [override(*pin) for pin in pinned.items()])])


def told_change(
    change: Change, unresolved: Mapping[str, Any], edited: Collection[str] = ()
) -> tuple[str, str, str, str]:
    """The cells of a table of changes: key, old and new value, and the key that it follows, if any.

    edited: keys that were changed in the run's `config.yaml`.
    """
    follows = _reference(unresolved, change.key)
    source = "edited in config.yaml" if change.key in edited else f"follows {follows}" if follows else ""
    return change.key, _told(change.old), _told(change.new), source


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose columns stand one below the other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def word(key: str, value: Any) -> str:
    """The word of a command line that sets `key` to `value`, as Hydra reads it."""
    return f"{key}={_told(value)}"


def override(key: str, value: Any) -> str:
    """The same as one types it into a shell."""
    return shlex.quote(word(key, value))


def quoted(text: str) -> str:
    """`text` in quotes, as Hydra reads them: a backslash means itself unless a quote follows."""
    inner = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)$", r"\1\1", inner) + "'"


def split_word(word: str) -> tuple[str, str]:
    """Key and value of a word of a command line, without the signs that add or remove a key."""
    key, _, value = word.lstrip("+~").partition("=")
    return key, value


def ways_out(contradicting: Sequence[Change], pins: Sequence[str]) -> Iterator[str]:
    """What to type in place of what contradicts the past. pins: the words that keep it as it was."""
    if pins:
        yield f"To keep them as they were: {' '.join(pins)}"
    if not all(change.pinnable for change in contradicting):
        yield "A key that is not on both sides comes from another choice or from another version of labrl."
    yield "To go on all the same, which the run folder will record: +force=true"


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(_same(old[key], new[key]) for key in old)
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)


def _reference(unresolved: Mapping[str, Any], key: str) -> str:
    """The key that the value at `key` is taken from, or nothing."""
    node: Any = unresolved
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    found = re.fullmatch(r"\$\{([\w.]+)\}", node) if isinstance(node, str) else None
    return found[1] if found else ""


def _told(value: Any) -> str:
    """`value` as an override has it."""
    if value is ABSENT:
        return "-"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_told(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_told, value)) + "]"
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./-]*", value)
    if isinstance(value, str) and (not plain or value.lower() in ("null", "true", "false", "nan", "inf")):
        return quoted(value)
    return str(value)
