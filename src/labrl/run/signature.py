"""Signatures with which labrl recognizes runs and experiments that its user has made.

A folder from someone else is treated as data: code that its configuration names is imported only if the code
is part of labrl, of a library on which labrl builds, or of the folder that --config-dir sets in the current
command (see `labrl.run.trust`). The key of the signatures is a file with random content in the user's cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from labrl.run.atomic import as_json, sync_file

SIGNATURE = "signature"
"""Key of the signature in a signed JSON file."""

KEY_BYTES = 32


@dataclass
class Trust:
    """Trust in recorded configurations that the user expresses in the current command or call."""

    everything: bool = False
    """Whether all code that recorded configurations name may be imported."""
    config_dir: str | None = None
    """Absolute path of the --config-dir of the current command, whose files are the user's own; None if it is
    not set."""
    typed: str = "labrl.load(..., trust=True)"
    """Advice in messages: the option or argument with which everything is trusted."""


_trust: ContextVar[Trust] = ContextVar("trust", default=Trust())  # noqa: B039 (of a call without `trusting`)


def present_trust() -> Trust:
    """Return the trust that the user expresses in the current command or call."""
    return _trust.get()


@contextmanager
def trusting(trust: Trust) -> Iterator[None]:
    """Context manager: apply `trust` in place of the current trust."""
    token = _trust.set(trust)
    try:
        yield
    finally:
        _trust.reset(token)


def cache_folder() -> Path:
    """Return the folder of the signature key and of measured baselines: LABRL_CACHE, or `labrl` in the user's
    cache."""
    own = os.environ.get("LABRL_CACHE")
    if own:
        return Path(os.path.expanduser(own))
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache"), "labrl")


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Add the user's signature to the content of a JSON file, and return the signed content. If the cache
    cannot be written, there is no signature."""
    plain = {name: value for name, value in content.items() if name != SIGNATURE}
    key = _key(create=True)
    return plain if key is None else {**plain, SIGNATURE: _signature(key, plain)}


def is_own(content: Mapping[str, Any]) -> bool:
    """Return whether the user has signed the content of a JSON file, or trusts everything."""
    if present_trust().everything:
        return True
    given, key = str(content.get(SIGNATURE, "")).encode(), _key(create=False)
    return key is not None and hmac.compare_digest(_signature(key, content).encode(), given)


def _signature(key: bytes, content: Mapping[str, Any]) -> str:
    plain = {name: value for name, value in content.items() if name != SIGNATURE}
    return hmac.new(key, json.dumps(as_json(plain), sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _key(create: bool) -> bytes | None:
    """Return the user's signature key; None if there is no key, or if other users could have read it.

    create: whether a missing key is created. If several processes create it, even on different machines, all
    get the same key.
    """
    path = cache_folder() / "key"
    with contextlib.suppress(OSError):
        if create and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Only the user can read this file.
            with NamedTemporaryFile(mode="wb", dir=path.parent, prefix=".key.") as whole:
                whole.write(secrets.token_bytes(KEY_BYTES))
                whole.flush()
                sync_file(Path(whole.name))
                with contextlib.suppress(FileExistsError):  # another process was faster
                    os.link(whole.name, path)
        key, mode = path.read_bytes(), path.stat().st_mode
        private = not mode & 0o077
        return key if private and len(key) == KEY_BYTES else None
    return None
