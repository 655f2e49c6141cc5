"""Errors that are shown to the user, and the exit codes of the commands.

The command line prints the message of a `LabrlError` without a traceback. Programs that call labrl, and the
tests, check its class, `code` and `key`, never the sentence.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import ClassVar, Literal, Self, get_args
from urllib.parse import unquote, urlsplit

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


TRACEBACK = "For the traceback, put HYDRA_FULL_ERROR=1 before the command"
"""Advice on how to see the traceback of an error that is written to no log."""

LIBRARIES: dict[str, Code] = {
    **dict.fromkeys(("hydra", "omegaconf"), "usage"),
    **dict.fromkeys(("antlr4", "yaml"), "syntax"),
    **dict.fromkeys(("gymnasium", "ale_py", "minari"), "environment"),
    "pydantic": "target",  # a Config that it cannot read
    **dict.fromkeys(("csv", "json", "polars", "sqlalchemy", "sqlite3", "zipfile"), "damaged"),
    **dict.fromkeys(("optuna", "ray", "submitit", "wandb"), "resources"),
}
"""Libraries whose exceptions `answer_to` answers, with the code of each."""

TYPED = (
    errno.EACCES,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
)
"""Numbers of system errors about a path that cannot be what the user means."""


def first_line(error: object) -> str:
    """Return the first line of an error or a text, joined with the next one if it ends with a colon.

    For an exception without text, returns the name of its type.
    """
    first, *_ = _lines(str(error)) or [type(error).__name__ if isinstance(error, BaseException) else ""]
    return first


def _lines(text: str) -> list[str]:
    """Return the lines of a text that are not empty, with the first one joined with the next one if it ends
    with a colon."""
    lines = [line for line in text.splitlines() if line.strip()]
    while lines[1:] and lines[0].rstrip().endswith(":"):
        lines[:2] = [f"{lines[0].rstrip()} {lines[1].strip()}"]
    return [line.strip() for line in lines[:1]] + lines[1:]


def described(error: BaseException) -> str:
    """Return the type and the text of an error, and the notes from `note_place`. Of an error without text,
    return the line of code that raised it instead of the text."""
    note_place(error)
    name, text = type(error).__name__, str(error)
    if text or not (frames := traceback.extract_tb(error.__traceback__)):
        return with_notes(error, f"{name}: {text}")
    return with_notes(error, f"{name} in {frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line}")


def with_notes(error: BaseException, text: str) -> str:
    """Return `text` with the notes of an error in parentheses, at the end of its first line."""
    notes = [first_line(note) for note in vars(error).get("__notes__", ())]
    if not notes:
        return text
    first, *others = _lines(text)
    return "\n".join([f"{first} ({', '.join(notes)})", *others])


def note_place(error: BaseException, where: str = "") -> None:
    """Add notes to an error: the innermost file and line of the user's own code, and `where` if it is given.

    A place that is already noted is kept. It may come from another process, whose traceback is not available
    here.
    """
    notes = vars(error).get("__notes__", ())
    if not any(_PLACE.fullmatch(note) for note in notes) and (place := _own_place(error)):
        error.add_note(place)
    if where:
        error.add_note(where)


_PLACE = re.compile(r".+\.py:\d+")
"""Pattern of the note of a place."""


def _own_place(error: BaseException) -> str:
    """Return the innermost `file:line` in the traceback of an error that is in neither labrl, an installed
    package nor Python itself; '' if there is none."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if is_users_file(file):
            near = os.path.relpath(file)
            return f"{file if near.startswith(os.pardir) else near}:{line}"
    return ""


def is_users_file(file: str) -> bool:
    """Return whether a file of source code belongs to neither labrl, an installed package nor Python
    itself."""
    libraries = (
        f"{os.path.dirname(os.path.abspath(__file__))}{os.sep}",
        sysconfig.get_path("stdlib") + os.sep,
    )
    packaged = {"site-packages", "dist-packages"} & set(Path(file).parts)
    return not packaged and not file.startswith(("<", *libraries))


def install_command(extra: str) -> str:
    """Return the command that adds an extra to labrl, from the source from which labrl was installed."""
    try:
        metadata_file = distribution("labrl").read_text
        origin = json.loads(metadata_file("direct_url.json") or "{}")
    except PackageNotFoundError:  # imported from a folder that is not installed
        origin = {}
    url = origin.get("url", "")
    if origin.get("dir_info", {}).get("editable"):
        return f"pip install -e '{unquote(urlsplit(url).path)}[{extra}]'"
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}"
    return f"pip install 'labrl[{extra}]{f' @ {url}' if url else ''}'"


def key_in(option: str) -> str:
    """Return the key of an option as it is typed, `agent.lr=1e-3` or `--format onnx`."""
    return re.split("[= ]", option)[0]


def sentences(text: str, fix: str = "") -> str:
    """Return `text`, followed by what to type instead.

    fix: overrides to set (`agent.lr=1e-3`), or a sentence that begins with a capital letter; '' if unknown.
    """
    fix = fix.strip()
    if fix and not fix[0].isupper():
        fix = f"Set {fix}"
    end = "" if text.endswith("?") else "."
    return f"{text.rstrip('.')}{end} {fix}" if fix else text


class LabrlError(Exception):
    """Base of the errors that the command line prints as a message, without a traceback."""

    codes: ClassVar[tuple[Code, ...]] = get_args(Code)
    """Possible codes of errors of this class; the first one is the default."""
    exit_code: ClassVar[int] = FAILED
    """Exit code of a command that ends with this error."""

    def __init__(self, message: str, *, code: Code | None = None, key: str | None = None) -> None:
        """message: text that says what is wrong (with the key or file), what is allowed and what to type;
        code: kind of the error, None for the first of `codes`; key: the full configuration key (`agent.lr`),
        command-line argument (`+resume`, `--by`) or path of the file that must be changed, None if there is
        no single one.
        """
        super().__init__(message)
        self.message = message
        self.code: Code = code or self.codes[0]
        self.key = key
        self._found: tuple[LabrlError, ...] = ()

    @property
    def mistakes(self) -> tuple[LabrlError, ...]:
        """All mistakes, one error each. There are several if several values of a configuration are wrong."""
        return self._found or (self,)

    @classmethod
    def about(
        cls,
        place: str | os.PathLike[str],
        why: str,
        fix: str = "",
        *,
        code: Code | None = None,
        key: str | None = None,
    ) -> Self:
        """Return the error `<place>: <why>. <fix>`.

        place: a setting (`agent.lr` or `agent.lr=3`), another argument of a command, or the path of a file;
        fix: see `sentences`; key: key or path that must be changed; None: `place`, up to its first `=` if it
        is a string.
        """
        own = str(place).partition("=")[0] if isinstance(place, str) else str(place)
        return cls(sentences(f"{place}: {why}", fix), code=code, key=key or own)

    def within(self, place: str) -> InputError:
        """Return an input error with `<place>: ` before the message of every mistake."""
        return InputError.of(
            InputError(f"{place}: {one.message}", code=one.code, key=one.key) for one in self.mistakes
        )


class InputError(LabrlError):
    """Wrong input: an override, an option, a configuration file, or an impossible request.

    It is raised before anything is started. Each class method makes one kind of error. In their arguments,
    `why` is a clause, and `fix` is what to type, as in `sentences`.
    """

    exit_code = WRONG_INPUT

    @classmethod
    def of(cls, mistakes: Iterable[LabrlError]) -> InputError:
        """Return one error for several mistakes, with the code and key of the first."""
        found = tuple(mistakes)
        error = cls("\n".join(one.message for one in found), code=found[0].code, key=found[0].key)
        error._found = found
        return error

    @classmethod
    def value(
        cls, key: str, got: object, allowed: str, *, why: str = "", fix: str = "", code: Code = "range"
    ) -> Self:
        """Return the error `<key> must <allowed>, got <got>: <why>. <fix>`.

        allowed: words that complete "must", such as "be at least 1"; code: range, type, unknown-option or
        target, or contradiction if other values determine what is allowed.
        """
        match got:
            case None | bool():
                given = {None: "null", True: "true", False: "false"}[got]
            case float():
                given = f"{got:g}"
            case _:
                given = str(got)
        text = f"{key} must {allowed}, got {given}{': ' * bool(why)}{why}"
        return cls(sentences(text, fix), code=code, key=key)

    @classmethod
    def contradiction(cls, setting: str, other: str, why: str = "", fix: str = "") -> Self:
        """Return the error `<setting> contradicts <other>: <why>. <fix>`, with the key of `setting`."""
        text = f"{setting} contradicts {other}{': ' * bool(why)}{why}"
        return cls(sentences(text, fix), code="contradiction", key=setting.partition("=")[0])

    @classmethod
    def missing(cls, key: str, why: str = "", fix: str = "") -> Self:
        """Return the error `<key> must be given: <why>. <fix>`."""
        text = f"{key} must be given{': ' * bool(why)}{why}"
        return cls(sentences(text, fix or f"{key}=<value>"), code="missing", key=key)

    @classmethod
    def unsupported(cls, setting: str, why: str, fix: str = "") -> Self:
        """Return the error for a request that an agent or another part does not support; see `about`."""
        return cls.about(setting, why, fix, code="unsupported")

    @classmethod
    def not_found(cls, place: str | os.PathLike[str], why: str, fix: str = "") -> Self:
        """Return the error for a missing file, folder, run, checkpoint or session; see `about`."""
        return cls.about(place, why, fix, code="not-found")

    @classmethod
    def not_installed(cls, setting: str, package: str, extra: str, otherwise: str = "") -> Self:
        """Return the error `<setting> needs <package>, which is not installed. Type pip install ...`.

        extra: extra of labrl that includes the package; otherwise: what to set to do without the package.
        """
        text = f"{setting} needs {package}, which is not installed"
        fix = f"Type {install_command(extra)}{', or set ' * bool(otherwise)}{otherwise}"
        return cls(sentences(text, fix), code="not-installed", key=setting.partition("=")[0])

    @classmethod
    def resources(cls, setting: str, why: str, fix: str = "") -> Self:
        """Return the error for too little memory, disk, cores or GPUs; see `about`."""
        return cls.about(setting, why, fix, code="resources")

    @classmethod
    def usage(cls, place: str | os.PathLike[str], why: str, fix: str = "") -> Self:
        """Return the error for a command or function that cannot be called in this way; see `about`."""
        return cls.about(place, why, fix, code="usage")


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


def answer_to(error: Exception) -> LabrlError | None:
    """Return the answer to an exception of the operating system, of a file that cannot be decoded, of one of
    the `LIBRARIES`, or of the user's own code. None for all others, which are mistakes in labrl.

    The answer contains the words of the library, and the file, key or place at hand.
    """
    if isinstance(error, LabrlError):
        return error
    if isinstance(error, OSError) and error.filename is not None:
        path, why = Path(os.fsdecode(error.filename)), error.strerror or type(error).__name__
        if error.errno in TYPED:
            return InputError.not_found(path, why)
        return LabrlError.about(path, why, code="resources")
    roots = [each.__module__.partition(".")[0] for each in type(error).__mro__]
    codes = [LIBRARIES[root] for root in roots if root in LIBRARIES]
    if isinstance(error, OSError | UnicodeError):
        codes.append("damaged" if isinstance(error, UnicodeError) else "resources")
    if _is_of_user(error):
        codes.append("target")
    if not codes:
        return None
    kind = InputError if codes[0] in ("usage", "syntax") else LabrlError
    key = vars(error).get("full_key")  # of OmegaConf
    return kind(sentences(described(error), TRACEBACK), code=codes[0], key=str(key) if key else None)


def _is_of_user(error: Exception) -> bool:
    """Return whether code of the user, or a library that it has called, raised an error."""
    if any(_PLACE.fullmatch(note) for note in vars(error).get("__notes__", ())):
        return True
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if is_users_file(file) or file.startswith(os.path.dirname(os.path.abspath(__file__))):
            return is_users_file(file)
    return False
