"""Signals that ask a run to stop: it finishes the step it is in, saves, and leaves."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from labrl.processes import SIGNALS, exit_code_of, leave_at_once


class Interruption:
    """While entered, it records the first signal for the loop; a second Ctrl-C exits at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        """The first signal that asked for the stop, or None."""
        self.pruned = False
        """Whether a search has ended the run."""
        self.requested = False
        """Whether the run is to stop after the present step."""
        self._before: dict[int, Any] = {}

    def end(self, pruned: bool = False) -> None:
        """Stop after the present step because a search or a limit ends the run.

        pruned: by a search, which has better use for the time.
        """
        self.pruned, self.requested = self.pruned or pruned, True

    def stop(self, number: int) -> None:
        """Stop as if signal `number` had come, where none has."""
        self.signal = self.signal or number
        self.requested = True

    @property
    def exit_code(self) -> int:
        """Exit code that shells expect after this signal: 130 for Ctrl-C, 143 otherwise."""
        return exit_code_of(self.signal)

    def __enter__(self) -> Interruption:
        # Python lets only the main thread set handlers; in a notebook's worker Ctrl-C stays as it was.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # `nohup` has the terminal's end ignored, and so it stays.
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
