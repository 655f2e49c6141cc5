"""`Component`, a part of a run that YAML selects by `_target_`, and the import of such targets."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from labrl.errors import InputError, LabrlError

MAIN = "__main__"
"""Module of the script or notebook that calls labrl."""

used_of_main: set[str] = set()
"""Names in `__main__` that targets of this run refer to."""
being_imported: list[str] = []
"""Modules that labrl is currently importing because a configuration names them."""


@dataclass(frozen=True)
class Component:
    """A validated configuration node with a `_target_`: a class or function and its settings.

    A target with an attribute `Config` (a keyword-only dataclass) is built by
    `target(config, **runtime)`, any other target by `target(**runtime, **settings)`.
    """

    target: str
    """Dotted path of the class or function."""
    config: Any
    """An instance of `target.Config`, or a dict of settings if the target has no `Config`."""
    key: str = field(default="", compare=False, repr=False)
    """Key in the configuration, for messages; '' if unknown."""

    def plain(self) -> dict[str, Any]:
        """Return the configuration node from which `dataclass_of` makes this component."""
        return asdict(self, dict_factory=_node)

    def load(self) -> Any:
        """Import the class or function."""
        return load_target(self.target)

    def build(self, **runtime: Any) -> Any:
        """Make the part by calling the target with its settings.

        runtime: further arguments, which are known only at run time. Raises InputError if a user's part
        fails. Errors in labrl's parts propagate unchanged.
        """
        target = self.load()
        config = [] if isinstance(self.config, dict) else [self.config]
        given = runtime if config else {**runtime, **self.config}
        with self._failing(f"cannot be made with {', '.join(given) or 'no argument'}"):
            if (signature := signature_of(target)) is not None:
                signature.bind(*config, **given)  # reports missing arguments before unknown ones
            return target(*config, **given)

    def check(self, method: str, *known: Any) -> None:
        """Call the target's `method(config, *known)`, if there is one, to check its configuration.

        Raises InputError if the method raises.
        """
        asked = getattr(self.load(), method, None)
        if asked is not None:
            with self._failing(f"was refused by its method {method}"):
                asked(self.config, *known)

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Convert exceptions of a user's code to InputError. Errors in labrl's code propagate unchanged."""
        try:
            yield
        except LabrlError:
            raise
        except (Exception, SystemExit) as error:
            if self.target.partition(".")[0] == "labrl":
                raise
            why = f"{self.target} {what}: {type(error).__name__}: {error}"
            fix = "Correct its keys or the class"
            raise InputError.about(self.key or self.target, why, fix, code="target") from error

    @property
    def named(self) -> str:
        """The key and the target, with which messages begin."""
        return f"{self.key}: {self.target}" if self.key else self.target


def _node(values: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a dataclass as in YAML, with a component's settings beside its `_target_`."""
    node = dict(values)
    is_component = node.keys() == {"target", "config", "key"}
    return {"_target_": node["target"], **node["config"]} if is_component else node


class TargetError(ImportError):
    """The object named by a `_target_` cannot be imported."""

    def __init__(self, message: str, missing: str = "", known: Iterable[str] = ()) -> None:
        """missing: the part of the path that was not found; known: names that exist in its place."""
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
            if isinstance(error, ModuleNotFoundError) and error.name == module:
                place = "the working directory, --config-dir or sys.path"
                message = f"{path}: there is no {name} in {'.'.join(parts[: count - 1]) or place}."
            known = _names_in(found, last=count == len(parts)) if count > 1 else []
            if module == f"{MAIN}.{name}":
                message += " Call labrl.train in the script that defines it, or move it to a module."
                known = []
            raise TargetError(message, name, known) from error
    if not callable(found):
        raise TargetError(f"{path} is neither a class nor a function")
    return found


def _names_in(owner: Any, last: bool) -> list[str]:
    """Return the names that may follow `owner` in a dotted path.

    last: whether the path ends with such a name, so that it cannot be a module.
    """
    modules = {name for name, _ in inspect.getmembers(owner, inspect.ismodule)} if last else set()
    return [name for name in dir(owner) if name not in modules]


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Context manager: record that `module` is imported because a configuration names it."""
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
