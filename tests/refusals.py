"""Wrong input is refused with a code, a key and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from labrl.errors import Code, InputError


@contextmanager
def refused(key: str, code: Code | None, *named: str) -> Iterator[None]:
    """Within it, an InputError must be raised of which one mistake is `code` at `key`.

    code: None where the list of codes leaves a choice. named: overrides, paths or numbers that its message
    contains.
    """
    with pytest.raises(InputError) as caught:
        yield
    codes = {mistake.key: mistake.code for mistake in caught.value.mistakes}
    assert key in codes, (codes, caught.value)
    assert code in (None, codes[key]), (codes, caught.value)
    for name in (key, *named):
        assert name in str(caught.value)
