"""The log of a session, which contains its warnings and errors."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labrl.processes.secrets import RedactingFormatter, redact
from labrl.run.write_errors import WriteErrors, write_all


@contextmanager
def warnings_logged(log: Path, aloud: bool = False, errors: WriteErrors | None = None) -> Iterator[None]:
    """Context manager: also write labrl's warnings to the file `log`.

    aloud: whether the warnings are also printed if no log handler is configured; errors: object that records
    the file if warnings are still unwritten at the end of the context. NumPy's warnings about arithmetic in
    labrl are left out, because labrl itself reports values that are not finite.
    """
    logger = logging.getLogger("labrl")
    loud = logger.hasHandlers()
    handlers: list[logging.Handler] = [_LogFile(log, errors or WriteErrors(), aloud or loud)]
    if aloud and not loud:  # otherwise the file above would be the only handler
        handlers.append(logging.StreamHandler())
    for handler, form in zip(handlers, ("%(asctime)s %(name)s: %(message)s", None), strict=False):
        handler.setFormatter(RedactingFormatter(form))
        handler.setLevel(logging.WARNING)
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            # Warnings of other modules, such as a user's environment, still appear.
            message = "(overflow|invalid value) encountered"
            warnings.filterwarnings("ignore", message, RuntimeWarning, module=r"(labrl|numpy)\.")
            yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


class _LogFile(logging.Handler):
    """Log handler that appends messages to a file. Messages that cannot be written are kept, and written
    before the next message."""

    def __init__(self, path: Path, errors: WriteErrors, printed: bool) -> None:
        """printed: whether another handler prints the messages. If not, this handler prints messages that it
        cannot write."""
        super().__init__()
        self._path, self._errors, self._printed = path, errors, printed
        self._pending = bytearray()

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record) + "\n"
        self._pending += line.encode("utf-8", "replace")
        if self._write() is not None and not self._printed:
            with suppress(OSError, ValueError):
                sys.stderr.write(line)

    def close(self) -> None:
        if self._pending and (error := self._write()) is not None:
            self._errors.failed(self._path, error)
        super().close()

    def _write(self) -> OSError | None:
        try:
            write_all(self._path, self._pending)
        except OSError as error:
            return error
        return None


def print_warnings() -> None:
    """Print warnings on the terminal, those of labrl with `labrl` in place of the name of the module."""
    handler = logging.StreamHandler()
    handler.setFormatter(_TerminalFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


class _TerminalFormatter(RedactingFormatter):
    def format(self, record: logging.LogRecord) -> str:
        name = "labrl" if record.name.startswith("labrl.") else record.name
        return f"{name}: {super().format(record)}"


def append(log: Path, text: str) -> None:
    """Append `text` to the file `log` on lines of its own, without secrets. Errors of writing are ignored."""
    with suppress(OSError), open(log, "a", encoding="utf-8") as file:
        file.write(redact(text).rstrip() + "\n")
