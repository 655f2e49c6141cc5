"""The types of labrl's own components, known without the libraries that these compute with.

A component's `Config` stands beside the class that it configures, in a module that imports torch, Gymnasium
or ALE, which takes seconds. Inside `outlined()` such a module is executed under another name, with stand-ins
for the libraries that are not loaded yet: enough to read its dataclasses and to call its `check_config`.
"""

from __future__ import annotations

import builtins
import importlib
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from types import ModuleType
from typing import Any

PREFIX = "outline of "
"""Before the name of a module, that of its outline."""

_active: ContextVar[bool] = ContextVar("outlined", default=False)


@contextmanager
def outlined() -> Iterator[None]:
    """Let `import_target` give outlines of labrl's modules."""
    token = _active.set(True)
    try:
        yield
    finally:
        _active.reset(token)


def import_target(name: str) -> ModuleType:
    """The module `name`: imported, or inside `outlined()` the outline of one of labrl's."""
    if _active.get() and name.partition(".")[0] == "labrl" and not loaded():
        try:
            return _outline(name)
        except ModuleNotFoundError:
            raise
        except Exception:  # it computes with a stand-in
            return importlib.import_module(name)
    return importlib.import_module(name)


def loaded() -> bool:
    """Whether torch has been imported, which is all that an outline saves."""
    return "torch" in sys.modules


class _StandIn(ModuleType):
    """A library that is not loaded, and whatever it holds. As a base class it is none.

    Computing with it, or asking for its signature, raises TypeError.
    """

    __signature__ = ()

    def __getattr__(self, name: str) -> _StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **named: Any) -> _StandIn:
        return self

    def __getitem__(self, item: Any) -> _StandIn:
        return self

    def __or__(self, other: Any) -> _StandIn:
        return self

    __ror__ = __or__

    def __float__(self) -> float:
        return math.nan

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()


def _outline(name: str) -> ModuleType:
    """The module of labrl's called `name` as it is if it is loaded or is a package, else its outline."""
    alias = PREFIX + name
    for known in (name, alias):
        if known in sys.modules:
            return sys.modules[known]
    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if spec.submodule_search_locations is not None:
        return importlib.import_module(name)
    # Dataclasses and type hints look their module up by the name that it has.
    module = sys.modules[alias] = ModuleType(alias, f"Outline of {name}.")
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
    try:
        exec(spec.loader.get_code(name), vars(module))  # type: ignore[union-attr]
    except BaseException:
        del sys.modules[alias]
        raise
    return module


def _import(
    name: str,
    scope: Any = None,
    local: Any = None,
    wanted: tuple[str, ...] = (),
    level: int = 0,
) -> Any:
    """What an import statement means in an outline."""
    root = name.partition(".")[0]
    if root == "labrl" and wanted and not hasattr(_outline(name), "__path__"):
        return _outline(name)
    if root in sys.stdlib_module_names or root in sys.modules:
        return builtins.__import__(name, scope, local, wanted or (), level)
    return _StandIn(name)
