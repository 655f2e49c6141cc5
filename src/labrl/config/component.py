"""A part of a run that YAML names by `_target_`: labrl's own or a user's."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from labrl import script
from labrl.errors import InputError, LabrlError
from labrl.mistakes.spelling import did_you_mean


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
            if (signature := _signature(target)) is not None:
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


def _signature(target: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):  # some classes written in C have none
        return None


def _node(values: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a dataclass as YAML has them: the settings of a component stand beside its `_target_`."""
    node = dict(values)
    is_component = node.keys() == {"target", "config", "key"}
    return {"_target_": node["target"], **node["config"]} if is_component else node


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
            hint = did_you_mean(name, dir(found)) if count > 1 else ""
            if module == f"{script.MAIN}.{name}":
                hint = " Call labrl.train in the script that defines it, or move it to a module."
            raise ImportError(f"{path}: {type(error).__name__}: {error}.{hint}") from error
    if not callable(found):
        raise ImportError(f"{path} is neither a class nor a function")
    return found


def accepted_settings(target: Any) -> set[str] | None:
    """Names that `target` takes as keyword arguments, or None when it takes any."""
    signature = _signature(target)
    if signature is None:
        return None
    parameters = signature.parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {p.name for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY}
