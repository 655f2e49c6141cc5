"""Folders of runs and experiments: each is claimed by a JSON file in it, which also says how it stands."""

from __future__ import annotations

import json
import os
import shlex
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from labrl.errors import DamagedFileError, InputError
from labrl.storage.atomic import write_json
from labrl.storage.lock import FolderLock

REPORT_FILES = ("report.html", "plots", "statistics.csv", "statistics.json")
"""Files of a report in the folder of a run or an experiment."""

Status = TypeVar("Status", bound=str)


class Folder(Generic[Status]):
    """The folder of one run or experiment; made by `create` or `open`.

    Its marker holds `format_version`, `status`, the times `created` and `updated`, and facts of its kind. It
    is replaced at once, so that a reader never meets half of it.
    """

    MARKER: ClassVar[str]
    """Name of the file that marks such a folder and holds its status."""
    FORMAT_VERSION: ClassVar[int] = 1
    """Raised whenever an older labrl could no longer read what is written."""
    KIND: ClassVar[str]
    """Owner of such a folder, for messages."""
    RESUME: ClassVar[str]
    """The command that resumes it, which the path follows."""
    KEY: ClassVar[str]
    """The configuration key that gives the folder."""
    WRITTEN: ClassVar[tuple[str, ...]]
    """Patterns of files that must not exist before, because they would be overwritten or mixed up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marker = path / self.MARKER
        """The file that marks the folder."""
        self.writing = threading.RLock()
        """Held while the marker is read and replaced, so that threads lose nothing of each other's."""

    @classmethod
    def create(cls, path: str | os.PathLike[str], **facts: Any) -> Self:
        """Claim `path`; of several processes that try, exactly one succeeds.

        facts: plain data that the marker holds besides. Raises InputError if the folder holds a run, an
        experiment or files of others already, or cannot be written.
        """
        folder = cls(place(path, cls.KEY))
        time = now()
        head = {"format_version": cls.FORMAT_VERSION, "status": "running", "created": time, "updated": time}
        folder._check_free()
        try:
            folder._claim({**head, **facts})
        except OSError as error:
            folder._check_free()  # another process was faster
            blocking = [parent for parent in (folder.path, *folder.path.parents) if parent.is_file()]
            why = f"because {blocking[0]} is a file" if blocking else f"({error.strerror or error})"
            raise folder._not_free(f"cannot be written {why}") from error
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Return what lies at `path`.

        Raises InputError if there is no such folder or it has another format, DamagedFileError if its marker
        is damaged.
        """
        folder = cls(Path(os.path.abspath(path)))
        folder.check_version(folder.info())
        return folder

    def info(self) -> dict[str, Any]:
        """Return the content of the marker.

        Raises InputError where there is none, DamagedFileError where it is damaged.
        """
        try:
            content = json.loads(self.marker.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InputError(
                f"{self.path} is not the folder of a labrl {self.KIND}: it contains no {self.MARKER}",
                code="not-found",
                key=str(self.path),
            ) from error
        except (OSError, ValueError) as error:
            raise DamagedFileError(f"{self.marker} cannot be read: {error}", key=str(self.marker)) from error
        if not isinstance(content, dict):
            raise DamagedFileError(f"{self.marker} is not what labrl writes there", key=str(self.marker))
        return content

    def update(self, **changed: Any) -> None:
        """Replace facts in the marker; the others stay."""
        with self.writing:
            write_json(self.marker, {**self.info(), "updated": now(), **changed})

    @property
    def status(self) -> Status:
        """How the run or experiment stands."""
        return self.info()["status"]

    def set_status(self, status: Status, **facts: Any) -> None:
        """Record how it stands, and further plain `facts`."""
        self.update(status=status, **facts)

    def lock(self) -> AbstractContextManager[Any]:
        """Return a context manager that keeps other processes out while it is entered."""
        return FolderLock(self.path)

    def check_version(self, info: Mapping[str, Any]) -> None:
        """Raise DamagedFileError where a marker's content has no format, InputError where it is another."""
        version = info.get("format_version")
        if not isinstance(version, int):
            raise DamagedFileError(
                f"{self.marker} has no format_version, so labrl did not write it", key=str(self.marker)
            )
        check_format(self.path, version, self.FORMAT_VERSION)

    def _check_free(self) -> None:
        """Raise InputError where the folder belongs to a run or an experiment, or holds files of others."""
        if self.marker.exists():
            raise self._not_free(f"already contains {self.MARKER} (to resume it: {self._how_to_resume})")
        if there := sorted({path.name for pattern in self.WRITTEN for path in self.path.glob(pattern)}):
            what = f"files of another origin, as a new {self.KIND} would write them"
            raise self._not_free(f"contains {what}: {', '.join(there)}")

    @property
    def _how_to_resume(self) -> str:
        command, _, verb = self.RESUME.rpartition(" ")
        return f"{command} {shlex.quote(f'{verb}{self.path}')}"

    def _not_free(self, why: str) -> InputError:
        return InputError(
            f"{self.path} {why}: choose another folder with {self.KEY}=<folder>", code="range", key=self.KEY
        )

    def _claim(self, content: Mapping[str, Any]) -> None:
        """Make the folder if need be, and the marker with `content` in it.

        Of several processes that try, exactly one succeeds; the others get FileExistsError. Raises OSError
        where the folder cannot be written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        # Written elsewhere first: nobody may find it empty, nor a kill leave it so.
        whole = self.path / f".{self.MARKER}.{os.getpid()}.{threading.get_ident()}.tmp"
        try:
            write_json(whole, content, durable=False)
            try:
                os.link(whole, self.marker)
            except FileExistsError:
                raise
            except OSError:  # a file system without hard links
                with open(self.marker, "xb") as file:
                    file.write(whole.read_bytes())
        finally:
            whole.unlink(missing_ok=True)


def now() -> str:
    """Return the time as markers have it, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def place(value: Any, key: str) -> Path:
    """Return the folder that `key` names, absolute.

    Raises InputError where it names none, or one whose path is no UTF-8, as libraries need it.
    """
    if not str(value or "").strip():
        raise InputError(
            f"{key} is empty (perhaps a shell variable is not set): set {key}=<folder>",
            code="missing",
            key=key,
        )
    path = os.path.abspath(str(value))
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{key}={path} cannot hold a run: its path is not valid UTF-8. Set {key}=<another folder>",
            code="usage",
            key=key,
        ) from error
    return Path(path)


def check_format(path: Path, version: int, known: int) -> None:
    """Raise InputError where what lies at `path` has another format than this version of labrl reads."""
    if version != known:
        raise InputError(
            f"{path} has format {version}, and this version of labrl reads format {known}. Install the "
            "version of labrl that wrote it.",
            code="not-installed",
            key=str(path),
        )


def read_json(path: Path) -> dict[str, Any]:
    """Return what a JSON file says; empty where there is none or it is damaged."""
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    return {}
