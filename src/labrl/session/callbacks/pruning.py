"""How a search prunes a session: after each evaluation, the session waits for the answer to `should_prune`.

The session has written a row to its evaluation table. The process of the search finds it there, asks the
pruner, and writes the answer to a file in the session's folder, so that this works on any machine that shares
the folder. Training waits for the answer, so that the result of a search does not depend on how busy the
machine is.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from labrl.run.atomic import write_atomic
from labrl.run.lock import FolderLock
from labrl.run.session import RunSession
from labrl.session.callbacks.callback import Callback, Row, SessionView, Table

SEARCH = "LABRL_SEARCH"
"""Name of the environment variable with the folder of the search to which a trial belongs."""

ANSWER = "search.json"
"""File of a session with the search's answer to its last evaluation."""

PATIENCE = 120.0
"""Seconds without an answer after which the session checks whether the search is still running."""

_log = logging.getLogger(__name__)


class Answers:
    """The search's side: answers sessions that have evaluated."""

    def __init__(self) -> None:
        self._sizes: dict[Path, int] = {}
        """Size of the evaluation table of each session at its last answer."""

    def give(self, session: Path, should_prune: Callable[[], bool]) -> None:
        """Write the answer to `session`, the folder of a session, if it has evaluated since the last one."""
        folder = RunSession(session)
        size = folder.eval_csv.stat().st_size if folder.eval_csv.exists() else 0
        if size == self._sizes.get(session, 0):
            return
        if rows := folder.read_rows("eval"):
            write_answer(session, int(rows[-1]["frame"]), should_prune())
        self._sizes[session] = size


def write_answer(session: Path, frame: int, should_prune: bool) -> None:
    """Write whether a session must stop at its evaluation at `frame`."""
    answer = {"frame": frame, "should_prune": should_prune}
    write_atomic(session / ANSWER, json.dumps(answer), durable=False)


class ReportToSearch(Callback):
    """The session's side: waits for the answer to each evaluation, and ends the session if it is pruned.

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
        until = time.monotonic() + PATIENCE
        while (answer := self._should_prune(session.folder.path, int(row["frame"]))) is None:
            if session.stopping():  # a resume reports the same row again
                return
            if time.monotonic() > until:
                until += PATIENCE
                if FolderLock(self._home).holder() is None:
                    _log.warning("the search in %s has ended, so this session is not pruned", self._home)
                    self._lost = True
                    return
            time.sleep(0.01)
        self.gives_up = answer

    def _should_prune(self, folder: Path, frame: int) -> bool | None:
        """Return the answer to the evaluation at `frame`; None if there is none yet."""
        try:
            answer = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return bool(answer["should_prune"]) if answer["frame"] >= frame else None
