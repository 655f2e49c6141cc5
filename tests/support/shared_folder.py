"""The folder by which the processes of one test run share composed configurations (see `compositions`)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

FOLDER = "LABRL_TEST_COMPOSITIONS"
"""Environment variable: the folder by which the processes of this test run share compositions."""


@contextmanager
def share_compositions() -> Iterator[None]:
    """Let this process and those that it starts share compositions, unless they do already."""
    if FOLDER in os.environ:
        yield
        return
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="labrl-tests-")
    try:
        yield
    finally:
        shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True)
