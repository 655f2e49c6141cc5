"""Sharing of cores between the threads of a vector environment and the thread that sends them actions."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def patient_threads() -> Iterator[None]:
    """Threads started in this context do not interrupt the one that wakes them (Linux; elsewhere nothing).

    Otherwise the first that is woken takes the core of the thread that is about to wake the others, and does
    all the work alone while they sleep.
    """
    if not _is_ordinary():
        yield
        return
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # threads inherit it
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _is_ordinary() -> bool:
    """Return whether this thread is scheduled as threads are by default, and may change that."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return False
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except OSError:  # a sandbox that does not allow it
        return False
    return True


def have_all_cores(num_threads: int) -> bool:
    """Return whether there is a thread for each core of the machine, and this process may use them all."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else 0
    return num_threads == allowed == os.cpu_count()
