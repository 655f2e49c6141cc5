"""How the modules of components are read without libraries that load slowly."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

LIBRARIES = ("ale_py", "gymnasium", "numpy", "torch")
"""Libraries that are slow to import."""


@contextmanager
def outlined() -> Iterator[None]:
    """Let imports give stand-ins for `LIBRARIES`, and forget labrl's modules that have one afterwards.

    A component's `Config` stands beside the class that it configures, in a module that imports them. That is
    enough to read its dataclasses and to call its `check_config`.
    """
    before = dict(sys.modules)
    sys.meta_path.insert(0, _StandIn)
    try:
        yield
    finally:
        sys.meta_path.remove(_StandIn)
        for name in sys.modules.keys() - before:
            if name.partition(".")[0] in ("labrl", *LIBRARIES):
                del sys.modules[name]
                parent, _, own = name.rpartition(".")
                if parent in before:
                    vars(before[parent]).pop(own, None)


class _StandIn(ModuleType):
    """A library that is not loaded, and whatever it holds. As a base class it is none.

    The class itself is the finder and the loader of such modules. Computing with one, or asking for its
    signature, raises TypeError.
    """

    __signature__ = ()

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in LIBRARIES:
            return None
        return ModuleSpec(name, cls, is_package=True)  # type: ignore[arg-type]

    @classmethod
    def create_module(cls, spec: ModuleSpec) -> ModuleType:
        return cls(spec.name)

    @classmethod
    def exec_module(cls, module: ModuleType) -> None:
        pass

    def __getattr__(self, name: str) -> _StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def _itself(self, *arguments: Any, **named: Any) -> _StandIn:
        return self

    __call__ = __getitem__ = __or__ = _itself

    def __float__(self) -> float:
        return float("nan")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()
