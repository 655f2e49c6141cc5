"""The known names that are spelt nearly as what was typed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def nearest(word: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return at most `count` known spellings close to `word`, the closest first.

    A name is close that shares most letters with `word`, or begins with it.
    """
    given = word.lower()
    ranks: dict[str, tuple[float, int, int]] = {}
    for name in known:
        lower = name.lower()
        ratio = difflib.SequenceMatcher(None, lower, given).ratio()
        if len(given) >= 3 and lower.startswith(given):
            ratio = max(ratio, 0.95)
        in_place = sum(map(str.__eq__, lower, given)) - abs(len(lower) - len(given))
        if ratio >= 0.6:
            ranks[name] = (-ratio, -in_place, -sum(map(str.__eq__, name, word)))
    return sorted(ranks, key=lambda name: ranks[name])[:count]


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return ` Did you mean <prefix><nearest>?`, or nothing when no known spelling is close."""
    return suggested([f"{prefix}{match}" for match in nearest(word, known)])


def suggested(names: Sequence[str]) -> str:
    """Return ` Did you mean a, b or c?`, or nothing where there is no name."""
    *others, last = names or [""]
    return f" Did you mean {', '.join(others)}{' or ' if others else ''}{last}?" if last else ""
