"""Caches of what every run records about its code and its machine, so that tests determine it only once."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from optuna.storages._rdb.storage import _VersionManager

from labrl.run import provenance

ROOT = Path(__file__).parents[2]


def remember_surroundings() -> None:
    """Cache the description of labrl's repository and of the GPUs, and disable slow calls.

    The versions of Optuna's tables, which it would compile anew for each study, are read once. `os.fsync`
    only checks its descriptor, and SQLite does not wait for the disk, which takes 10 ms for each of the 17
    commits of a trial, because no test can check that data survives a power failure.
    """
    describe = provenance.describe_repository
    describe_once = functools.cache(describe)

    def described(root: Path) -> tuple[dict[str, Any], str]:
        return copy.deepcopy(describe_once(root)) if root == ROOT else describe(root)

    provenance.describe_repository = described
    provenance._gpus = functools.cache(provenance._gpus)
    _VersionManager._create_alembic_script = _once(_VersionManager._create_alembic_script)
    os.fsync = os.fstat  # type: ignore[assignment]  # raises for the same invalid descriptors
    connect = sqlite3.dbapi2.connect

    def connected(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        with contextlib.suppress(sqlite3.Error):  # a file that is no database fails where it is used
            connection.execute("PRAGMA synchronous=OFF").close()
        return connection

    sqlite3.dbapi2.connect = connected  # type: ignore[assignment]  # SQLAlchemy looks it up there


def _once(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the method `read`, whose result is the same for all objects, that is called only once."""
    result: list[Any] = []

    @functools.wraps(read)
    def read_once(owner: Any) -> Any:
        if not result:
            result.append(read(owner))
        return result[0]

    return read_once


def look_around() -> None:
    """Fill the caches of `remember_surroundings`."""
    provenance.describe_code()
    provenance.installed_packages()
    provenance.describe_machine()
