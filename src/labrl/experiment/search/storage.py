"""Storage of a study: an SQLite file, a journal file, or a database shared by several machines."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import optuna
from filelock import FileLock
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from labrl.errors import InputError, first_line, install_command
from labrl.processes.secrets import redact
from labrl.run.experiment import STUDY_FILE

SECONDS_TO_CONNECT = 10
SECONDS_TO_WAIT = 120
"""Longest wait for another process that writes to the SQLite file, in seconds."""


class StudyStorage:
    """An Optuna storage with a lock for all processes that share it."""

    def __init__(self, url: str | None, folder: Path) -> None:
        """url: `hydra.sweeper.storage`; None: an SQLite file in `folder`.

        Raises InputError with the reason if the storage cannot be opened.
        """
        # SQLAlchemy decodes percent signs and ends the path at a question mark, and Optuna replaces braces.
        path = re.sub(r"[%?{}]", lambda found: quote(found[0], safe=""), str(folder / STUDY_FILE))
        self.url = url or f"sqlite:///{path}"
        kind, separator, rest = self.url.partition("://")
        self._kind = kind.partition("+")[0]
        if not separator or self._kind not in ("sqlite", "journal", "postgresql", "mysql"):
            raise InputError.about(
                f"hydra.sweeper.storage={self.shown_url}",
                "this must be sqlite:///<file>, journal:///<file>, postgresql://<user>@<host>/<database> or "
                "mysql://<user>@<host>/<database>",
                code="range",
            )
        file = rest.removeprefix("/")
        if self._kind == "sqlite":
            file = unquote(file.partition("?")[0])
        self._file = Path(file) if self._kind in ("sqlite", "journal") else None
        self.optuna: BaseStorage = self._opened()

    @property
    def shown_url(self) -> str:
        """The URL without its password."""
        return redact(self.url)

    def lock(self, name: str) -> AbstractContextManager[Any]:
        """Return the lock of the study `name`, which only one process of all machines can hold at a time."""
        if self._file is not None:
            return _file_lock(self._file.with_name(f"{self._file.name}.lock"))
        return self._database_lock(name)

    def close(self) -> None:
        """Release connections."""
        self.optuna.remove_session()

    def _opened(self) -> BaseStorage:
        seconds = {"timeout": SECONDS_TO_WAIT} if self._file else {"connect_timeout": SECONDS_TO_CONNECT}
        try:
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                if self._kind == "journal":
                    lock = _file_lock(self._file.with_name(f"{self._file.name}.writing"))
                    return JournalStorage(JournalFileBackend(str(self._file), lock_obj=lock))
            else:
                self._engine = create_engine(self.url, connect_args=seconds)
            with self.lock("tables"):  # Two machines must not create them at the same time.
                return RDBStorage(self.url, engine_kwargs={"connect_args": seconds})
        except Exception as error:
            setting = f"hydra.sweeper.storage={self.shown_url}"
            if not isinstance(error, ImportError):
                why = f"this storage cannot be opened: {first_line(error)}"
                raise InputError.not_found(setting, why) from error
            install = install_command("search") if self._kind == "postgresql" else ""
            fix = f"Type {install}" if install else "Install its driver for SQLAlchemy"
            why = f"the driver of this database is missing ({error})"
            raise InputError.about(setting, why, fix, code="not-installed") from error

    def failed(self, error: Exception) -> str | None:
        """Return the reason if `error` is a failure of this storage, otherwise None."""
        if isinstance(error, StorageInternalError):
            error = error.__cause__ if isinstance(error.__cause__, Exception) else error
        elif not isinstance(error, SQLAlchemyError | OSError):
            return None
        return first_line(error)

    @contextmanager
    def _database_lock(self, name: str) -> Iterator[None]:
        key = zlib.crc32(f"labrl {name}".encode())
        take, give = "SELECT pg_advisory_lock(:key)", "SELECT pg_advisory_unlock(:key)"
        if self._kind == "mysql":
            take, give = "SELECT GET_LOCK(:key, -1)", "SELECT RELEASE_LOCK(:key)"
        # A killed process loses its connection, which releases the lock.
        with self._engine.connect() as connection:
            connection.execute(text(take), {"key": key})
            try:
                yield
            finally:
                connection.execute(text(give), {"key": key})


def _file_lock(path: Path) -> Any:
    """Return a lock that the operating system releases if its process is killed.

    Optuna's own locks are files and links. A killed process leaves them behind, and other processes wait for
    them for 30 seconds.
    """
    return FileLock(path, poll_interval=0.002, fallback_to_soft=False, preserve_lock_file=True)


def silence() -> None:
    """Have Optuna log only warnings, because a search prints its own messages."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
