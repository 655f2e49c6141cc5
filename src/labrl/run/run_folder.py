"""The folder with everything that one trial wrote, readable without labrl."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from labrl.errors import DamagedFileError, LabrlError
from labrl.run.atomic import sync_file
from labrl.run.folder import PROVENANCE, REPORT_FILES, RESUMES, Folder, newest_provenance, read_json
from labrl.run.lock import LOCK, FolderLock
from labrl.run.write_errors import WriteErrors

MARKER = "run.json"
"""Name of the file that marks the folder of a run."""

REPLAY = "replay"
"""Name of the folder of a replay buffer stored in files: that of a session, and the copy in a kept
checkpoint."""

RunStatus = Literal["running", "finished", "pruned", "failed", "interrupted"]
"""Status of a run. `pruned`: stopped early by a search."""


def frames_in(checkpoints: Path) -> list[int]:
    """Return the frames for which a folder has a checkpoint, complete or not, newest first. Reads no
    files."""
    found = ((re.fullmatch(r"frame_(\d{12,})", path.name), path) for path in checkpoints.glob("frame_*"))
    return sorted((int(match[1]) for match, path in found if match and path.is_dir()), reverse=True)


class SessionFolder:
    """The folder of one session. Use `RunFolder.session` to get one."""

    def __init__(self, path: Path, errors: WriteErrors | None = None) -> None:
        """errors: those of the run, if this process writes both."""
        self.path = path
        self.errors = errors or WriteErrors()
        """The files that cannot be written at present."""
        self.train_csv = path / "train.csv"
        self.eval_csv = path / "eval.csv"
        self.checkpoints = path / "checkpoints"
        """Folder of the resumable states and the best model."""
        self.start = path / "start"
        """Folder of the weights of another run that the session starts from."""
        self.networks = path / "networks.txt"
        """The networks' layers and parameters, as text."""
        self.crash = path / "crash"
        """Folder of the state at a crash, if `meta.on_crash` asks for it."""
        self.profile = path / "profile"
        """Folder of the trace and the table of a profiled window."""
        self.tensorboard = path / "tensorboard"
        self.replay = path / REPLAY
        """Folder of the replay buffer, if it is stored in files."""
        self.episodes = path / "episodes"
        self.videos = path / "videos"
        self.log = path / "session.log"
        """The session's warnings, and the traceback if it crashed."""
        self.result = path / "result.json"
        self.progress = path / "progress.json"
        """Progress of the session, at most a second old while it runs."""

    @property
    def index(self) -> int:
        """Number of the session in its trial."""
        return int(self.path.name.removeprefix("session_"))

    def checkpoint_frames(self) -> list[int]:
        """Return the frames that have a checkpoint, complete or not, newest first. Reads no files."""
        return frames_in(self.checkpoints)

    def read_result(self) -> dict[str, Any]:
        """Return the content of `result.json`; empty until the session has ended, or if the file is
        damaged."""
        return read_json(self.result)

    @property
    def has_begun(self) -> bool:
        """Whether the session has ever been built."""
        return any(path.exists() for path in (self.result, self.progress, self.networks, self.log))

    @property
    def ended_well(self) -> bool:
        """Whether the session has recorded that nothing is left to do."""
        return self.read_result().get("status") in ("finished", "pruned")

    def lock(self) -> FolderLock:
        """Return the lock of the session's own process, which may outlive the process that started it."""
        return FolderLock(self.path, part_of=self.path.parent)


class RunFolder(Folder[RunStatus]):
    """The folder of one trial.

    Its marker `run.json` holds the `status` (a killed run stays `running`), the sessions' results, and
    `resumes`, with one entry for each resume.
    """

    MARKER = MARKER
    KIND = "run"
    RESUME = "labrl +resume="
    KEY = "hydra.run.dir"
    WRITTEN = ("config.yaml", "overrides.yaml", PROVENANCE, "changed.json", "session_*", *REPORT_FILES)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.config = path / "config.yaml"
        self.overrides = path / "overrides.yaml"
        self.provenance = path / PROVENANCE
        self.changed = path / "changed.json"
        """The configuration keys that differ from the defaults of the agent and environment."""
        self.report = path / "report.html"
        self.resumes = path / RESUMES
        self.enjoy = path / "enjoy"
        """Folder of the episodes that the run's models played later."""

    def format_version(self) -> int | None:
        """Return the version of the folder's format; 0 for the first one, which is also recorded as 1."""
        version = super().format_version()
        if version in (None, 1) and (facts := read_json(newest_provenance(self.path))):
            config = facts.get("config")
            return version if isinstance(config, dict) and "start_from" in config else 0
        return version

    @property
    def unrecorded(self) -> bool:
        """Whether the run was killed before its description was complete, so that it cannot have trained yet.

        The sessions of a fork already contain their past at that point.
        """
        return not self.provenance.exists() and not any(session.has_begun for session in self.sessions())

    def discard_unrecorded(self) -> None:
        """Delete the files of an `unrecorded` run."""
        for session in self.sessions():
            shutil.rmtree(session.path)
        self.marker.unlink()

    def info(self) -> dict[str, Any]:
        """Return the content of `run.json`; if a power failure has left it empty beside checkpoints of a run
        that was never resumed, what it contained at the start of the run.

        Raises InputError if this is not the folder of a run, and DamagedFileError if the file is damaged or
        missing.
        """
        try:
            return super().info()
        except LabrlError as error:
            if (started := self._start_if_emptied()) is not None:
                head = {"format_version": self.FORMAT_VERSION, "status": "running", "created": started}
                return {**head, **self._pending}
            if isinstance(error, DamagedFileError) or not self.provenance.exists():
                raise
            raise DamagedFileError(
                f"{self.marker} is missing: restore it from a copy", key=str(self.marker)
            ) from error.__cause__

    def _start_if_emptied(self) -> str | None:
        """Return the start of a run whose `run.json` never reached the disk: it is missing, empty, or
        contains only zero bytes, beside checkpoints. Return None for all others."""
        try:
            emptied = not self.marker.read_bytes().strip(b"\0")
        except OSError as error:
            emptied = isinstance(error, FileNotFoundError)
        if emptied and not self.resumes.exists() and any(one.checkpoint_frames() for one in self.sessions()):
            with suppress(TypeError, ValueError):
                started = datetime.fromisoformat(read_json(self.provenance).get("started"))  # type: ignore[arg-type]
                return started.astimezone(UTC).isoformat(timespec="milliseconds")
        return None

    def discard_unplayed(self) -> None:
        """Delete the files of a run that was refused before its first step.

        A folder that contains anything besides the run's description is left unchanged.
        """
        described = {self.marker, self.config, self.overrides, self.provenance, *self.path.glob("*.diff")}
        described |= {path for session in self.sessions() for path in session.start.rglob("*")}
        found = sorted(self.path.rglob("*"), reverse=True)  # the content of a folder before the folder
        if any(path.name != LOCK and path not in described for path in found if not path.is_dir()):
            return
        with suppress(OSError):  # files that remain do no harm
            for path in found:
                path.rmdir() if path.is_dir() else path.unlink()
            if self.path != Path.cwd():
                self.path.rmdir()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against other processes.

        Raises BusyFolderError if the run or one of its sessions is still alive, and InputError if the folder
        cannot be written.
        """
        with super().lock():
            for session in self.sessions():
                # A session's process outlives a killed trial until the end of its current step.
                with session.lock():
                    pass
            yield

    def sync(self) -> None:
        """Wait until the files that describe the run would survive a power failure. Raises OSError.

        Syncing them together costs less than syncing each one when it is written.
        """
        for path in self.path.iterdir():
            if path.is_file() and path.name != LOCK:
                sync_file(path)
        for folder in (*(one.path for one in self.sessions()), self.path, *self.path.parents[:3]):
            with suppress(OSError):  # not every user and file system can sync a folder
                sync_file(folder)

    def session(self, index: int) -> SessionFolder:
        """Return the folder of session number `index`, which is created if needed."""
        folder = SessionFolder(self.path / f"session_{index}", self.errors)
        folder.path.mkdir(exist_ok=True)
        return folder

    def sessions(self) -> list[SessionFolder]:
        """Return the folders of all sessions that have started, ordered by number."""
        found = [path for path in self.path.glob("session_*") if path.name[len("session_") :].isdigit()]
        return sorted(map(SessionFolder, found), key=lambda folder: folder.index)
