"""How the tests look at an error: by its class, code and key, never by its sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from labrl.errors import BusyFolderError, Code, DamagedFileError, InputError, LabrlError


@contextmanager
def refused(
    code: Code, key: str | Path | None, kind: type[LabrlError] = InputError
) -> Iterator[pytest.ExceptionInfo[LabrlError]]:
    """Expect an error of exactly this class, code and key."""
    with pytest.raises(kind) as error:
        yield error
    expected = (code, None if key is None else str(key))
    assert (error.value.code, error.value.key) == expected, str(error.value)


@contextmanager
def damaged(path: Path) -> Iterator[pytest.ExceptionInfo[LabrlError]]:
    """Expect the error for a damaged or incomplete file at `path`."""
    with refused("damaged", path, DamagedFileError) as error:
        yield error
    assert str(path) in str(error.value)


@contextmanager
def busy(folder: Path) -> Iterator[pytest.ExceptionInfo[LabrlError]]:
    """Expect the error for a folder that another process uses."""
    with refused("busy", folder, BusyFolderError) as error:
        yield error
    assert str(folder) in str(error.value)
