"""Checking values before PyTorch is loaded, which takes seconds.

A component's `Config` stands beside the class that it configures, in a module that imports PyTorch, NumPy,
Gymnasium or ALE. Inside `outlined()` such a module gets stand-ins for these libraries: enough to read its
dataclasses and to call its `check_config`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

LIBRARIES = ("ale_py", "gymnasium", "numpy", "torch")
"""What takes long to import."""


@contextmanager
def outlined() -> Iterator[None]:
    """Let imports give stand-ins for `LIBRARIES`, and forget labrl's modules that have one afterwards."""
    before, finder = set(sys.modules), _StandIns()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in ("labrl", *LIBRARIES):
                del sys.modules[name]
                parent, _, own = name.rpartition(".")
                vars(sys.modules.get(parent, finder)).pop(own, None)


class _StandIns:
    """Finder and loader of the libraries that are not loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in LIBRARIES:
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


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
