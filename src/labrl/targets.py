"""Import the object named by a `_target_`, or only its configuration, without slow libraries."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MAIN = "__main__"
"""Module of the script or notebook that calls labrl."""

used_of_main: set[str] = set()
"""Names in `__main__` that targets of this run refer to."""
being_imported: list[str] = []
"""Modules that labrl is currently importing because a configuration names them."""


class TargetError(ImportError):
    """The object named by a `_target_` cannot be imported."""

    def __init__(self, message: str, missing: str = "", known: Iterable[str] = ()) -> None:
        """missing: the part of the path that was not found; known: names that exist at this place."""
        super().__init__(message)
        self.missing, self.known = missing, tuple(known)


def load_target(path: Any) -> Any:
    """Import the object at the dotted `path`. Raises TargetError with the part that was not found."""
    parts = path.split(".") if isinstance(path, str) else []
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise TargetError(f"must be a dotted path such as my_module.MyClass, got {path!r}")
    if parts[0] == MAIN:
        used_of_main.add(parts[1])
    found = None
    for count, name in enumerate(parts, 1):
        with suppress(AttributeError):
            if count > 1:
                found = getattr(found, name)
                continue
        module = ".".join(parts[:count])
        try:
            with importing(module):
                found = importlib.import_module(module)
        except (Exception, SystemExit) as error:
            message = f"{path}: {type(error).__name__}: {error}."
            known = _names_in(found, last=count == len(parts)) if count > 1 else []
            if module == f"{MAIN}.{name}":
                message += " Call labrl.train in the script that defines it, or move it to a module."
                known = []
            raise TargetError(message, name, known) from error
    if not callable(found):
        raise TargetError(f"{path} is neither a class nor a function")
    return found


def _names_in(owner: Any, last: bool) -> list[str]:
    """Return the names that may follow in a path.

    last: whether the path ends with this name, which excludes modules.
    """
    return [name for name in dir(owner) if not (last and isinstance(getattr(owner, name, None), ModuleType))]


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Record, within this context, that `module` is imported because a configuration names it."""
    being_imported.append(module)
    try:
        yield
    finally:
        being_imported.pop()


def accepted_settings(target: Any) -> set[str] | None:
    """Return the names of the keyword arguments of `target`, or None if it accepts any."""
    signature = signature_of(target)
    if signature is None:
        return None
    parameters = signature.parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {p.name for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY}


def signature_of(target: Any) -> inspect.Signature | None:
    """Return the signature of `target`, or None for some classes implemented in C."""
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


LIBRARIES = ("ale_py", "gymnasium", "numpy", "torch")
"""Libraries that are slow to import."""


@contextmanager
def with_stand_ins() -> Iterator[None]:
    """Within this context, replace `LIBRARIES` by stand-ins; afterwards, unload the modules that use them.

    The `Config` of a component is defined in the same module as its class, which imports these libraries.
    Stand-ins are enough to read the dataclasses and to call `check_config`.
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
