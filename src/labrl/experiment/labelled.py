"""Which trial a line of output comes from, where several write to one terminal."""

from __future__ import annotations

import io
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import TextIO


class LabelledLines(io.TextIOBase):
    """Passes whole lines on, each with a label before it and in one piece. Never a terminal.

    Where they end up in a terminal, lines that are wider are broken between words.
    """

    def __init__(self, stream: TextIO) -> None:
        self.label = ""
        self._stream = stream
        self._begun = ""

    def writable(self) -> bool:
        """It is for nothing else."""
        return True

    def write(self, text: str) -> int:
        """Keep what has no end yet. Returns the number of characters."""
        *lines, self._begun = (self._begun + text).split("\n")
        if lines:
            self._pass_on("".join(f"{self._labelled(line)}\n" if line.strip() else "\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        """A line that has not ended waits for its end, but at the very last."""
        self._pass_on("")

    def close(self) -> None:
        """Pass on what is left."""
        if self._begun:
            self.write("\n")
        super().close()

    def _labelled(self, line: str) -> str:
        whole = f"{self.label}{line}"
        width = shutil.get_terminal_size().columns
        if len(whole) <= width or not self._stream.isatty():
            return whole
        indent = " " * len(self.label)
        return textwrap.fill(
            whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )

    def _pass_on(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads any more, which ends no training


def label_output() -> Callable[[str], None]:
    """Label what this process prints from now on; returns what sets the label."""
    streams = [LabelledLines(sys.stdout), LabelledLines(sys.stderr)]
    sys.stdout, sys.stderr = streams

    def set_label(label: str) -> None:
        for stream in streams:
            stream.label = label

    return set_label
