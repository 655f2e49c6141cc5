"""Signals that ask a run to stop or to save. The run finishes its current step before it does so."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from labrl.processes.signals import SAVE, SIGNALS, exit_code_of, leave_at_once


class Interruption:
    """Context manager that records the first signal for the loop, and ends the process at once on a second
    Ctrl-C.

    The signal SAVE is recorded separately, unless it already has a handler, such as that of a cluster job.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        """wake: called in a signal handler when SAVE arrives."""
        self.signal: int | None = None
        """The first signal received, or None."""
        self.pruned = False
        """Whether a search has ended the run."""
        self.requested = False
        """Whether the run must stop after the current step."""
        self.save_asked = False
        """Whether SAVE has arrived since the last `take_save`."""
        self._wake = wake
        self._before: dict[int, Any] = {}

    def end(self, pruned: bool = False) -> None:
        """Request a stop after the current step, because a search or a limit ends the run.

        pruned: whether a search has pruned the run.
        """
        self.pruned, self.requested = self.pruned or pruned, True

    def stop(self, number: int) -> None:
        """Request a stop as if signal `number` had been received, unless a signal has already been
        received."""
        self.signal = self.signal or number
        self.requested = True

    def take_save(self) -> bool:
        """Return whether SAVE has arrived since the last call."""
        asked, self.save_asked = self.save_asked, False
        return asked

    @property
    def exit_code(self) -> int:
        """Exit code that shells expect after the received signal: 130 for Ctrl-C, 143 otherwise."""
        return exit_code_of(self.signal)

    def __enter__(self) -> Interruption:
        # Only the main thread can set handlers; in a notebook's worker thread they stay unchanged.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # Under `nohup`, SIGHUP is ignored and must stay ignored.
                if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGINT:
                    self._before[number] = signal.signal(number, self._note)
            if signal.getsignal(SAVE) in (signal.SIG_DFL, signal.SIG_IGN):
                self._before[SAVE] = signal.signal(SAVE, self._note_save)
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

    def _note_save(self, number: int, frame: FrameType | None) -> None:
        self.save_asked = True
        self._wake()
