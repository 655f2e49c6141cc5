"""What to print where new values would have given a run another past: a table, and what to type instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from labrl.config.consistency import Change
from labrl.trial.overrides import override, written


def refusal(
    contradicting: Sequence[Change], unresolved: Mapping[str, Any], edited: Collection[str] = ()
) -> str:
    """Return a table of the keys with their old and new values, and what to type instead.

    unresolved: the new configuration with its references to other keys still in it, so that the keys
    that follow another one can be told from those that were typed; edited: those that were changed in
    the run's `config.yaml`.
    """
    lines = ["with these values the past of the run would have been another one:"]
    lines += table([("key", "then", "now", ""), *(row_of(one, unresolved, edited) for one in contradicting)])
    pinned = {one.key: one.old for one in contradicting if one.pinnable}
    return "\n".join([*lines, *ways_out(contradicting, [override(*pin) for pin in pinned.items()])])


def told(change: Change) -> str:
    """Return key, old and new value in a line."""
    return f"{change.key} {written(change.old)} -> {written(change.new)}"


def row_of(
    change: Change, unresolved: Mapping[str, Any], edited: Collection[str] = ()
) -> tuple[str, str, str, str]:
    """Return a row of the table: key, old and new value, and the key that it follows, if any.

    edited: keys that were changed in the run's `config.yaml`.
    """
    follows = _reference(unresolved, change.key)
    source = "edited in config.yaml" if change.key in edited else f"follows {follows}" if follows else ""
    return change.key, written(change.old), written(change.new), source


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose columns stand one below the other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def ways_out(contradicting: Sequence[Change], pins: Sequence[str]) -> Iterator[str]:
    """List what to type in place of what contradicts the past. pins: the overrides that keep it as it was."""
    if pins:
        yield f"To keep them as they were: {' '.join(pins)}"
    if not all(change.pinnable for change in contradicting):
        yield "A key that is not on both sides comes from another choice or from another version of labrl."
    yield "To go on all the same, which the run folder will record: +force=true"


def _reference(unresolved: Mapping[str, Any], key: str) -> str:
    """The key that the value at `key` is taken from, or nothing."""
    node: Any = unresolved
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    found = re.fullmatch(r"\$\{([\w.]+)\}", node) if isinstance(node, str) else None
    return found[1] if found else ""
