"""How what a `_target_` names is imported, and how its module is read without libraries that load slowly."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from labrl import script
from labrl.mistakes.spelling import did_you_mean


def load_target(path: Any) -> Any:
    """Import the object at the dotted `path`. Raises ImportError with the part that is not there."""
    parts = path.split(".") if isinstance(path, str) else []
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ImportError(f"must be a dotted path such as my_module.MyClass, got {path!r}")
    if parts[0] == script.MAIN:
        script.uses(parts[1])
    found = None
    for count, name in enumerate(parts, 1):
        with suppress(AttributeError):
            if count > 1:
                found = getattr(found, name)
                continue
        module = ".".join(parts[:count])
        try:
            with script.importing(module):
                found = importlib.import_module(module)
        except (Exception, SystemExit) as error:
            hint = did_you_mean(name, _names_in(found, last=count == len(parts))) if count > 1 else ""
            if module == f"{script.MAIN}.{name}":
                hint = " Call labrl.train in the script that defines it, or move it to a module."
            raise ImportError(f"{path}: {type(error).__name__}: {error}.{hint}") from error
    if not callable(found):
        raise ImportError(f"{path} is neither a class nor a function")
    return found


def _names_in(owner: Any, last: bool) -> list[str]:
    """Return the names that a path may continue with; last: whether they end it, as a module cannot."""
    return [name for name in dir(owner) if not (last and isinstance(getattr(owner, name, None), ModuleType))]


def accepted_settings(target: Any) -> set[str] | None:
    """Names that `target` takes as keyword arguments, or None when it takes any."""
    signature = signature_of(target)
    if signature is None:
        return None
    parameters = signature.parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {p.name for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY}


def signature_of(target: Any) -> inspect.Signature | None:
    """Return the signature of `target`, None for some classes written in C."""
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


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
