"""A part of a run that YAML names by `_target_`: labrl's own or a user's."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from labrl.config.errors import ConfigError, did_you_mean


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

    @classmethod
    def parse(cls, node: Mapping[str, Any], key: str = "") -> Component:
        """The component that `node`, found at the full key `key`, describes.

        Raises ConfigError when the target does not exist or a setting is unknown, missing or wrong.
        """
        # Imported late: the command line shows help and composes without pydantic.
        from labrl.config.validate import InvalidError, component_of

        try:
            return component_of(node)
        except InvalidError as invalid:
            raise ConfigError(invalid.told(key)) from None

    def plain(self) -> dict[str, Any]:
        """The node that `parse` makes this component from."""
        return {"_target_": self.target, **_plain(self.config)}

    def load(self) -> Any:
        """The imported class or function."""
        return load_target(self.target)

    def build(self, **runtime: Any) -> Any:
        """Make the part, with what only the running program knows as keyword arguments."""
        target = self.load()
        if isinstance(self.config, dict):
            _check_complete(self.target, target, {**runtime, **self.config})
            return target(**runtime, **self.config)
        return target(self.config, **runtime)


def _check_complete(name: str, target: Any, given: Mapping[str, Any]) -> None:
    """Raises ConfigError for arguments that a target needs and nobody gives."""
    signature = _signature(target)
    if signature is None:
        return
    try:
        signature.bind(**given)
    except TypeError as error:
        raise ConfigError(
            f"{name}: {error}. Set it beside this _target_ (with + before a new key), or give it a default."
        ) from None


def _signature(target: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):  # some classes written in C have none
        return None


def _plain(value: Any) -> Any:
    """Settings as YAML has them."""
    if isinstance(value, Component):
        return value.plain()
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def load_target(path: str) -> Any:
    """Import the object at the dotted `path`. Raises TargetError with the part that is not there."""
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise TargetError(f"must be a dotted path such as my_module.MyClass, got {path!r}")
    found, rest = _import_longest(parts)
    for name in rest:
        if not hasattr(found, name):
            where = getattr(found, "__name__", str(found))
            names = [known for known in dir(found) if not known.startswith("_")]
            raise TargetError(f"{path}: {where} has no {name}.{did_you_mean(name, names)}")
        found = getattr(found, name)
    if not callable(found):
        raise TargetError(f"{path} is neither a class nor a function")
    return found


def _import_longest(parts: list[str]) -> tuple[Any, list[str]]:
    """The module named by the longest importable beginning of `parts`, and the names after it."""
    module: Any = None
    path = ".".join(parts)
    for count in range(1, len(parts)):
        name = ".".join(parts[:count])
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name == name and module is not None:
                return module, parts[count - 1 :]
            if error.name == name:
                raise TargetError(
                    f"{path}: there is no module {name} (is it installed, or in the working folder?)"
                ) from None
            raise TargetError(f"{path} needs the module {error.name}, which is not installed") from error
        except (Exception, SystemExit) as error:
            raise TargetError(f"{path}: importing {name} failed: {type(error).__name__}: {error}") from error
    return module, parts[-1:]


def accepted_settings(target: Any) -> set[str] | None:
    """Names that `target` takes as keyword arguments, or None when it takes any."""
    signature = _signature(target)
    if signature is None:
        return None
    parameters = signature.parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {p.name for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY}
