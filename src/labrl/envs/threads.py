"""Scheduling of a vector environment's threads and of the thread that sends them actions."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def patient_threads() -> Iterator[None]:
    """Make threads started in this context not preempt the thread that wakes them (on Linux only).

    Otherwise the first thread that is woken takes the core from the thread that should wake the others, and
    does all the work alone.
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
    """Return whether this thread has the default scheduling policy and may change it."""
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
    """Return whether `num_threads` equals the number of cores and this process may use all of them."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else 0
    return num_threads == allowed == os.cpu_count()
