"""`python -m labrl.dashboards`: shows sessions on Weights & Biases while others train them.

`labrl.dashboards.mirror` starts it and writes to its standard input: a line of JSON says what to show, a line
`end` that the trial is over. Where its parent is gone it leaves at once.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
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
    orders = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 (unbuffered, for select)
    asked = json.loads(orders.readline() or b"null")
    if asked is None:
        return
    threading.Thread(target=_leave_with, args=(asked["parent"],), daemon=True).start()
    run = RunFolder.open(asked["folder"], rebuilt=True)
    sessions = [WandbSession(run, index, asked["mode"], asked["options"]) for index in asked["sessions"]]
    _start(sessions)
    while not select.select([orders], [], [], POLL_SECONDS)[0]:
        for session in sessions:
            _try(session, session.update)
    if orders.readline().strip() != b"end":
        os._exit(1)
    report: Path | None = run.path / "report.html"
    for session in sessions:
        shown = report if report and report.exists() and session.wants("report") else None
        _try(session, partial(session.finish, shown))
        report = None if shown else report  # once for the trial


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


def _try(session: WandbSession, action: Callable[[], Any]) -> None:
    """Do it unless its run has ended; an error of W&B is reported once and ends that run, nothing else."""
    if session.ended:
        return
    try:
        action()
    except Exception as error:
        _log.exception("session %d", session.folder.index)
        session.fail(error)


def _leave_with(parent: int) -> None:
    """End this process with a killed trial, and leave its runs to the process that resumes them."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
