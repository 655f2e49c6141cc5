"""Whether a configuration that was changed would have had the same past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labrl.config.keys import traits

ABSENT = object()
"""Stands for the value of a key that is not there."""


def only_watches(key: str) -> bool:
    """Return whether a run learns the same with another value of `key`."""
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


def contradictions(found: Sequence[Change]) -> list[Change]:
    """Return those of `found` that would have made another past."""
    return [change for change in found if not change.harmless]


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return not changes(old, new)
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)
