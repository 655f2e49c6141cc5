"""Errors that are shown to the user, and the exit codes of the commands.

The command line prints the message of a `LabrlError` without a traceback. A program that calls labrl, and the
tests, look at its class, its `code` and its `key`, never at the sentence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

DONE, FAILED, WRONG_INPUT, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
"""Exit codes: all went well; a run failed; nothing was begun because the input is wrong; Ctrl-C; SIGTERM."""

Code = Literal[
    "syntax",  # the text of an override or of a file cannot be read
    "unknown-key",  # no such configuration key, or no such keyword
    "unknown-option",  # no such option of a group, or no such name among a fixed set of names
    "missing",  # a key must be given and is not
    "type",  # a value of the wrong type
    "range",  # a value of the right type that is not allowed
    "contradiction",  # two keys that cannot go together
    "unsupported",  # the chosen agent, network, memory or environment cannot do what is asked for
    "target",  # a `_target_` cannot be imported or made, or is not what its place needs
    "not-found",  # no such file, folder, run, checkpoint, session or dataset
    "changed-past",  # a resumed run would have had another past
    "not-installed",  # a package, extra or program is needed
    "resources",  # more memory, disk, cores or GPUs than there are
    "usage",  # a command or function is called in a way or at a place where it cannot work
    "damaged",  # a file of a run is damaged
    "busy",  # another process uses the folder
    "environment",  # an environment failed while it was made or played
    "lost-process",  # a process that the run needs has died or hangs
]
"""Kind of an error. Each class below says which kinds it has."""


@dataclass(frozen=True)
class Mistake:
    """One mistake in the input."""

    code: Code
    key: str | None
    """The full configuration key, the argument of the command line or the file that has to change."""
    message: str


class LabrlError(Exception):
    """Base of the errors that the command line prints as a message, without a traceback."""

    codes: ClassVar[tuple[Code, ...]] = get_args(Code)
    """The codes that errors of this class can have; the first is the usual one."""
    exit_code: ClassVar[int] = FAILED
    """Exit code of a command that this error has stopped."""

    def __init__(self, message: str, *, code: Code | None = None, key: str | None = None) -> None:
        """message: what is wrong, with the key or file, what is allowed, and what to type.

        key: the full configuration key (`agent.lr`), the argument of the command line (`+resume`, `--by`) or
        the path of the file that has to change; None where there is no single one.
        """
        super().__init__(message)
        self.code: Code = code or self.codes[0]
        self.key = key
        self.mistakes: tuple[Mistake, ...] = (Mistake(self.code, key, message),)
        """Everything that is wrong; more than one where several values of a configuration are."""


class InputError(LabrlError):
    """Wrong input: an override, an option, a configuration file, or a request that nothing can fulfil.

    Nothing has been begun when it is raised.
    """

    exit_code = WRONG_INPUT

    @classmethod
    def of(cls, mistakes: Iterable[Mistake]) -> InputError:
        """Return one error for several mistakes, with the code and the key of the first."""
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
    """A process that the run needs has died or answers no more."""

    codes = ("lost-process",)
