"""Standard streams that survive closed pipes and full disks, and messages about progress and errors."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from labrl.errors import FAILED, LabrlError, answer_to
from labrl.processes.secrets import redact

INDENT = "  "
"""Text before each line of a traceback in the log of a trial. The panel leaves out indented lines."""


def doing(what: str) -> None:
    """Print on a terminal what the program is doing."""
    if sys.stderr is not None and sys.stderr.isatty():
        with contextlib.suppress(OSError, ValueError):
            print(f"labrl: {what} ...", file=sys.stderr, flush=True)


class SteadyStream:
    """A stream that masks secrets, stops writing after its first error, and keeps the error.

    With a label, it writes complete lines, each after the label, and is not a terminal.
    """

    def __init__(self, stream: TextIO, label: str = "") -> None:
        self._stream, self._label, self._begun = stream, label, ""
        self.refusal: OSError | None = None
        """The first error of writing; None if there was none, or if the reader has closed the pipe."""

    def write(self, text: str) -> int:
        """Write `text`, or do nothing after an error. Returns the number of characters of `text`."""
        lines = text
        if self._label:
            *whole, self._begun = (self._begun + text).split("\n")
            lines = "".join(f"{self._label}{line}\n" if line.strip() else "\n" for line in whole)
        self._steadily(lambda: self._stream.write(redact(lines)))
        if self._label:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Flush the stream, or do nothing after an error."""
        self._steadily(self._stream.flush)

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return not self._label and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the stream."""
        return getattr(self._stream, name)

    def _steadily(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
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
    """Context manager: begin each line of the output with a label, and mask secrets."""
    streams = [SteadyStream(cast(TextIO, stream), label) for stream in (sys.stdout, sys.stderr)]
    output, errors = (cast(TextIO, stream) for stream in streams)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            yield
        finally:
            for stream in streams:
                stream.write("\n" * bool(stream._begun))
