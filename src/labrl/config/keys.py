"""What a configuration key is beyond its type, and every key that a configuration dataclass has."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from labrl.config.component import Component

T = TypeVar("T")


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


@dataclass(frozen=True)
class Key:
    """One key of a configuration."""

    name: str
    """The full key, such as `meta.keep_last`."""
    hint: Any
    """Its type with the allowed range, as `typing.get_type_hints(..., include_extras=True)` gives it."""
    meaning: str
    """The docstring below the field: what it means, its unit and its range."""
    traits: Traits


def keys(cls: type, prefix: str = "", traits: Traits | None = None) -> Iterator[Key]:
    """Every key of the dataclass `cls` that stands at the full key `prefix`; keys below a key follow it.

    traits: of the keys above, which those below have where they say nothing themselves.
    """
    meanings = field_docstrings(cls)
    for name, hint in hints(cls).items():
        full = f"{prefix}.{name}" if prefix else name
        own = traits_in(hint) or traits or Traits()
        yield Key(full, hint, meanings.get(name, ""), own)
        for below in dataclasses_in(hint):
            yield from keys(below, full, own)


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


@cache
def field_docstrings(cls: type) -> dict[str, str]:
    """The docstring below each field of a dataclass that has one, those of its bases included."""
    found: dict[str, str] = {}
    for kind in reversed(cls.__mro__[:-1]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in zip(definition.body, definition.body[1:], strict=False):
            is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if is_field and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[field.target.id] = inspect.cleandoc(str(below.value.value))  # type: ignore[attr-defined]
    return found
