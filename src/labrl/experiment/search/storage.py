"""Storage of a study: an SQLite file, a journal file, or a database shared by several machines."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna
from filelock import FileLock
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.exc import SQLAlchemyError

from labrl.errors import InputError, first_line, install_command
from labrl.processes.secrets import redact
from labrl.run.experiment import STUDY_FILE
from labrl.trial.summary import say

SECONDS_TO_CONNECT = 10
SECONDS_TO_WAIT = 120
"""Longest wait for another process that writes to the SQLite file, in seconds."""


def own_url(folder: Path) -> str:
    """Return the URL of the SQLite file in an experiment folder."""
    # SQLAlchemy decodes percent signs and ends the path at a question mark, and Optuna replaces braces.
    return "sqlite:///" + re.sub(r"[%?{}]", lambda one: quote(one[0], safe=""), str(folder / STUDY_FILE))


def open_storage(url: str) -> BaseStorage:
    """Return Optuna's storage. Raises InputError with the reason if it cannot be opened."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a search prints its own messages
    seconds = {"connect_timeout": SECONDS_TO_CONNECT}
    if url.startswith("sqlite"):
        seconds = {"timeout": SECONDS_TO_WAIT}
    try:
        if url.startswith("journal:///"):
            return _open_journal(Path(url.removeprefix("journal:///")))
        try:
            storage = RDBStorage(url, engine_kwargs={"connect_args": seconds})
        except SQLAlchemyError:  # Another machine may have created the tables at the same moment.
            time.sleep(1)
            storage = RDBStorage(url, engine_kwargs={"connect_args": seconds})
        return get_storage(storage)  # with a cache of the trials that have ended
    except Exception as error:
        setting, why = f"hydra.sweeper.storage={redact(url)}", f"it cannot be opened: {first_line(error)}"
        fix = (
            "Write sqlite:///<file>, journal:///<file>, mysql://... or postgresql://<user>@<host>/<database> "
            f"with its driver ({install_command('search')})"
        )
        raise InputError.not_found(setting, why, fix) from error


def _open_journal(path: Path) -> JournalStorage:
    """Open a journal file. The incomplete last line of a process that was killed is cut off, because the next
    line would continue it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A killed process leaves the files behind that are Optuna's own locks.
    lock: Any = FileLock(f"{path}.lock", poll_interval=0.002, preserve_lock_file=True)
    with lock:
        content = path.read_bytes() if path.exists() else b""
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)
            say(f"{path}: cut off an incomplete last line of {len(content) - whole} bytes")
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
