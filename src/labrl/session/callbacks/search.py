"""Report a session's evaluations to its search, which may stop it."""

from __future__ import annotations

import logging
import os
from multiprocessing.connection import Client, Connection

from labrl.session.callbacks.callback import Callback, Row, SessionView, Table

CHANNEL = "LABRL_SEARCH_CHANNEL"
"""Name of the environment variable with the result of `channel`."""

PATIENCE = 0.5
"""Seconds between two checks of whether the session must stop, while the search has not answered."""

_log = logging.getLogger(__name__)


def channel(address: str, key: bytes, trial: int) -> str:
    """Return the value of the variable CHANNEL for the sessions of trial number `trial`.

    address: path of a socket, or `<host>:<port>`, at which the search listens.
    """
    return f"{trial} {key.hex()} {address}"


class ReportToSearch(Callback):
    """Report each evaluation row to the search, and end the session if the search prunes it.

    Training waits for the answer, so that the result of a search does not depend on how busy the machine is.
    This callback has no state: a trial that is resumed by hand runs without it.
    """

    frequencies = ()

    def __init__(self, where: str) -> None:
        """where: result of `channel`."""
        self._where = where
        self._search: Connection | None = None

    def start(self, session: SessionView) -> None:
        """Connect to the search. If it does not answer, the session continues without it."""
        trial, key, address = self._where.split(" ", 2)
        host, _, port = address.rpartition(":")
        place = (host, int(port)) if host and not os.path.isabs(address) else address
        try:
            self._search = Client(place, authkey=bytes.fromhex(key))
            self._search.send(int(trial))
        except (OSError, EOFError) as error:
            self._lose(error)

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Ask the search whether to continue, after an evaluation."""
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
    """Return a `ReportToSearch` if this process belongs to a trial of a search, else nothing."""
    where = os.environ.get(CHANNEL)
    return [ReportToSearch(where)] if where else []
