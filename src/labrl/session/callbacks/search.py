"""Wait after each evaluation for the answer of the search, which may stop the session.

The pruner of the search (`labrl.experiment.search.pruners`) decides in the process of the search.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

from labrl.run.atomic import write_atomic
from labrl.run.lock import FolderLock
from labrl.session.callbacks.callback import Callback, Row, SessionView, Table

SEARCH = "LABRL_SEARCH"
"""Name of the environment variable with the folder of the search to which a trial belongs."""

ANSWER = "search.json"
"""File of a session with the search's answer to its last evaluation."""

PATIENCE = 120.0
"""Seconds without an answer after which the session checks whether the search is still running."""

_WAITS = (0.005, 0.1)
"""Shortest and longest time between two checks for an answer, in seconds."""

_log = logging.getLogger(__name__)


def write_answer(session: Path, frame: int, stop: bool) -> None:
    """Write the search's answer to a session's evaluation at `frame`: whether the session must stop."""
    write_atomic(session / ANSWER, json.dumps({"frame": frame, "stop": stop}), durable=False)


class ReportToSearch(Callback):
    """Wait after each evaluation row until the search has read it, and end the session if it is pruned.

    Training waits for the answer, so that the result of a search does not depend on how busy the machine is.
    This callback has no state: a trial that is resumed by hand runs without it.
    """

    frequencies = ()

    def __init__(self, home: str) -> None:
        """home: folder of the search."""
        self._home = Path(home)
        self._lost = False

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Wait for the answer to an evaluation, whose row is already in the run folder."""
        if table != "eval" or self._lost:
            return
        folder, frame = session.folder.path, int(row["frame"])
        pause, until = _WAITS[0], time.monotonic() + PATIENCE
        while (stop := self._answer(folder, frame)) is None:
            if session.stopping():  # a resume reports the same row again
                return
            if time.monotonic() > until:
                if FolderLock(self._home).holder() is None:
                    _log.warning("the search in %s has ended, so this session is not pruned", self._home)
                    self._lost = True
                    return
                until += PATIENCE
            time.sleep(pause)
            pause = min(2 * pause, _WAITS[1])
        self.gives_up = stop

    def _answer(self, folder: Path, frame: int) -> bool | None:
        """Return whether to stop at a frame; None if the search has not answered yet."""
        try:
            told = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return bool(told["stop"]) if told["frame"] >= frame else None
