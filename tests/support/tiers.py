"""Limits of the first tier, `make test`: what each of its tests may start and train.

A test that needs more has the mark `extended`, and `make test-all` runs it. No duration is measured here.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import commands
import pytest

from labrl.session.session import Session

FRAMES = 300
"""Maximum number of frames that a session trains."""

UNITS = 8
"""Maximum width of the hidden layers of networks that a session trains."""

MARKS = ("extended", "slow", "matrix")
"""Marks of tests outside the first tier."""

TOOLS = ("git", "nvidia-smi", "uname", "fc-list")
"""Programs that tests of the first tier may start. Matplotlib starts `fc-list` once on a new machine."""

_excesses: list[str] = []
"""Descriptions of what exceeded the limits since the end of the previous test."""


def _width(session: Session) -> int:
    """Return the number of units of the widest layer between two others, convolutions aside."""
    weights = [weight for module in session.agent.modules().values() for weight in module.parameters()]
    return max((min(weight.shape) for weight in weights if weight.dim() == 2), default=0)


def _counted(run: Callable[[Session], None]) -> Callable[[Session], None]:
    @functools.wraps(run)
    def run_counted(session: Session) -> None:
        before = session.clock.frame
        try:
            run(session)
        finally:
            frames, width = session.clock.frame - before, _width(session)
            if frames > FRAMES:
                _excesses.append(f"trains for {frames} frames (at most {FRAMES})")
            if width > UNITS:
                _excesses.append(f"trains a network with {width} hidden units (at most {UNITS})")

    return run_counted


def _noted(start: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Return the function `start`, which notes the program that is its argument number `place`."""

    @functools.wraps(start)
    def start_noted(*arguments: Any, **options: Any) -> Any:
        program = arguments[place] if len(arguments) > place else options["args"]
        name = os.fspath(program if isinstance(program, str | os.PathLike) else program[0])
        if os.path.basename(name) not in TOOLS:
            _excesses.append(f"starts the program {name}")
        return start(*arguments, **options)

    return start_noted


Session.run = _counted(Session.run)  # type: ignore[method-assign]
commands.start_module = _noted(commands.start_module, 0)
subprocess.Popen.__init__ = _noted(subprocess.Popen.__init__, 1)  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def _stays_small(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test of the first tier that starts a program or trains beyond the limits."""
    yield
    found = sorted(set(_excesses))
    _excesses.clear()
    if found and not any(mark in request.keywords for mark in MARKS):
        pytest.fail(f"mark this test `extended`, or make it smaller: it {', it '.join(found)}", pytrace=False)
