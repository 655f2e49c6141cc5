"""Standard streams that survive closed pipes and full disks, and messages about progress and errors."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from labrl.errors import FAILED, LabrlError, answer_to
from labrl.processes.secrets import redact

INDENT = "  "
"""Text before each line of a traceback in the log of a trial. The panel leaves out indented lines."""

_doing = False
"""Whether the last line on the terminal was written by `doing`."""


def doing(what: str, early: bool = False) -> None:
    """Show what the program is doing on the terminal, in a line that the next output replaces.

    This has an effect only within `steady_output`, which replaces the line. early: whether the call comes
    just before entering `steady_output`.
    """
    global _doing
    _clear()
    with contextlib.suppress(OSError, ValueError):
        replaced = early or isinstance(sys.stderr, SteadyStream)
        dumb = os.environ.get("TERM") == "dumb"  # it cannot erase the line
        if replaced and not dumb and sys.__stderr__ is not None and sys.__stderr__.isatty():
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
    """A stream that masks secrets, stops writing after its first error, and keeps the error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.refusal: OSError | None = None
        """The first error of writing; None if there was none, or if the reader has closed the pipe."""

    def write(self, text: str) -> int:
        """Write `text`, or do nothing after an error. Returns the number of characters of `text`."""
        _clear()
        try:
            self._stream.write(redact(text))
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
        # At exit, the interpreter flushes the stream's buffer once more.
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def steady_output() -> Iterator[SteadyStream]:
    """Replace the standard streams by `SteadyStream`s, and yield standard output.

    In a locale without UTF-8, characters that cannot be printed become question marks.
    """
    before = sys.stdout, sys.stderr
    with contextlib.ExitStack() as opened:
        # A stream is None if the process was started with a closed descriptor.
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


def full_error() -> bool:
    """Return whether tracebacks are requested."""
    return os.environ.get("HYDRA_FULL_ERROR") == "1"


def print_error(error: LabrlError, with_traceback: bool = False) -> int:
    """Print the message of an error, after its traceback if requested. Return the exit code."""
    if with_traceback:
        print_traceback(error)
    print("\n".join(f"labrl: {line}" for line in redact(str(error)).splitlines()), file=sys.stderr)
    return error.exit_code


def print_traceback(error: Exception, indent: str = "") -> None:
    """Print the traceback of an error without secrets. indent: text before each line."""
    text = redact("".join(traceback.format_exception(error)))
    print(textwrap.indent(text, indent), end="", file=sys.stderr)


def print_failure(error: Exception, with_traceback: bool = False) -> int:
    """Print the error that ends a command, in one line or, if the mistake is in labrl, as a traceback.

    Return the exit code.
    """
    if (answer := answer_to(error)) is not None:
        if with_traceback and answer is not error:
            print_traceback(error)
        return print_error(answer, with_traceback and answer is error)
    print_traceback(error)
    print("labrl: this is a mistake in labrl. Please report it with the traceback above", file=sys.stderr)
    return FAILED


@contextlib.contextmanager
def printing_to(path: Path | None) -> Iterator[None]:
    """Context manager: append the output of this process and its children to a file; None: do nothing.

    Python's standard streams are also redirected to the file, because a panel may have replaced them.
    """
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(1), os.dup(2)]
    with open(path, "ab") as appended:
        os.dup2(appended.fileno(), 1)
        os.dup2(appended.fileno(), 2)
    lines = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", "replace", write_through=True)
    try:
        with contextlib.redirect_stdout(lines), contextlib.redirect_stderr(lines):
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(before, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)


@contextlib.contextmanager
def labeled_output(label: str) -> Iterator[None]:
    """Context manager: begin each line of the output with a label."""
    output, errors = LabeledLines(sys.stdout, label), LabeledLines(sys.stderr, label)
    with output, errors, contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        yield


class LabeledLines(io.TextIOBase):
    """A stream that writes complete lines, each with the label of its trial, and is not a terminal."""

    def __init__(self, stream: TextIO, label: str = "") -> None:
        self._stream, self._label = stream, label
        self._begun = ""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Write the complete lines in `text`, and keep the rest. Return the number of characters."""
        *lines, self._begun = (self._begun + text).split("\n")
        labeled = (redact(f"{self._label}{line}") if line.strip() else "" for line in lines)
        with contextlib.suppress(OSError, ValueError):  # A closed output must not end training.
            self._stream.write("".join(f"{line}\n" for line in labeled))
            self._stream.flush()
        return len(text)

    def close(self) -> None:
        """Close the stream after writing an incomplete line, if there is one."""
        if self._begun:
            self.write("\n")
        super().close()
