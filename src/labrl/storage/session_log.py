"""The log of a session: what went wrong in it and what it warned of."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def warnings_kept(log: Path, aloud: bool = False) -> Iterator[None]:
    """Also write labrl's warnings to the file `log` in this context.

    aloud: that must not keep it from being told where nobody listens otherwise. What numpy remarks of labrl's
    own arithmetic is left out: where a number that is not finite comes of it, labrl says which.
    """
    logger = logging.getLogger("labrl")
    handlers: list[logging.Handler] = [logging.FileHandler(log, delay=True, encoding="utf-8")]
    handlers[0].setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    if aloud and not logger.hasHandlers():  # then the one above would be all
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setLevel(logging.WARNING)
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            # those of other modules, such as somebody's environment, are still told
            remark = "(overflow|invalid value) encountered"
            warnings.filterwarnings("ignore", remark, RuntimeWarning, module=r"(labrl|numpy)\.")
            yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


def print_without_modules() -> None:
    """Let the root logger's handlers name the library that warns, and of labrl no module."""
    for handler in logging.getLogger().handlers:
        if type(handler) is logging.StreamHandler:
            handler.setFormatter(_TerminalFormatter())


class _TerminalFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        name = "labrl" if record.name.startswith("labrl.") else record.name
        return f"{name}: {super().format(record)}"


def append(log: Path, text: str) -> None:
    """Write `text` at the end of the file `log`, as lines of their own, if the disk lets it."""
    with suppress(OSError), open(log, "a", encoding="utf-8") as file:
        file.write(text.rstrip() + "\n")
