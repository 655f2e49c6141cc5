"""The folder that holds everything one trial wrote, readable without labrl."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Self

from labrl.errors import DamagedFileError, LabrlError
from labrl.storage.folder import REPORT_FILES, Folder, read_json
from labrl.storage.lock import LOCK, FolderLock

MARKER = "run.json"
"""The file whose existence says that a folder belongs to a run."""

PROVENANCE = "provenance.json"

REPLAY = "replay"
"""Name of the folder of a replay buffer in files: that of a session, and the copy in a kept checkpoint."""

RunStatus = Literal["running", "finished", "pruned", "failed", "interrupted"]
"""`pruned`: a search stopped it early."""


def frames_in(checkpoints: Path) -> list[int]:
    """Return the frames of which a folder has a checkpoint, whole or not, newest first; reads none."""
    found = ((re.fullmatch(r"frame_(\d{12,})", path.name), path) for path in checkpoints.glob("frame_*"))
    return sorted((int(match[1]) for match, path in found if match and path.is_dir()), reverse=True)


class SessionFolder:
    """The folder of one session, made by `RunFolder.session`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.train_csv = path / "train.csv"
        self.eval_csv = path / "eval.csv"
        self.checkpoints = path / "checkpoints"
        """Folder of the resumable states and the best model."""
        self.start = path / "start"
        """Folder of the weights of another run that the session begins with."""
        self.networks = path / "networks.txt"
        """The networks' layers and parameters as text."""
        self.crash = path / "crash"
        """Folder of the state in which the session failed, where `meta.on_crash` asks for it."""
        self.profile = path / "profile"
        """Folder of the trace and the table of a profiled window."""
        self.tensorboard = path / "tensorboard"
        self.replay = path / REPLAY
        """Folder of the replay buffer, where it lies in files."""
        self.episodes = path / "episodes"
        self.videos = path / "videos"
        self.log = path / "session.log"
        """Warnings of the session, and the traceback where it crashed."""
        self.result = path / "result.json"
        self.progress = path / "progress.json"
        """Progress of the session; at most a second old while it runs."""

    @property
    def index(self) -> int:
        """Number of the session in its trial."""
        return int(self.path.name.removeprefix("session_"))

    def checkpoint_frames(self) -> list[int]:
        """Return the frames of which there is a checkpoint, whole or not, newest first; reads none."""
        return frames_in(self.checkpoints)

    def read_result(self) -> dict[str, Any]:
        """Return what `result.json` says; empty until the session has ended, and where it is damaged."""
        return read_json(self.result)

    @property
    def has_begun(self) -> bool:
        """Whether the session has ever been built."""
        return any(path.exists() for path in (self.result, self.progress, self.networks, self.log))

    @property
    def ended_well(self) -> bool:
        """Whether the session says of itself that it has nothing left to do."""
        return self.read_result().get("status") in ("finished", "pruned")

    def lock(self) -> FolderLock:
        """Return the lock that the session's own process holds, which may outlive the one that started it."""
        return FolderLock(self.path, part_of=self.path.parent)


class RunFolder(Folder[RunStatus]):
    """The folder of one trial.

    `run.json` marks it: `status` (running, which a killed run leaves behind too, finished, pruned, failed,
    interrupted), the sessions' results, and `resumes`, one entry for each time that the run went on.
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
        """Code, packages, machine, command and seed."""
        self.changed = path / "changed.json"
        """The keys of the configuration that are not the default of its agent and environment."""
        self.report = path / "report.html"
        self.resumes = path / "resumes"
        """Folder with the provenance of each time that the run went on, by number."""
        self.enjoy = path / "enjoy"
        """Folder of what was played with the run's models later on."""

    @classmethod
    def open(cls, path: str | os.PathLike[str], rebuilt: bool = False) -> Self:
        """Return the run at `path`; raises as `Folder.open`.

        rebuilt: whether `run.json` may be missing or damaged, as `rebuilt_info` can do without.
        """
        run = cls(Path(os.path.abspath(path)))
        run.check_version(run.rebuilt_info() if rebuilt else run.info())
        return run

    @property
    def unrecorded(self) -> bool:
        """Whether it was killed before all that describes it was written: then it has done nothing.

        A fork has the past of its sessions by then.
        """
        return not self.provenance.exists() and not any(session.has_begun for session in self.sessions())

    def discard_unrecorded(self) -> None:
        """Delete what a run that is `unrecorded` left behind."""
        for session in self.sessions():
            shutil.rmtree(session.path)
        self.marker.unlink()

    @property
    def has_lost_marker(self) -> bool:
        """Whether this was a run folder, and `run.json` is gone."""
        return not self.marker.exists() and self.provenance.exists()

    @property
    def known(self) -> str:
        """Return the status of the run and its sessions in one line, from its files."""
        status = read_json(self.marker).get("status")
        found = [f"the run is {status}"] if status else []
        for session in self.sessions():
            result = session.read_result()
            how = result.get("status", "has no result.json")
            newest = max([result.get("frame", 0), *session.checkpoint_frames()])
            found.append(f"session {session.index}: {how}, frame {newest:,}")
        return "; ".join(found) or "nothing else is known of it"

    def info(self) -> dict[str, Any]:
        """Return the content of `run.json`.

        Raises InputError where this is no run folder, DamagedFileError where the file is damaged or lost.
        """
        try:
            return super().info()
        except LabrlError as error:
            if not isinstance(error, DamagedFileError) and not self.has_lost_marker:
                raise
            raise DamagedFileError(
                f"{error}. The other files say: {self.known}. Put the file back, or write this into it: "
                f"{json.dumps(self._rebuilt())}",
                key=str(self.marker),
            ) from error

    def rebuilt_info(self) -> dict[str, Any]:
        """Return `info`, and where it is missing or damaged what the results of the sessions say.

        Raises what `info` raises where there are none either, and so nothing of a run.
        """
        try:
            return self.info()
        except LabrlError:
            if not any(session.read_result() for session in self.sessions()):
                raise
            return self._rebuilt()

    def _rebuilt(self) -> dict[str, Any]:
        """Return as much of `run.json` as other files can stand in for."""
        statuses = {session.read_result().get("status") for session in self.sessions()}
        worst = next((status for status in ("failed", "pruned", "finished") if status in statuses), None)
        left = not statuses or statuses & {None, "interrupted"}
        status = "interrupted" if left or worst is None else worst
        return {"format_version": self.FORMAT_VERSION, "status": status}

    def discard_unplayed(self) -> None:
        """Delete what was written of a run that was refused before its first step.

        A folder that holds anything besides the run's description stays as it is.
        """
        described = {self.marker, self.config, self.overrides, self.provenance, *self.path.glob("*.diff")}
        described |= {path for session in self.sessions() for path in session.start.rglob("*")}
        found = sorted(self.path.rglob("*"), reverse=True)  # what lies in a folder before the folder
        if any(path.name != LOCK and path not in described for path in found if not path.is_dir()):
            return
        with suppress(OSError):  # left behind, it does no harm
            for path in found:
                path.rmdir() if path.is_dir() else path.unlink()
            if self.path != Path.cwd():
                self.path.rmdir()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out for as long as this lasts.

        Raises BusyFolderError where the run or one of its sessions is still alive, InputError where the
        folder cannot be written.
        """
        with super().lock():
            for session in self.sessions():
                # A session's process outlives a killed trial for the step that it is in.
                with session.lock():
                    pass
            yield

    def session(self, index: int) -> SessionFolder:
        """Return the folder of session number `index`, made if need be."""
        folder = SessionFolder(self.path / f"session_{index}")
        folder.path.mkdir(exist_ok=True)
        return folder

    def sessions(self) -> list[SessionFolder]:
        """Return the folders of all sessions that have started, in order of their number."""
        found = [path for path in self.path.glob("session_*") if path.name[len("session_") :].isdigit()]
        return sorted(map(SessionFolder, found), key=lambda folder: folder.index)
