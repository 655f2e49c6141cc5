"""Masking of passwords and API keys in configurations, commands and messages that labrl records or prints.

A value is secret if it is the password in a URL, if its key or variable has a name such as WANDB_API_KEY,
token or db_password, or if it equals the value of an environment variable with such a name.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from labrl.errors import InputError

T = TypeVar("T")

MASK = "***"
"""Text that is recorded in place of a secret."""

# Not `tokens`, which are often the parts of a text.
_NOUNS = (
    *("password", "passwd", "passphrase", "secret", "token", "credential", "apikey", "authorization"),
    *("passwords", "secrets", "credentials"),
)
_KEYS = ("api", "access", "secret", "private", "auth", "account", "encryption", "signing", "ssh")
_PLACES = ("file", "path", "dir", "directory", "folder", "url", "uri", "name", "id", "env")
"""Last words of names whose value tells where a secret is stored or whose secret it is."""

_SHORTEST = 8
"""Minimum number of characters of a secret that is masked even where it appears without its name."""

remembered: dict[str, Any] = {}
"""Values that contain secrets, by their keys, in the configurations that this process has used."""

_word = "pass|pwd|secret|token|credential|authori|key"
_hint = re.compile(f"://|{_word}", re.IGNORECASE).search
_interpolation = r"\$\\?\{[^}]*\}"  # Hydra may escape it
_placeholder = rf"(?:{_interpolation}|<\w+>|\{{\w*\}}|%s|%\(\w+\)s)@"
# In `://user:password@host`, the password may contain a slash or an @. In a URL of the web, a number after
# the host is its port, even if there is an @ in the path.
_login = re.compile(
    rf"(https?://[^\s/:'\"]*:)(?!{_placeholder})(?!\d+[/'\"\s])[^\s'\"]+@"
    rf"|((?<!http)(?<!https)://[^\s/:'\"]*:)(?!{_placeholder})[^\s'\"]+@"
    rf"|(https?://)(?!{_placeholder})[^\s/:@'\"]+@",
    re.IGNORECASE,
).sub
_name = rf"(?P<name>[\w.-]*(?:{_word})[\w.-]*)"
_bare = rf"""(?:{_interpolation}|[^\s'"{{}}\[\]()&])*(?:{_interpolation}|[^\s'"{{}}\[\](),.;:&])"""
# `name=value`, or `name: "value"`.
_pairs = re.compile(
    rf"""(?P<head>(?<![\w.-]){_name}["']?\s?(?:=|:(?=\s?["']))\s?)"""
    rf"""(?P<value>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|{_bare})""",
    re.IGNORECASE,
).sub
# `{name: value, ...}`, the form of an override. Elsewhere, `token: must be text` contains no value.
_items = re.compile(
    rf"""(?P<head>[{{,]\s*{_name}\s?:\s?)(?P<value>(?:{_interpolation}|[^'"{{}},])+)""", re.IGNORECASE
).sub
_reference = re.compile(rf"(?:{_interpolation})+|<\w+>").fullmatch
_override = re.compile(r"[+~]*([\w./-]+)=(?!\*\*\*)(.*)").fullmatch  # no message about a masked one


@functools.lru_cache(4096)
def is_secret(name: str) -> bool:
    """Return whether a key or an environment variable with this name holds a secret.

    Only complete words count: `access_token` and `HF_TOKEN` name secrets, `max_tokens` and `target_entropy`
    do not. In names of environment variables, which are in capitals, other words may follow such a word.
    """
    last = name.rpartition(".")[2]
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", last)]
    if not words or words[-1] in _PLACES:
        return False
    return any(
        words[at].endswith(_NOUNS)
        or (at > 0 and words[at] == "key" and words[at - 1] in _KEYS)
        or (at > 0 and words[at] in ("pass", "pwd") and last.isupper())
        for at in (range(len(words)) if last.isupper() else [len(words) - 1])
    )


def is_secret_file(path: str) -> bool:
    """Return whether a source file probably contains secrets, judging by its name and its folders.

    `token_bucket.py` and `secretary.py` are innocent, `secrets.py` and `prod_token.txt` are not.
    """
    words = re.sub(r"[^\w/]+", "_", path.lower().rpartition(".")[0]).split("/")
    return any(is_secret(one if path.endswith(".py") else one.upper()) for one in words)


def redact(content: T) -> T:
    """Return plain data or text with MASK in place of each secret.

    Interpolations such as `${oc.env:DB_PASSWORD}` stay, because they name a secret without containing it.
    """
    return _redacted(content, _known())


def redact_diff(diff: str) -> str:
    """Return a diff whose added lines have MASK in place of passwords in URLs and of environment secrets.

    Names of secrets do not count, because in code, `token = read()` contains no secret. Lines that are not
    added are in the repository already, and `git apply` needs them.
    """
    known = _known()
    lines = diff.split("\n")
    return "\n".join(_without_values(line, known) if line.startswith("+") else line for line in lines)


def restore(node: Any, key: str = "") -> Any:
    """Return plain data with each MASK replaced by the secret that it stands for.

    key: the key of the data. The secrets come from configurations that this function has seen before in this
    process, or from environment variables with the names that `variable` returns. Raises InputError with a
    mistake for each secret that is found in neither.
    """
    missing: list[InputError] = []
    known = _known()

    def fill(node: Any, key: str, hidden: bool) -> Any:
        if isinstance(node, Mapping):
            below = f"{key}." if key else ""
            names = {name: hidden or is_secret(str(name)) for name in node}
            return {name: fill(node[name], f"{below}{name}", names[name]) for name in node}
        if isinstance(node, list):
            return [fill(inner, f"{key}[{index}]", hidden) for index, inner in enumerate(node)]
        if not isinstance(node, str) or MASK not in node:
            if isinstance(node, str | int | float) and _redacted(node, known, key, hidden) != node:
                remembered[key] = node
            return node
        name = variable(key)
        if key not in remembered and name not in os.environ:
            why = f"{MASK} stands for a secret, which is not recorded"
            fix = f"Set the environment variable {name} to the complete value, or type {key}=<value>"
            missing.append(InputError.about(f"{key}={node}", why, fix, code="missing"))
        return remembered.get(key, os.environ.get(name, node))

    restored = fill(node, key, is_secret(key))
    if missing:
        raise InputError.of(missing)
    return restored


def variable(key: str) -> str:
    """Return the environment variable that provides the masked value of a configuration key."""
    return "LABRL_" + re.sub(r"\W+", "_", key).strip("_").upper()


class RedactingFormatter(logging.Formatter):
    """Formatter of log records that masks secrets, even in tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a log record, without secrets."""
        return redact(super().format(record))


def _known() -> re.Pattern[str] | None:
    """Return a pattern of the secrets in the environment and in earlier configurations; None without
    secrets."""
    named = (value for name, value in os.environ.items() if is_secret(name))
    # A variable may also name a file, or have a word as its value, which is no secret elsewhere.
    values = [value for value in named if not value.startswith("/") and not value.isalpha()]
    values += [value for value in remembered.values() if isinstance(value, str)]
    # The passwords of URLs have a pattern of their own.
    found = [value for value in values if len(value) >= _SHORTEST and "://" not in value]
    return _pattern(frozenset(found)) if found else None


@functools.lru_cache(8)
def _pattern(values: frozenset[str]) -> re.Pattern[str]:
    longest_first = sorted(values, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)")


def _redacted(content: Any, known: re.Pattern[str] | None, name: str = "", hidden: bool = False) -> Any:
    """Return `content` without secrets. name: key of `content`; hidden: whether a key names a secret."""
    if isinstance(content, Mapping):
        return {
            key: _redacted(value, known, str(key), hidden or is_secret(str(key)))
            for key, value in content.items()
        }
    if isinstance(content, list | tuple):
        return [_redacted(one, known, name, hidden) for one in content]
    if isinstance(content, bool) or not isinstance(content, str | int | float):
        return content
    if hidden and _hides(name, str(content)):
        return MASK
    if isinstance(content, str):
        content = _without_values(content, known)
        found = _override(content)  # its value extends to the end
        if found and is_secret(found[1]) and _hides(found[1], found[2]):
            return content[: found.start(2)] + MASK
        return _items(_without_value, _pairs(_without_value, content)) if _hint(content) else content
    return content


def _without_values(text: str, known: re.Pattern[str] | None) -> str:
    """Return a text without the passwords of URLs and without values of secrets."""
    if "://" in text:
        text = _login(rf"\1\2\3{MASK}@", text)
    return text if known is None else known.sub(MASK, text)


def _without_value(found: re.Match[str]) -> str:
    value = found["value"]
    if not is_secret(found["name"]) or not _hides(found["name"], value):
        return found[0]
    quote = value[0] if value[0] in "'\"" else ""
    return f"{found['head']}{quote}{MASK}{quote}"


def _hides(name: str, value: str) -> bool:
    """Return whether a value must be masked, given that its name is the name of a secret."""
    is_word = value.lower() in ("", "null", "none", "true", "false", "???", MASK)
    is_count = "token" in name.lower() and re.fullmatch(r"[\d.]+", value)
    return not (is_word or is_count or _reference(value.strip("'\"")))
