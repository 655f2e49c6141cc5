"""`python -m labrl.dashboards`: send sessions to Weights & Biases while other processes train them.

`labrl.dashboards.sender` starts this process and writes to its standard input: first a line of JSON with what
to send, then a line `end` when the trial is over. The process exits at once if its parent has ended.
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
from labrl.processes.secrets import RedactingFormatter
from labrl.run.run import Run

POLL_SECONDS = 1.0

_log = logging.getLogger(__name__)


def main() -> None:
    """Follow the sessions until the trial ends, then finish their W&B runs."""
    for ours in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(ours, signal.SIG_IGN)  # the trial receives the signal too, and reports its end
    logging.basicConfig(level=logging.INFO)
    logging.getLogger().handlers[0].setFormatter(RedactingFormatter("%(asctime)s %(message)s"))
    orders = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 (unbuffered, for select)
    asked = json.loads(orders.readline() or b"null")
    if asked is None:
        return
    threading.Thread(target=_leave_with, args=(asked["parent"],), daemon=True).start()
    run = Run.open(asked["folder"])
    sessions = [WandbSession(run, index, asked["mode"], asked["options"]) for index in asked["sessions"]]
    _start(sessions)
    patience = 0.0  # rows may have arrived while the sessions started
    while not select.select([orders], [], [], patience)[0]:
        for session in sessions:
            _try(session, session.update)
        patience = POLL_SECONDS
    if orders.readline().strip() != b"end":
        os._exit(1)
    report: Path | None = run.path / "report.html"
    for session in sessions:
        shown = report if report and report.exists() and session.wants("report") else None
        _try(session, partial(session.finish, shown))
        report = None if shown else report  # only once for the trial


def _start(sessions: Sequence[WandbSession]) -> None:
    """Start all sessions. If the first one cannot reach W&B, all are kept offline, so that the process waits
    only once."""
    first, *others = sessions
    if first.mode == "online":
        try:
            first.start()
        except Exception as error:
            _log.exception("session %d", first.folder.index)
            import wandb

            wandb.teardown()  # otherwise the id stays in use
            for session in sessions:
                session.go_offline(error)
        else:
            sessions = others
    for session in sessions:
        _try(session, session.start)


def _try(session: WandbSession, action: Callable[[], Any]) -> None:
    """Call `action` unless the W&B run of the session has ended. An error of W&B is reported once, and ends
    only this W&B run."""
    if session.ended:
        return
    try:
        action()
    except Exception as error:
        _log.exception("session %d", session.folder.index)
        session.fail(error)


def _leave_with(parent: int) -> None:
    """Exit once the process `parent`, which runs the trial, has ended. The W&B runs are left to the process
    that resumes them."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
