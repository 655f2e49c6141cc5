"""Report a session's evaluations to its search, which may stop it."""

from __future__ import annotations

import logging
import os
from multiprocessing.connection import Client, Connection

from labrl.session.callbacks.callback import Callback, Row, SessionView, Table

CHANNEL = "LABRL_SEARCH_CHANNEL"
"""Environment variable with the address at which a search listens to its trials."""

PATIENCE = 0.5
"""Seconds between two checks whether the session must stop while its search does not answer."""

_log = logging.getLogger(__name__)


def channel(address: str, key: bytes, trial: int) -> str:
    """The content of CHANNEL for the sessions of trial number `trial`.

    address: the path of a socket, or `<host>:<port>`.
    """
    return f"{trial} {key.hex()} {address}"


class ReportToSearch(Callback):
    """Reports each row of evaluation to the search, and ends the session if the search says so.

    Training waits for the answer, so that a search has the same result however busy the machine is.
    Nothing of this belongs to the session's state: a trial that is resumed by hand runs without it.
    """

    frequencies = ()

    def __init__(self, where: str) -> None:
        """where: what `channel` made."""
        self._where = where
        self._search: Connection | None = None

    def start(self, session: SessionView) -> None:
        """Connect; without an answer the session continues alone."""
        trial, key, address = self._where.split(" ", 2)
        host, _, port = address.rpartition(":")
        place = (host, int(port)) if host and not os.path.isabs(address) else address
        try:
            self._search = Client(place, authkey=bytes.fromhex(key))
            self._search.send(int(trial))
        except (OSError, EOFError) as error:
            self._lose(error)

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Ask whether to continue, after an evaluation."""
        if table != "eval" or self._search is None:
            return
        try:
            self._search.send(int(row["frame"]))
            while not self._search.poll(PATIENCE):
                if session.stopping():  # a resume reports the same row again
                    return
            self.gives_up = bool(self._search.recv())
        except (OSError, EOFError) as error:
            self._lose(error)

    def finish(self, session: SessionView) -> None:
        """Close the connection."""
        if self._search is not None:
            self._search.close()

    def _lose(self, error: Exception) -> None:
        _log.warning("the search does not answer (%s): this session is not pruned", error)
        self._search = None


def search_callbacks() -> list[Callback]:
    """Return the callback, if this process belongs to a trial of a search."""
    where = os.environ.get(CHANNEL)
    return [ReportToSearch(where)] if where else []
