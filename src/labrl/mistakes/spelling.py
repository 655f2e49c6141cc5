"""Suggestions of known names that are spelled similarly to a given name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def nearest(word: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return at most `count` known names close to `word`, the closest first.

    A name is close if it shares at least 60 % of its letters with `word` (65 % if their first letters
    differ), starts with `word`, or contains `word` between underscores.
    """
    given = word.lower()
    ranks: dict[str, tuple[float, int, int]] = {}
    for name in known:
        lower = name.lower()
        ratio = difflib.SequenceMatcher(None, lower, given).ratio()
        if len(given) >= 3 and lower.startswith(given):
            ratio = max(ratio, 0.95)
        elif len(given) >= 3 and given in lower.split("_"):
            ratio = max(ratio, 0.9)
        in_place = sum(map(str.__eq__, lower, given)) - abs(len(lower) - len(given))
        if ratio >= (0.6 if lower[:1] == given[:1] else 0.65):
            ranks[name] = (-ratio, -in_place, -sum(map(str.__eq__, name, word)))
    return sorted(ranks, key=lambda name: ranks[name])[:count]


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return ` Did you mean <prefix><nearest>?`, or '' if no known name is close."""
    return suggested([f"{prefix}{match}" for match in nearest(word, known)])


def suggested(names: Sequence[str]) -> str:
    """Return ` Did you mean a, b or c?`, or '' if there are no names."""
    *others, last = names or [""]
    return f" Did you mean {', '.join(others)}{' or ' if others else ''}{last}?" if last else ""
