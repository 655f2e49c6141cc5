"""Signals that ask a run to stop. The run finishes its current step, saves, and exits."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from labrl.processes import SIGNALS, exit_code_of, leave_at_once


class Interruption:
    """Context manager that records the first signal for the loop, and exits at once on a second Ctrl-C."""

    def __init__(self) -> None:
        self.signal: int | None = None
        """The first signal received, or None."""
        self.pruned = False
        """Whether a search has ended the run."""
        self.requested = False
        """Whether the run must stop after the current step."""
        self._before: dict[int, Any] = {}

    def end(self, pruned: bool = False) -> None:
        """Request a stop after the current step, because a search or a limit ends the run.

        pruned: whether a search has pruned the run.
        """
        self.pruned, self.requested = self.pruned or pruned, True

    def stop(self, number: int) -> None:
        """Request a stop as if signal `number` had been received, unless one was received before."""
        self.signal = self.signal or number
        self.requested = True

    @property
    def exit_code(self) -> int:
        """Exit code that shells expect after this signal: 130 for Ctrl-C, 143 otherwise."""
        return exit_code_of(self.signal)

    def __enter__(self) -> Interruption:
        # Only the main thread can set handlers; in a notebook's worker thread they stay unchanged.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # Under `nohup`, SIGHUP is ignored and must stay ignored.
                if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGINT:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            leave_at_once(number)
        self.stop(number)
