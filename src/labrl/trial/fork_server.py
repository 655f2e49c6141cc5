"""The process from which the sessions of a trial are forked."""

from __future__ import annotations

import multiprocessing
import pkgutil
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any

from labrl.config.keys import walk
from labrl.processes import start_fork_server
from labrl.session import callbacks

_SESSION = (
    "labrl.trial.worker",
    *(f"{callbacks.__name__}.{one.name}" for one in pkgutil.iter_modules(callbacks.__path__)),
)
"""Modules that every session imports."""

_runs = False
"""Whether the server of this process was started."""


def start_session_server(plain: Mapping[str, Any]) -> None:
    """Start a process that imports what the sessions of `plain` need, while this one checks the
    configuration.

    They are forked from it then: each would otherwise import PyTorch by itself, which takes a core seconds.
    It imports modules of labrl alone, none of a user's own. A trial of one session needs none.
    """
    global _runs
    if plain["meta"]["max_session"] > 1 and not _runs:
        targets = [str(value) for key, value in walk(plain) if key.endswith("_target_")]
        modules = {target.rpartition(".")[0] for target in targets if target.startswith("labrl.")}
        _runs = start_fork_server([*_SESSION, *sorted(modules)])


def session_context() -> ForkServerContext | SpawnContext:
    """Return the way in which the processes of sessions start."""
    return multiprocessing.get_context("forkserver") if _runs else multiprocessing.get_context("spawn")
