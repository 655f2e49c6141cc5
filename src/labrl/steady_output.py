"""Standard output and error that survive a lost reader and a full disk; the lines on what takes long, and on
what was wrong."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any, TextIO, cast

from labrl.errors import LabrlError

_doing = False
"""Whether the last line of the terminal says what takes a while."""


def doing(what: str, early: bool = False) -> None:
    """Show on a terminal what takes a while, in a line that the next output replaces.

    Nothing is shown outside of `steady_output`, which replaces the line; early: just before it is entered.
    """
    global _doing
    _clear()
    with contextlib.suppress(OSError, ValueError):
        replaced = early or isinstance(sys.stderr, SteadyStream)
        if os.environ.get("TERM") == "dumb":
            return  # it has no way to take the line back
        if replaced and sys.__stderr__ is not None and sys.__stderr__.isatty():
            sys.__stderr__.write(f"labrl: {what} ...")
            sys.__stderr__.flush()
            _doing = True


def _clear() -> None:
    global _doing
    if _doing:
        _doing = False
        with contextlib.suppress(OSError, ValueError):
            assert sys.__stderr__ is not None
            sys.__stderr__.write("\r\x1b[K")
            sys.__stderr__.flush()


class SteadyStream:
    """A stream that writes nothing more after its first error, and remembers the error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.refusal: OSError | None = None
        """The error; None as long as there is none, and where the reader has closed its end."""

    def write(self, text: str) -> int:
        """Write `text`, or do nothing after an error. Returns the number of characters."""
        _clear()
        try:
            return self._stream.write(text)
        except OSError as error:
            self._fall_silent(error)
            return len(text)

    def flush(self) -> None:
        """Flush the stream, or do nothing after an error."""
        try:
            self._stream.flush()
        except OSError as error:
            self._fall_silent(error)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the stream."""
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
    """Replace the standard streams by `SteadyStream`s; yields standard output.

    In a locale without UTF-8, characters that cannot be printed become question marks.
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
            _clear()
            output.flush()
            errors.flush()
            sys.stdout, sys.stderr = before


def refused(error: LabrlError, full_error: bool) -> int:
    """Print what is wrong. Return the exit code."""
    if full_error:
        traceback.print_exception(error)
    print("\n".join(f"labrl: {line}" for line in str(error).splitlines()), file=sys.stderr)
    return error.exit_code
