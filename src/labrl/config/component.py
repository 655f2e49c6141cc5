"""A part of a run that YAML names by `_target_`: labrl's own or a user's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from labrl.errors import InputError, LabrlError
from labrl.targets import load_target, signature_of


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
