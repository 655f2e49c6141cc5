"""The overrides of a command line as Hydra reads them: how a key and its value are written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from labrl.config.consistency import ABSENT
from labrl.schedules import written_out


def word(key: str, value: Any) -> str:
    """Return the override that sets `key` to `value`."""
    return f"{key}={written(value)}"


def override(key: str, value: Any) -> str:
    """Return the same override as one types it into a shell."""
    return shlex.quote(word(key, value))


def split_word(word: str) -> tuple[str, str]:
    """Return key and value of an override, without the signs that add or remove a key."""
    key, _, value = word.lstrip("+~").partition("=")
    return key, value


def quoted(text: str) -> str:
    """Return `text` in quotes: for Hydra a backslash means itself unless a quote follows."""
    inner = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)$", r"\1\1", inner) + "'"


def unescaped(word: str) -> str:
    """Return `word` without the backslashes that Hydra puts before the colons of `agent.lr=linear:3e-4:0`."""
    key, _, value = word.partition("=")
    plain = value.replace("\\:", ":")
    return word if written_out(plain) is plain else f"{key}={plain}"


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
