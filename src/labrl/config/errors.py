"""The one exception for wrong input."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(Exception):
    """Wrong input, told to the person at the keyboard: the command line prints it without a traceback.

    The message names the full key, the value, what is allowed and what to do.
    """


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known spelling closest to `word`, or None when nothing is close."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """` Did you mean <prefix><nearest>?`, or nothing when no known spelling is close."""
    match = nearest(word, known)
    return f" Did you mean {prefix}{match}?" if match else ""
