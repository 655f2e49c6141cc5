"""A part of a run that YAML names by `_target_`, labrl's own or a user's, and how it is imported."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

from labrl.errors import InputError, LabrlError

MAIN = "__main__"
"""Module of the script or notebook that calls labrl."""

used_of_main: set[str] = set()
"""Names of `__main__` that targets of this run were found by."""
being_imported: list[str] = []
"""Modules that labrl imports at the moment because a configuration names them."""


class TargetError(ImportError):
    """What a `_target_` names cannot be imported."""

    def __init__(self, message: str, missing: str = "", known: Iterable[str] = ()) -> None:
        """missing: the part of the path that is not there; known: the names that are."""
        super().__init__(message)
        self.missing, self.known = missing, tuple(known)


def load_target(path: Any) -> Any:
    """Import the object at the dotted `path`. Raises TargetError with the part that is not there."""
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
    """Return the names that a path may continue with; last: whether they end it, as a module cannot."""
    return [name for name in dir(owner) if not (last and isinstance(getattr(owner, name, None), ModuleType))]


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Mark that `module` is being imported because a configuration names it."""
    being_imported.append(module)
    try:
        yield
    finally:
        being_imported.pop()


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


@dataclass(frozen=True)
class Component:
    """A validated node with a `_target_`: which class or function, and with what settings.

    A target with an attribute `Config` (a keyword-only dataclass) is built by
    `target(config, **runtime)`, any other one by `target(**runtime, **settings)`.
    """

    target: str
    """Dotted path of the class or function."""
    config: Any
    """An instance of `target.Config`, or the settings as a dict where the target has no `Config`."""
    key: str = field(default="", compare=False, repr=False)
    """Key in the configuration, for messages; '' where unknown."""

    def plain(self) -> dict[str, Any]:
        """Return the node that `dataclass_of(Component, node)` makes this component from."""
        return asdict(self, dict_factory=_node)

    def load(self) -> Any:
        """Import the class or function."""
        return load_target(self.target)

    def build(self, **runtime: Any) -> Any:
        """Make the part. runtime: arguments that only the running program knows.

        Raises InputError where a user's own part fails. Errors of labrl's own parts pass unchanged.
        """
        target = self.load()
        config = [] if isinstance(self.config, dict) else [self.config]
        given = runtime if config else {**runtime, **self.config}
        with self._failing(f"cannot be made with {', '.join(given) or 'no argument'}"):
            if (signature := signature_of(target)) is not None:
                signature.bind(*config, **given)  # names what is missing before what is unknown
            return target(*config, **given)

    def check(self, method: str, *known: Any) -> None:
        """Call the target's `method(config, *known)`, if it has one, to check its configuration.

        Raises InputError where it refuses.
        """
        asked = getattr(self.load(), method, None)
        if asked is not None:
            with self._failing(f"has refused, in {method}"):
                asked(self.config, *known)

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Raise InputError for whatever a user's own code raises. Errors of labrl's pass unchanged."""
        try:
            yield
        except LabrlError:
            raise
        except (Exception, SystemExit) as error:
            if self.target.partition(".")[0] == "labrl":
                raise
            message = f"{self.named} {what}: {type(error).__name__}: {error}. Correct its keys or the class."
            raise InputError(message, code="target", key=self.key or None) from error

    @property
    def named(self) -> str:
        """The key and target with which messages begin."""
        return f"{self.key}: {self.target}" if self.key else self.target


def _node(values: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a dataclass as YAML has them: the settings of a component stand beside its `_target_`."""
    node = dict(values)
    is_component = node.keys() == {"target", "config", "key"}
    return {"_target_": node["target"], **node["config"]} if is_component else node
