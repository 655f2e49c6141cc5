"""Traits of keys: what the value of a key can change in a run. They are part of the type of its field."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from labrl.component import Component

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Traits of a key, which describe the effects of its value. By default, it may have every effect."""

    resume: bool = False
    """Whether a resume may change the value, because it does not affect what was learned before."""
    same_group: bool = False
    """Whether runs that differ only in this key form one group in statistics."""
    score: bool = True
    """Whether the score of a trial in a search depends on the value."""


Watches = Annotated[T, Traits(resume=True, same_group=True, score=False)]
"""A key that controls only what is recorded, shown or kept, and does not change the numbers of a run."""
Continues = Annotated[T, Traits(resume=True, score=False)]
"""A key that a resume may change, such as the device, although it can change rows of metrics."""
Scores = Annotated[T, Traits(resume=True)]
"""A key that controls the length of a run or its evaluation, but does not change earlier updates."""


def annotation(hint: Any, kind: type[T]) -> T | None:
    """Return the first annotation of a type that is of `kind`, such as `Traits`; None if there is none."""
    annotations = hint.__metadata__ if get_origin(hint) is Annotated else ()
    return next((one for one in annotations if isinstance(one, kind)), None)


def dataclasses_in(hint: Any) -> Iterator[type]:
    """Yield the dataclasses whose fields are the keys below a field of type `hint`.

    For a component, whose class depends on its `_target_`, these are the ones in its annotation.
    """
    if isinstance(hint, type):
        yield from [hint] if dataclasses.is_dataclass(hint) and hint is not Component else []
    else:
        for part in get_args(hint):
            yield from dataclasses_in(part)


@cache
def hints(cls: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass, with their annotations."""
    return get_type_hints(cls, include_extras=True)
