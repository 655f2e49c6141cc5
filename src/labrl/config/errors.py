"""The one exception for wrong input."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(Exception):
    """Wrong input, told to the person at the keyboard: the command line prints it without a traceback.

    The message names the full key, the value, what is allowed and what to do.
    """


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known spelling closest to `word`, or None when nothing is close.

    Close is a name that takes few edits, of a short one a single edit, or one that begins with `word`.
    """
    given = word.lower()
    ranks: dict[str, tuple[float, float, int]] = {}
    for name in known:
        lower = name.lower()
        ratio = difflib.SequenceMatcher(None, lower, given).ratio()
        begins = len(given) >= 3 and lower.startswith(given)
        if ratio < 0.6 and not begins:
            continue
        edits = _edits(given, lower)
        if begins or edits == 1 or len(lower) > SHORT:
            ranks[name] = (min(edits, 1.5) if begins else edits, -ratio, _edits(word, name))
    return min(ranks, key=lambda name: ranks[name], default=None)


SHORT = 4
"""Letters of names in which one edit is close and two are not: a3c is a2c, and not sac."""


def _edits(word: str, other: str) -> int:
    """Letters to insert, leave out, replace or swap with the next one, to make `other` of `word`."""
    rows = [list(range(len(other) + 1))]
    for i, letter in enumerate(word, 1):
        row = [i]
        for j, expected in enumerate(other, 1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != expected)))
            if i > 1 and j > 1 and letter == other[j - 2] and word[i - 2] == expected:
                row[j] = min(row[j], rows[-2][j - 2] + 1)
        rows.append(row)
    return rows[-1][-1]


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """` Did you mean <prefix><nearest>?`, or nothing when no known spelling is close."""
    match = nearest(word, known)
    return f" Did you mean {prefix}{match}?" if match else ""
