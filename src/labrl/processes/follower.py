"""Processes that read a run folder, for example to send the run to a dashboard."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


class Follower:
    """A process that reads a run or an experiment on disk. Lines on its standard input tell it what to do.

    Ctrl-C at the terminal does not reach the process, but only the command, which waits for the process.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        output: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start `python -m module arguments`. Raises OSError.

        output: file to which the process's output is appended, None if `finish` returns the output;
        variables: environment variables in addition to those of the current process.
        """
        package = str(Path(__file__).parents[2])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        with contextlib.ExitStack() as closing:
            written = subprocess.PIPE if output is None else closing.enter_context(output.open("ab"))
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=written,
                stderr=written,
                text=True,
                start_new_session=True,
                env={**os.environ, **(variables or {}), "PYTHONPATH": os.pathsep.join(paths)},
            )

    def tell(self, line: str) -> None:
        """Write a line to the standard input of the process, unless it has ended."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def finish(self, seconds: float | None = None) -> tuple[int, str, str]:
        """Close the process's standard input, wait for its end, and return its exit code, output and errors.

        Raises TimeoutError if the process is still running after `seconds`.
        """
        try:
            output, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        return self._process.returncode, output, errors

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        self._process.kill()
        self._process.wait()
