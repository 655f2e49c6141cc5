"""A part of a run that YAML names by `_target_`: labrl's own or a user's."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from labrl import script
from labrl.config.outline import import_target
from labrl.errors import InputError, LabrlError, did_you_mean


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
        arguments = f"its arguments, {self.key}.<name>," if self.key else "its arguments"
        with self._failing("cannot be made", f"Correct {arguments} or the class."):
            if isinstance(self.config, dict):
                self._check_arguments(target, {**runtime, **self.config})
                return target(**runtime, **self.config)
            return target(self.config, **runtime)

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

    def _check_arguments(self, target: Any, given: Mapping[str, Any]) -> None:
        """Raise InputError where the target lacks an argument, or gets one that it does not take."""
        signature = _signature(target)
        if signature is None:
            return
        try:
            signature.bind(**given)
        except TypeError as error:
            raise InputError(
                f"{self.named}: {error}. It is called with {', '.join(given) or 'nothing'}: let it take "
                "these. Set whatever else it needs beside this _target_ (with + before a new key), or give "
                "it a default.",
                code="target",
                key=self.key or None,
            ) from None


def lacking(made: Any, protocol: type) -> list[str]:
    """Return the names of the methods of `protocol` that `made` lacks."""
    methods = [name for name, value in vars(protocol).items() if inspect.isfunction(value) and name[0] != "_"]
    return [name for name in methods if not callable(getattr(made, name, None))]


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
    found, rest = _import_longest(parts)
    if parts[0] == script.MAIN:
        script.uses(parts[1])
    for count, name in enumerate(rest, len(parts) - len(rest)):
        if not hasattr(found, name) and parts[0] == script.MAIN:
            where = getattr(found, "__file__", "an interactive session")
            raise TargetError(
                f"{path}: {script.MAIN} is the script or notebook that calls labrl, and {where} defines no "
                f"{name}. Call labrl.train where {name} is defined. Every script and the command line find a "
                "class in a module: _target_=my_module.MyClass"
            )
        if not hasattr(found, name):
            where = ".".join(parts[:count])
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
            with script.importing(name):
                module = import_target(name)
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
