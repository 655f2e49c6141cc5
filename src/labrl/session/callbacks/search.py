"""Report a session's evaluations to its search, which may stop it."""

from __future__ import annotations

import logging
import os
from multiprocessing.connection import Client

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
    After a search that does not answer, the session continues without it. This callback has no state: a trial
    that is resumed by hand runs without it.
    """

    frequencies = ()

    def __init__(self, where: str) -> None:
        """where: result of `channel`."""
        trial, key, address = where.split(" ", 2)
        host, _, port = address.rpartition(":")
        self._place = (host, int(port)) if host and not os.path.isabs(address) else address
        self._trial, self._key = int(trial), bytes.fromhex(key)
        self._lost = False

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Ask the search whether to continue, after an evaluation."""
        if table != "eval" or self._lost:
            return
        try:
            with Client(self._place, authkey=self._key) as search:
                search.send(self._trial)
                while not search.poll(PATIENCE):
                    if session.stopping():  # a resume reports the same row again
                        return
                self.gives_up = bool(search.recv())
        except (OSError, EOFError) as error:
            _log.warning("the search does not answer (%s): this session is not pruned", error)
            self._lost = True


def search_callbacks() -> list[Callback]:
    """Return a `ReportToSearch` if this process belongs to a trial of a search, else nothing."""
    where = os.environ.get(CHANNEL)
    return [ReportToSearch(where)] if where else []
