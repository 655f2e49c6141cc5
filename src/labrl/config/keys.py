"""The keys of a configuration: how to walk over them, and what depends on the value of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from labrl.config.component import Component

T = TypeVar("T")


def walk(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full key and the value of `node`, which stands at `key`, and of everything below it."""
    yield key, node
    if isinstance(node, Mapping):
        for name, inner in node.items():
            yield from walk(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list | tuple):
        for index, inner in enumerate(node):
            yield from walk(inner, f"{key}[{index}]")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What depends on the value of a key. Without an annotation, everything does."""

    resume: bool = False
    """Whether a resumed run may have another value, because nothing that was learned depends on it."""
    same_group: bool = False
    """Whether runs that differ only in it are one group in statistics."""
    score: bool = True
    """Whether the worth of a trial in a search depends on it."""


Watches = Annotated[T, Traits(resume=True, same_group=True, score=False)]
"""A key that changes no number of a run: it only says what is watched, shown or kept."""
Continues = Annotated[T, Traits(resume=True, score=False)]
"""A key that a resume may change, such as the device. Runs that differ in it can differ in their rows."""
Scores = Annotated[T, Traits(resume=True)]
"""A key that changes how long a run goes on or how it is evaluated, and no update before that."""


@cache
def traits(key: str) -> Traits:
    """What depends on the full `key` of a trial's configuration."""
    # Imported late: the command line shows help without pydantic.
    from labrl.config.schema import TrialConfig

    return traits_of(key, TrialConfig)


def traits_of(key: str, cls: type) -> Traits:
    """Those of the full `key` in a configuration of class `cls`, or of the nearest key above that has any."""
    found = Traits()
    kinds = [cls]
    for name in key.split("."):
        hint = next((hints(kind)[name] for kind in kinds if name in hints(kind)), None)
        found = traits_in(hint) or found
        kinds = list(dataclasses_in(hint))
    return found


def traits_in(hint: Any) -> Traits | None:
    """The traits with which a type is annotated, if it is."""
    annotations = hint.__metadata__ if get_origin(hint) is Annotated else ()
    return next((one for one in annotations if isinstance(one, Traits)), None)


def dataclasses_in(hint: Any) -> Iterator[type]:
    """The dataclasses whose fields are keys below a field of type `hint`.

    For a component, whose class only its `_target_` names, they are those in the annotation of its type.
    """
    if isinstance(hint, type):
        yield from [hint] if dataclasses.is_dataclass(hint) and hint is not Component else []
    else:
        for part in get_args(hint):
            yield from dataclasses_in(part)


@cache
def hints(cls: type) -> dict[str, Any]:
    """The types of the fields of a dataclass, with their annotations."""
    return get_type_hints(cls, include_extras=True)
