"""Checks of errors by class, code and key instead of the wording of their messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from labrl.errors import BusyFolderError, Code, DamagedFileError, InputError, LabrlError


@contextmanager
def refused(
    code: Code | None, key: str | Path | None, *named: str, kind: type[LabrlError] = InputError
) -> Iterator[pytest.ExceptionInfo[LabrlError]]:
    """Expect an error one of whose mistakes has this code and key.

    code: None accepts any code. named: overrides, paths or numbers that the message must contain beside the
    key.
    """
    with pytest.raises(kind) as caught:
        yield caught
    place = None if key is None else str(key)
    codes = {mistake.key: mistake.code for mistake in caught.value.mistakes}
    assert place in codes, (codes, caught.value)
    assert code in (None, codes[place]), (codes, caught.value)
    for name in (place or "", *named):
        assert name in str(caught.value)


@contextmanager
def damaged(path: Path) -> Iterator[pytest.ExceptionInfo[LabrlError]]:
    """Expect the error for a damaged or incomplete file at `path`."""
    with refused("damaged", path, kind=DamagedFileError) as error:
        yield error


@contextmanager
def busy(folder: Path) -> Iterator[pytest.ExceptionInfo[LabrlError]]:
    """Expect the error for a folder that another process uses."""
    with refused("busy", folder, kind=BusyFolderError) as error:
        yield error
