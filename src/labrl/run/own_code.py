"""Versions of the user's own code: of the modules that define the classes which a configuration names."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from labrl.component import TargetError, load_target
from labrl.run.run import group_config
from labrl.run.trust import code_names, entry_points

_INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_PACKAGE = Path(__file__).parents[1]


def own_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash of the source code of each module of the user's that affects the rows of a run.

    These are the modules that define the classes and functions that `config` names, and the classes from
    which they are derived. Modules that they import are left out, because which of them are imported depends
    on earlier runs in the same process. Comments and formatting do not affect a hash; the versions of
    installed packages are recorded separately.
    """
    found: dict[str, str] = {}
    for name in code_names(group_config(config)):
        for module in _modules(name):
            file = vars(module).get("__file__")
            if module.__name__ not in found and file is not None and not _is_installed(Path(file)):
                with suppress(OSError, SyntaxError, ValueError, RecursionError):
                    plain = ast.unparse(ast.parse(Path(file).read_bytes()))
                    found[module.__name__] = hashlib.sha256(plain.encode()).hexdigest()[:7]
    return dict(sorted(found.items()))


def _modules(name: str) -> Iterator[ModuleType]:
    """Yield the modules of a class and its base classes, of a function, or of an environment's id; `name` may
    also be the name of a module."""
    if name in sys.modules:
        yield sys.modules[name]
    for target in [name, *(one.replace(":", ".") for one in entry_points(name))]:
        with suppress(TargetError):
            made = load_target(target)
            for one in inspect.getmro(made) if inspect.isclass(made) else (made,):
                if (module := inspect.getmodule(one)) is not None:
                    yield module


def _is_installed(file: Path) -> bool:
    return any(file.is_relative_to(folder) for folder in (*_INSTALLED, _PACKAGE))
