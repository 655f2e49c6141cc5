"""A part of a run that YAML names by `_target_`: labrl's own or a user's."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from labrl import script
from labrl.errors import InputError, LabrlError
from labrl.mistakes.spelling import did_you_mean


class TargetError(ValueError):
    """A `_target_` that cannot be imported."""


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
    """Where it stands in the configuration, for messages; '' where that is unknown."""

    @classmethod
    def parse(cls, node: Mapping[str, Any], key: str = "") -> Component:
        """Return the component that `node`, which stands at the full key `key`, describes.

        Raises InputError when the target does not exist or a setting is unknown, missing or wrong.
        """
        # Imported late: the command line shows help and composes without pydantic.
        from labrl.config.validate import dataclass_of

        return dataclass_of(cls, node, key)

    def plain(self) -> dict[str, Any]:
        """Return the node that `parse` makes this component from."""
        return {"_target_": self.target, **_plain(self.config)}

    def load(self) -> Any:
        """Import the class or function."""
        return load_target(self.target)

    def build(self, **runtime: Any) -> Any:
        """Make the part. runtime: arguments that only the running program knows.

        Raises InputError where a user's own part fails. Errors of labrl's own parts pass unchanged.
        """
        target = self.load()
        if not isinstance(self.config, dict):
            with self._failing("cannot be made", "Correct its keys or the class."):
                return target(self.config, **runtime)
        given = {**runtime, **self.config}
        remedy = f"It is called with {', '.join(given) or 'nothing'}: correct these, or the class."
        with self._failing("cannot be made", remedy):
            if (signature := _signature(target)) is not None:
                signature.bind(**given)  # names what is missing before what is unknown
            return target(**given)

    def check(self, method: str, *known: Any) -> None:
        """Call the target's `method(config, *known)`, if it has one, to check its configuration.

        Raises InputError where it refuses.
        """
        asked = getattr(self.load(), method, None)
        if asked is not None:
            with self._failing(f"has refused, in {method}", "Correct its keys."):
                asked(self.config, *known)

    @contextmanager
    def _failing(self, what: str, remedy: str) -> Iterator[None]:
        """Raise InputError for whatever a user's own code raises. Errors of labrl's pass unchanged."""
        try:
            yield
        except LabrlError:
            raise
        except (Exception, SystemExit) as error:
            if self.target.partition(".")[0] == "labrl":
                raise
            message = f"{self.named} {what}: {type(error).__name__}: {error}. {remedy}"
            raise InputError(message, code="target", key=self.key or None) from error

    @property
    def named(self) -> str:
        """Its key and target, as messages begin."""
        return f"{self.key}: {self.target}" if self.key else self.target


def _signature(target: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):  # some classes written in C have none
        return None


def _plain(value: Any) -> Any:
    """Return settings as YAML has them."""
    if isinstance(value, Component):
        return value.plain()
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def load_target(path: Any) -> Any:
    """Import the object at the dotted `path`. Raises TargetError with the part that is not there."""
    parts = path.split(".") if isinstance(path, str) else []
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise TargetError(f"must be a dotted path such as my_module.MyClass, got {path!r}")
    found = _import(parts[0], path)
    if parts[0] == script.MAIN:
        script.uses(parts[1])
    for count, name in enumerate(parts[1:], 1):
        here = ".".join(parts[:count])
        found = getattr(found, name) if hasattr(found, name) else _import(f"{here}.{name}", path, found)
    if not callable(found):
        raise TargetError(f"{path} is neither a class nor a function")
    return found


def _import(name: str, path: str, parent: Any = None) -> Any:
    """Import the module `name`, which is the beginning of `path` and not yet known to `parent`."""
    try:
        with script.importing(name):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        where, _, own = name.rpartition(".")
        if error.name not in (name, where):
            raise TargetError(f"{path} needs the module {error.name}, which is not installed") from error
        if parent is None:
            reason = f"there is no module {name} (is it installed, or in the working folder?)"
        elif path.startswith(f"{script.MAIN}."):
            reason = (
                f"{script.MAIN} is the script or notebook that calls labrl, and "
                f"{getattr(parent, '__file__', 'an interactive session')} defines no {own}. Call labrl.train "
                f"where {own} is defined. Every script and the command line find a class in a module: "
                "_target_=my_module.MyClass"
            )
        else:
            names = [known for known in dir(parent) if not known.startswith("_")]
            reason = f"{where} has no {own}.{did_you_mean(own, names)}"
        raise TargetError(f"{path}: {reason}") from None
    except (Exception, SystemExit) as error:
        raise TargetError(f"{path}: importing {name} failed: {type(error).__name__}: {error}") from error


def accepted_settings(target: Any) -> set[str] | None:
    """Names that `target` takes as keyword arguments, or None when it takes any."""
    signature = _signature(target)
    if signature is None:
        return None
    parameters = signature.parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {p.name for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY}
