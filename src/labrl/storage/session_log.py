"""The log of a session, with its warnings and errors."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labrl.secrets import RedactingFormatter, redact


@contextmanager
def warnings_logged(log: Path, aloud: bool = False) -> Iterator[None]:
    """Also write labrl's warnings to the file `log` in this context.

    aloud: whether to print them too if no log handler is configured. NumPy's warnings about labrl's own
    arithmetic are left out, because labrl reports values that are not finite itself.
    """
    logger = logging.getLogger("labrl")
    handlers: list[logging.Handler] = [logging.FileHandler(log, delay=True, encoding="utf-8")]
    handlers[0].setFormatter(RedactingFormatter("%(asctime)s %(name)s: %(message)s"))
    if aloud and not logger.hasHandlers():  # otherwise the file above would be the only handler
        handlers.append(logging.StreamHandler())
        handlers[1].setFormatter(RedactingFormatter())
    for handler in handlers:
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


def print_without_modules() -> None:
    """Make the root logger's handlers print the library that warns, without labrl's module names."""
    for handler in logging.getLogger().handlers:
        if type(handler) is logging.StreamHandler:
            handler.setFormatter(_TerminalFormatter())


class _TerminalFormatter(RedactingFormatter):
    def format(self, record: logging.LogRecord) -> str:
        name = "labrl" if record.name.startswith("labrl.") else record.name
        return f"{name}: {super().format(record)}"


def append(log: Path, text: str) -> None:
    """Append `text` as separate lines to the file `log`, without secrets. Write errors are ignored."""
    with suppress(OSError), open(log, "a", encoding="utf-8") as file:
        file.write(redact(text).rstrip() + "\n")
