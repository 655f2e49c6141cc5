"""Stand-ins for libraries that are slow to import, with which a configuration is checked early."""

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
def with_stand_ins() -> Iterator[None]:
    """Within this context, replace `LIBRARIES` by stand-ins; afterwards, unload the modules that use them.

    The `Config` of a component is defined in the same module as its class, which imports these libraries.
    Stand-ins are enough to read the dataclasses and to call `check_config`. The modules are kept for the next
    check, because an experiment checks each of its trials, and loading them again takes 0.1 s.
    """
    if _kept.keys() & sys.modules.keys():  # one of them, or of the libraries, has really been loaded since
        _kept.clear()
    before = dict(sys.modules)
    for name, module in _kept.items():
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent in before:
            vars(before[parent])[own] = module
    sys.meta_path.insert(0, _StandIn)
    try:
        yield
    finally:
        sys.meta_path.remove(_StandIn)
        for name in sys.modules.keys() - before:
            if name.partition(".")[0] in ("labrl", *LIBRARIES):
                _kept[name] = sys.modules.pop(name)
                parent, _, own = name.rpartition(".")
                if parent in before:
                    vars(before[parent]).pop(own, None)


_kept: dict[str, ModuleType] = {}
"""Modules by name that were loaded with stand-ins."""


class _StandIn(ModuleType):
    """Stand-in for a library and everything in it. As a base class, it is left out.

    The class itself is the finder and loader of these modules. Computing with a stand-in, or requesting its
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
