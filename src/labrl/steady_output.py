"""Standard output and error that end no command: who reads them may go away, and their disk may fill up."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


class SteadyStream:
    """A stream that falls silent where it is refused what is written, and remembers that it was."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.refusal: OSError | None = None
        """What the system said; None while all goes well, and where a reader has simply read enough."""

    def write(self, text: str) -> int:
        """Write, or do nothing. Returns the number of characters."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._fall_silent(error)
            return len(text)

    def flush(self) -> None:
        """Pass on what waits, or nothing."""
        try:
            self._stream.flush()
        except OSError as error:
            self._fall_silent(error)

    def __getattr__(self, name: str) -> Any:
        """All else is the stream's own."""
        return getattr(self._stream, name)

    def _fall_silent(self, error: OSError) -> None:
        if error.errno != errno.EPIPE:
            self.refusal = error
        # The interpreter flushes once more at its end what the stream still keeps.
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def steady_output() -> Iterator[SteadyStream]:
    """Make the process's output steady; yields standard output.

    In a locale without UTF-8 a sign that cannot be printed is a question mark, not the end.
    """
    before = sys.stdout, sys.stderr
    with contextlib.ExitStack() as opened:
        # None where the process was started with the descriptor closed.
        streams = [
            stream or opened.enter_context(open(os.devnull, "w", encoding="utf-8")) for stream in before
        ]
        for stream in streams:
            if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
                stream.reconfigure(errors="replace")
        output, errors = (SteadyStream(stream) for stream in streams)
        sys.stdout, sys.stderr = cast(TextIO, output), cast(TextIO, errors)
        try:
            yield output
        finally:
            output.flush()
            errors.flush()
            sys.stdout, sys.stderr = before
