"""Errors that are shown to the user, and the exit codes of the commands.

The command line prints the message of a `LabrlError` without a traceback. Programs that call labrl, and the
tests, check its class, `code` and `key`, never the sentence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

DONE, FAILED, WRONG_INPUT, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
"""Exit codes: success; a run failed; the input is wrong, so nothing was started; Ctrl-C; SIGTERM."""

Code = Literal[
    "syntax",  # an override or a file cannot be parsed
    "unknown-key",  # no such configuration key or keyword
    "unknown-option",  # no such option of a group, or no such name in a fixed set of names
    "missing",  # a required key is missing
    "type",  # a value of the wrong type
    "range",  # a value of the right type that is not allowed
    "contradiction",  # two keys with incompatible values
    "unsupported",  # the agent, network, memory or environment does not support the request
    "target",  # a `_target_` cannot be imported or made, or is of the wrong kind
    "not-found",  # no such file, folder, run, checkpoint, session or dataset
    "changed-past",  # a resume would contradict the earlier part of the run
    "not-installed",  # a package, extra or program is missing
    "resources",  # not enough memory, disk, cores or GPUs
    "usage",  # a command or function cannot be called in this way or context
    "untrusted",  # a folder that someone else has written names code that is not part of labrl
    "damaged",  # a file of a run is damaged
    "busy",  # another process uses the folder
    "environment",  # an environment failed while it was made or stepped
    "lost-process",  # a process that the run needs has died or hangs
]
"""Kind of error. Each class below lists the kinds that it can have."""


def first_line(error: object) -> str:
    """Return the first line of an error or a text, joined with the next one if it ends with a colon.

    For an exception without text, returns the name of its type.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__ if isinstance(error, BaseException) else ""
    while lines[0].endswith(":") and lines[1:]:
        lines[:2] = [f"{lines[0]} {lines[1]}"]
    return lines[0]


@dataclass(frozen=True)
class Mistake:
    """A single mistake in the input."""

    code: Code
    key: str | None
    """The full configuration key, command-line argument or file that must be changed; None if unknown."""
    message: str


class LabrlError(Exception):
    """Base of the errors that the command line prints as a message, without a traceback."""

    codes: ClassVar[tuple[Code, ...]] = get_args(Code)
    """Possible codes of errors of this class; the first one is the default."""
    exit_code: ClassVar[int] = FAILED
    """Exit code of a command that ends with this error."""

    def __init__(self, message: str, *, code: Code | None = None, key: str | None = None) -> None:
        """message: what is wrong, with the key or file, what is allowed, and what to type; code: None for the
        first of `codes`; key: the full configuration key (`agent.lr`), command-line argument (`+resume`,
        `--by`) or path of the file that must be changed, None if there is no single one.
        """
        super().__init__(message)
        self.code: Code = code or self.codes[0]
        self.key = key
        self.mistakes: tuple[Mistake, ...] = (Mistake(self.code, key, message),)
        """All mistakes; several if several values of a configuration are wrong."""


class InputError(LabrlError):
    """Wrong input: an override, an option, a configuration file, or an impossible request.

    It is raised before anything is started.
    """

    exit_code = WRONG_INPUT

    @classmethod
    def of(cls, mistakes: Iterable[Mistake]) -> InputError:
        """Return one error for several mistakes, with the code and key of the first."""
        found = tuple(mistakes)
        error = cls("\n".join(one.message for one in found), code=found[0].code, key=found[0].key)
        error.mistakes = found
        return error


class DamagedFileError(LabrlError):
    """A file of a run, a study or a dataset is damaged or incomplete. `key` is its path."""

    codes = ("damaged",)
    exit_code = WRONG_INPUT


class BusyFolderError(LabrlError):
    """Another process uses a run folder, an experiment or a study. `key` is its path."""

    codes = ("busy",)
    exit_code = WRONG_INPUT


class EnvironmentFailedError(LabrlError):
    """An environment failed while it was made, reset or stepped, or broke the contract of environments."""

    codes = ("environment",)


class LostProcessError(LabrlError):
    """A process that the run needs has died or no longer answers."""

    codes = ("lost-process",)
