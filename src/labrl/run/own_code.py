"""Versions of the user's own code: of the modules that define the classes which a configuration names."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from labrl.component import MAIN, TargetError, load_target
from labrl.errors import is_users_file
from labrl.run.run import group_config
from labrl.run.trust import code_names, entry_points


def own_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash of the source code of each module of the user's that affects the rows of a run.

    These are the modules that define the classes and functions that `config` names, and the classes from
    which they are derived; of a script or a notebook that calls labrl, only these classes and functions.
    Modules that they import are left out, because which of them are imported depends on earlier runs in the
    same process. Comments and formatting do not affect a hash; the versions of installed packages are
    recorded separately.
    """
    found: dict[str, list[str]] = {}
    for part in chain.from_iterable(map(_parts, code_names(group_config(config)))):
        module = part if inspect.ismodule(part) else inspect.getmodule(part)
        if module is None or not (
            is_users_file(vars(module).get("__file__") or "<built-in>") or module.__name__ == MAIN
        ):
            continue
        with suppress(OSError, TypeError, SyntaxError, ValueError, RecursionError):
            if module.__name__ == MAIN:
                source = textwrap.dedent(inspect.getsource(part))
            else:
                source = Path(str(module.__file__)).read_text(encoding="utf-8")
            plain = ast.unparse(ast.parse(source))
            if plain not in found.setdefault(module.__name__, []):
                found[module.__name__].append(plain)
    hashes = {
        name: hashlib.sha256("\n".join(parts).encode()) for name, parts in sorted(found.items()) if parts
    }
    return {name: one.hexdigest()[:7] for name, one in hashes.items()}


def _parts(name: str) -> Iterator[Any]:
    """Yield a class and its base classes, a function, or what makes an environment with this id; `name` may
    also be the name of a module."""
    if name in sys.modules:
        yield sys.modules[name]
    for target in [name, *(one.replace(":", ".") for one in entry_points(name))]:
        with suppress(TargetError):
            made = load_target(target)
            yield from inspect.getmro(made) if inspect.isclass(made) else (made,)
