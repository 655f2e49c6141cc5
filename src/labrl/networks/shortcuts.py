"""Whether networks compute faster than layer by layer; whoever looks into their layers switches that off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_taken = True


def taken() -> bool:
    """Whether networks may compute otherwise than by calling their own layers."""
    return _taken


@contextmanager
def avoided() -> Iterator[None]:
    """Within it networks compute by their own layers."""
    global _taken
    _taken = False
    try:
        yield
    finally:
        _taken = True
