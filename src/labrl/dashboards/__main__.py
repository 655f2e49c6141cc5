"""`python -m labrl.dashboards`: shows the sessions of a run on Weights & Biases while others train them.

`labrl.dashboards.mirror` starts it and speaks to it through its standard input: a line of JSON says what
to show, a line `end` that the trial is over. Where its parent is gone it leaves at once.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from labrl.dashboards.wandb_session import WandbSession
from labrl.storage.run_folder import RunFolder

POLL_SECONDS = 1.0

_log = logging.getLogger(__name__)


def main() -> None:
    """Follow the sessions until the trial ends, then finish their runs."""
    for ours in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(ours, signal.SIG_IGN)  # the trial, which got it too, says when it is over
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    asked = json.loads(sys.stdin.readline() or "null")
    if asked is None:
        return
    _leave_with(asked["parent"])
    over = threading.Event()
    threading.Thread(target=_listen, args=(over,), name="listen", daemon=True).start()
    run = RunFolder.open(asked["folder"])
    sessions = [WandbSession(run, index, asked["mode"], asked["options"]) for index in asked["sessions"]]
    _start(sessions)
    while not over.wait(POLL_SECONDS):
        for session in _alive(sessions):
            _try(session, session.finish if session.complete else session.update)
    _finish(run, _alive(sessions))


def _start(sessions: Sequence[WandbSession]) -> None:
    """Start all; if the first one does not reach W&B, all are kept offline, after one wait for it."""
    import wandb  # takes seconds; until then signals have been dealt with

    first, *others = sessions
    if first.mode == "online":
        try:
            first.start()
        except Exception as error:
            _log.exception("session %d", first.folder.index)
            wandb.teardown()  # else the id stays in use
            for session in sessions:
                session.go_offline(error)
        else:
            sessions = others
    for session in sessions:
        _try(session, session.start)


def _finish(run: RunFolder, sessions: Sequence[WandbSession]) -> None:
    """Finish all that are left, side by side, because each may wait for its uploads."""
    report = run.path / "report.html"
    shown = next((one for one in sessions if one.wants("report") and report.exists()), None)

    def finish(session: WandbSession) -> None:
        _try(session, lambda: session.finish(report if session is shown else None))

    with ThreadPoolExecutor(len(sessions) or 1) as threads:
        list(threads.map(finish, sessions))


def _alive(sessions: Sequence[WandbSession]) -> list[WandbSession]:
    return [session for session in sessions if not session.ended]


def _try(session: WandbSession, action: Callable[[], Any]) -> None:
    """Do it; what goes wrong with W&B is told once and ends this run of theirs, nothing else."""
    try:
        action()
    except Exception as error:
        _log.exception("session %d", session.folder.index)
        session.fail(error)


def _listen(over: threading.Event) -> None:
    """Until the trial says that it is over, or says nothing more because it is gone."""
    for line in sys.stdin:
        if line.strip() == "end":
            over.set()
            return
    os._exit(1)


def _leave_with(parent: int) -> None:
    """A killed trial leaves its runs as they are, for the process that resumes them."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


if __name__ == "__main__":
    main()
