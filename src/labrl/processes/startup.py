"""Settings that a process of a run makes before it imports anything slow."""

from __future__ import annotations

import contextlib
import gc
import getpass
import os
import tempfile

from labrl.errors import InputError


def let_threads_sleep() -> None:
    """Make OpenMP threads sleep sooner while they wait. Must be called before torch is imported.

    By default, a waiting thread first spins 300,000 times. If other processes are busy, this occupies a core
    that the awaited thread could use. Beside a process that takes one of two cores, CrossQ runs at 114 frames
    per second with 500 spins, at 28 with 10,000, and at 67 on one thread. A user's setting of OMP_WAIT_POLICY
    or GOMP_SPINCOUNT takes precedence.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "500")


SELDOM = 500_000
"""Number of new objects after which the garbage collector runs while a process starts."""

_usual = gc.get_threshold()


def collect_seldom() -> None:
    """Run the garbage collector rarely while a process starts.

    Imports create 400,000 objects, none of which can be freed. Visiting them repeatedly takes 0.3 of the 3
    seconds that a start takes.
    """
    gc.set_threshold(SELDOM)


def collect_as_usual() -> None:
    """Run the garbage collector as often as before `collect_seldom`, after a process has started."""
    if gc.get_threshold()[0] == SELDOM:
        gc.set_threshold(*_usual)


def name_user_and_home() -> None:
    """Set USER and HOME if the system has no entry for the user.

    In containers, a user may have no entry in /etc/passwd. Matplotlib, wandb and torch fail without these
    variables.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["USER"] = str(os.getuid())
    if os.path.expanduser("~") == "~":
        with contextlib.suppress(OSError):  # there may be no folder for temporary files either
            home = os.path.join(tempfile.gettempdir(), f"labrl-{os.getuid()}")
            os.makedirs(home, mode=0o700, exist_ok=True)
            os.environ["HOME"] = home


def check_here() -> None:
    """Raise InputError if the working directory has been deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        message = "the working directory has been deleted. Change to an existing directory"
        raise InputError(message, code="usage") from None
