"""Folders of runs and experiments. Each is marked by a JSON file that also contains its status."""

from __future__ import annotations

import json
import os
import shlex
import threading
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from labrl.errors import DamagedFileError, InputError
from labrl.run.atomic import write_json
from labrl.run.lock import FolderLock
from labrl.run.write_errors import WriteErrors

REPORT_FILES = ("report.html", "plots", "statistics.csv", "statistics.json")
"""Names of the files and folders that a report adds to the folder of a run or an experiment."""

PROVENANCE = "provenance.json"
"""Name of the file with code, packages, machine, command and configuration, in a run folder and for each
resume."""

RESUMES = "resumes"
"""Name of the folder, in a run folder, with the provenance of each resume by number."""

EXPERIMENT_MARKER = "experiment.json"
"""Name of the file that marks the folder of an experiment."""

Status = Literal["waiting", "running", "finished", "pruned", "failed", "interrupted"]
"""Recorded status of a run, an experiment or a trial. `waiting`: planned, but not started; `pruned`:
stopped early by a search. A killed run stays `running`."""


class Folder:
    """The folder of one run or one experiment. Use `create` or `open` to get an instance.

    Its marker file contains `format_version`, `status`, the times `created` and `updated`, and further
    metadata that depend on the kind of folder. The marker is replaced atomically, so readers never see a
    partial file.
    """

    MARKER: ClassVar[str]
    """Name of the file that marks a folder of this kind and contains its status."""
    FORMAT_VERSION: ClassVar[int] = 3
    """Version of the format that is written and read. Increase it whenever folders of earlier versions can no
    longer be read."""
    KIND: ClassVar[str]
    """Noun for the content of the folder in messages: run or experiment."""
    RESUME: ClassVar[str]
    """Beginning of the command that resumes the run or experiment; the path of the folder follows."""
    KEY: ClassVar[str]
    """Configuration key that sets the path of the folder."""
    WRITTEN: ClassVar[tuple[str, ...]]
    """Glob patterns of files that a new folder must not contain. They would be overwritten or mixed up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marker = path / self.MARKER
        """Path of the marker file."""
        self.errors = WriteErrors()
        """Record of the files that this process cannot write at present."""
        self._pending: dict[str, Any] = {}  # entries that could not be written to the marker yet
        self.writing = threading.RLock()
        """Lock that a thread holds while it reads and replaces the marker. Otherwise, threads could lose each
        other's changes."""

    @classmethod
    def create(cls, path: str | os.PathLike[str], **facts: Any) -> Self:
        """Claim `path` for a new run or experiment, and return its folder. If several processes try, exactly
        one succeeds.

        facts: further plain data for the marker. Raises InputError if the folder already belongs to a run or
        an experiment, contains unrelated files, or cannot be written.
        """
        folder = cls(place(path, cls.KEY))
        time = now()
        head = {"format_version": cls.FORMAT_VERSION, "status": "running", "created": time, "updated": time}
        folder._check_free()
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            with FolderLock(folder.path):
                folder._check_free()  # another process may have been faster
                write_json(folder.marker, folder._sealed({**head, **facts}))
        except OSError as error:
            blocking = [parent for parent in (folder.path, *folder.path.parents) if parent.is_file()]
            why = f"because {blocking[0]} is a file" if blocking else f"({error.strerror or error})"
            raise folder._not_free(f"cannot be written {why}") from error
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open the existing folder of a run or an experiment at `path`.

        Raises InputError if there is no such folder or this version of labrl cannot read its format, and
        DamagedFileError if its marker is damaged.
        """
        folder = cls(Path(os.path.abspath(path)))
        if not isinstance(folder.read_info().get("format_version"), int):
            raise DamagedFileError.about(folder.marker, "labrl has not written it: it has no format_version")
        folder.check_format()
        return folder

    def read_info(self) -> dict[str, Any]:
        """Return the content of the marker, including entries that could not be written yet.

        Raises InputError if there is no marker, and DamagedFileError if the marker is damaged.
        """
        try:
            content = json.loads(self.marker.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            why = f"it is not the folder of a labrl {self.KIND}, because it contains no {self.MARKER}"
            raise InputError.not_found(self.path, why) from error
        except (OSError, ValueError) as error:
            raise DamagedFileError.about(self.marker, f"it cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise DamagedFileError.about(self.marker, "labrl has not written it")
        return {**content, **self._pending}

    @cached_property
    def info(self) -> dict[str, Any]:
        """Content of the marker, which is read when it is first needed."""
        return self.read_info()

    def forget(self) -> None:
        """Discard everything that was read, because the content of the folder has changed."""
        self.__dict__.pop("info", None)

    def update(self, **changed: Any) -> None:
        """Replace some entries of the marker, and keep the others.

        If the marker cannot be written, `errors` records this, and the entries are written in the next
        update.
        """
        with self.writing:
            self._pending |= {"updated": now(), **changed}
            self.forget()
            with self.errors.tolerated(self.marker):
                try:
                    info = self.read_info()
                except DamagedFileError as error:
                    raise error.__cause__ if isinstance(error.__cause__, OSError) else error from None
                write_json(self.marker, self._sealed(info))
                self._pending.clear()

    @property
    def recorded_status(self) -> Status:
        """Status that the marker contains now. It remains `running` if the process is killed."""
        return self.read_info()["status"]

    def set_status(self, status: Status, **facts: Any) -> None:
        """Record the status, and further plain data `facts`, in the marker."""
        self.update(status=status, **facts)

    def lock(self) -> AbstractContextManager[Any]:
        """Return a context manager that locks the folder, so that other processes cannot use it."""
        return FolderLock(self.path)

    def check_format(self) -> None:
        """Raise InputError if there is a marker whose format this version of labrl cannot read."""
        if isinstance(version := read_json(self.marker).get("format_version"), int):
            check_format(self.path, version, self.FORMAT_VERSION)

    def _sealed(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return the content of the marker in the form in which it is written."""
        return content

    def _check_free(self) -> None:
        """Raise InputError if the folder belongs to a run or an experiment, or contains unrelated files."""
        if self.marker.exists():
            command, _, verb = self.RESUME.rpartition(" ")
            again = f"{command} {shlex.quote(f'{verb}{self.path}')}"
            raise self._not_free(f"already contains {self.MARKER} (to resume the {self.KIND}: {again})")
        if there := sorted({path.name for pattern in self.WRITTEN for path in self.path.glob(pattern)}):
            raise self._not_free(f"contains files that a new {self.KIND} would overwrite: {', '.join(there)}")

    def _not_free(self, why: str) -> InputError:
        return InputError.about(self.path, f"it {why}", f"{self.KEY}=<folder>", code="range", key=self.KEY)


def is_experiment(folder: Path) -> bool:
    """Return whether `folder` is the folder of an experiment."""
    return (folder / EXPERIMENT_MARKER).exists()


def now() -> str:
    """Return the current time in the form of the markers: ISO 8601, in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def place(value: Any, key: str) -> Path:
    """Return `value`, the folder to which `key` is set, as an absolute path.

    Raises InputError if the value is empty, or if the path is not valid UTF-8, which other libraries require.
    """
    if not str(value or "").strip():
        why = "it is empty, perhaps because a shell variable is not set"
        raise InputError.missing(key, why, f"{key}=<folder>")
    path = os.path.abspath(str(value))
    try:
        path.encode()
    except UnicodeEncodeError as error:
        fix = f"Type PYTHONUTF8=1 before the command, or set {key}=<folder>"
        raise InputError.usage(f"{key}={path}", "it is not a valid UTF-8 path", fix) from error
    return Path(path)


def check_format(path: Path, version: int, known: int) -> None:
    """Raise InputError if this version of labrl cannot read the format of the files at `path`."""
    if version != known:
        why = f"another version of labrl wrote it, in format {version} instead of {known}"
        fix = "Use that version, whose commit is in provenance.json"
        raise InputError.about(path, why, fix, code="not-installed")


def newest_provenance(run: Path) -> Path:
    """Return the path of the newest provenance file of a run: from its last resume, or else from its
    start."""
    numbers = sorted((int(path.name) for path in (run / RESUMES).glob("[0-9]*")), reverse=True)
    written = (run / RESUMES / str(number) / PROVENANCE for number in numbers)
    return next((path for path in written if path.exists()), run / PROVENANCE)


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file, or an empty dict if the file is missing or damaged."""
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    return {}


def path_text(path: str) -> str:
    """Return a path as text that UTF-8 can encode.

    Without a UTF-8 locale, paths in Python contain surrogates in place of letters that are not ASCII.
    """
    return os.fsencode(path).decode("utf-8", "replace")
