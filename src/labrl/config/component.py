"""A part of a run that YAML selects by `_target_`, from labrl or from a user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from labrl.errors import InputError, LabrlError
from labrl.targets import load_target, signature_of


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
        """Make the part.

        runtime: arguments that are known only at run time. Raises InputError if a user's part fails. Errors
        in labrl's parts propagate unchanged.
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
            message = f"{self.named} {what}: {type(error).__name__}: {error}. Correct its keys or the class."
            raise InputError(message, code="target", key=self.key or None) from error

    @property
    def named(self) -> str:
        """The key and target, the start of messages."""
        return f"{self.key}: {self.target}" if self.key else self.target


def _node(values: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a dataclass as in YAML, with a component's settings beside its `_target_`."""
    node = dict(values)
    is_component = node.keys() == {"target", "config", "key"}
    return {"_target_": node["target"], **node["config"]} if is_component else node
