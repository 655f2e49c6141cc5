"""Configuration keys: iteration, differences between configurations, and the syntax of overrides."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from labrl.config.traits import Traits, annotation, dataclasses_in, hints
from labrl.schedules import expanded, short_form

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


def walk(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full key and value of `node`, whose key is `key`, and of everything below it."""
    yield key, node
    if isinstance(node, Mapping):
        for name, inner in node.items():
            yield from walk(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list | tuple):
        for index, inner in enumerate(node):
            yield from walk(inner, f"{key}[{index}]")


RATE = "agent.lr.rate"
"""Key of an adapted learning rate. The rate is part of the state, so a new value applies after a resume."""

OF_COMPONENTS = {
    RATE: Traits(resume=True),
    **dict.fromkeys(("env.check", "env.restarts"), Traits(resume=True, same_group=True, score=False)),
}
"""Traits of keys below a component. The key alone does not determine the component's class."""


@cache
def traits(key: str) -> Traits:
    """Return the traits of a full key of a trial's configuration. It may inherit them from a key above it."""
    # Imported late, because the command line shows help without importing pydantic.
    from labrl.config.schema import TrialConfig

    found = OF_COMPONENTS.get(key, Traits())
    kinds: list[type] = [TrialConfig]
    for name in key.split("."):
        hint = next((hints(kind)[name] for kind in kinds if name in hints(kind)), None)
        found = annotation(hint, Traits) or found
        kinds = list(dataclasses_in(hint))
    return found


ABSENT = object()
"""Placeholder for the value of a missing key."""


@dataclass(frozen=True)
class Change:
    """A key whose value differs between two configurations."""

    key: str
    old: Any
    """Old value as plain data, or ABSENT."""
    new: Any
    """New value as plain data, or ABSENT."""

    @property
    def pinnable(self) -> bool:
        """Whether an override can restore the old value, that is, whether both configurations have the
        key."""
        return self.old is not ABSENT and self.new is not ABSENT

    def as_json(self) -> dict[str, Any]:
        """Return a dict with `key` and with its values `then` and `now`, without values that are ABSENT."""
        values = {"then": self.old, "now": self.new}
        return {"key": self.key, **{name: value for name, value in values.items() if value is not ABSENT}}


def changes(old: Mapping[str, Any], new: Mapping[str, Any], parent: str = "") -> list[Change]:
    """Return every key that differs between two resolved configurations, in order.

    1e5 and 100000 count as equal, true and 1 as different. Lists are compared as a whole.
    """
    found: list[Change] = []
    for name in {**old, **new}:
        key = f"{parent}.{name}" if parent else str(name)
        then, now = old.get(name, ABSENT), new.get(name, ABSENT)
        if isinstance(then, Mapping) and isinstance(now, Mapping):
            found += changes(then, now, key)
        elif not _same(then, now):
            found.append(Change(key, then, now))
    return found


def contradictions(found: Iterable[Change]) -> list[Change]:
    """Return the changes that a resume must refuse, because they would have affected earlier training."""
    return [one for one in found if not traits(one.key).resume]


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return not changes(old, new)
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)


CONSTANT = ("env.", "hydra.", "meta.", "search.", "start_from.", "wandb.")
"""Prefixes of keys whose values are never schedules, even if they look like one: `wandb.name=linear:1:0`."""


def override_of(key: str, value: Any) -> str:
    """Return the override that sets `key` to `value`."""
    return f"{key}={written(value, short=not key.startswith(CONSTANT))}"


def typed_override(key: str, value: Any) -> str:
    """Return the override that sets `key` to `value`, quoted for a shell."""
    return shlex.quote(override_of(key, value))


def is_hydras(override: str) -> bool:
    """Return whether an override configures Hydra rather than a trial."""
    return override.lstrip("+~").startswith(("hydra.", "hydra/"))


def split_override(override: str) -> tuple[str, str]:
    """Return the key and the value of an override, without a leading `+` or `~`."""
    key, _, value = override.lstrip("+~").partition("=")
    return key, value


def without_alias(overrides: Iterable[str]) -> list[str]:
    """Return the overrides with `start_from.run` instead of its alias `start_from`.

    Hydra itself does so for overrides on the command line, but not for those of a trial or of a recorded run.
    """
    return [re.sub(r"^(\+*start_from)=", r"\1.run=", one) for one in overrides]


def key_of(override: str) -> str:
    """Return the key or group of an override, without a leading `+` or `~` and without a package."""
    return split_override(override)[0].partition("@")[0]


def values_of(override: Override) -> list[str]:
    """Return an override for each value of an override with several discrete values; [] if there are none, as
    in range(1, 1)."""
    with suppress(ValueError):  # the step of a range is 0, or the range is one of several values
        if override.is_discrete_sweep():
            return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
    return []


def quoted(text: str) -> str:
    """Return `text` in quotes for Hydra, in which backslashes need escaping only before a quote."""
    inner = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)$", r"\1\1", inner) + "'"


def unescaped(override: str) -> str:
    """Return `override` without Hydra's backslashes before colons in a schedule: `agent.lr=linear:3e-4:0`."""
    key, _, value = override.partition("=")
    plain = value.replace("\\:", ":")
    return override if expanded(plain) is plain else f"{key}={plain}"


def shortened(override: str) -> str:
    """Return `override` with its schedule in short form, for messages: `agent.lr=linear:3e-4:0:1000`."""
    key, _, value = override.partition("=")
    parts = short_form(dict(re.findall(r"(\w+): *([^ ,{}]+)", value))) if value.startswith("{kind") else None
    return f"{key}={':'.join(parts)}" if parts else override


def written(value: Any, short: bool = True) -> str:
    """Return a value in the syntax of overrides; `-` for ABSENT. short: whether to shorten schedules."""
    if value is ABSENT:
        return "-"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if short and (parts := short_form(value)):
        return ":".join(part if isinstance(part, str) else written(part) for part in parts)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {written(inner, short)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(inner, short) for inner in value) + "]"
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./-]*", value)
    if isinstance(value, str) and (not plain or value.lower() in ("null", "true", "false", "nan", "inf")):
        return quoted(value)
    return str(value)
