"""The folder that holds everything one trial wrote, readable without labrl."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labrl.errors import DamagedFileError, InputError, LabrlError
from labrl.storage.atomic import write_json
from labrl.storage.lock import LOCK, FolderLock
from labrl.storage.marker import another, check_free, claim, newer, now, place

FORMAT_VERSION = 1
"""Of the run folder: raised whenever an older labrl could no longer read what is written."""

MARKER = "run.json"
"""The file whose existence says that a folder belongs to a run."""

PROVENANCE = "provenance.json"

REPORT_FILES = ("report.html", "plots", "statistics.csv", "statistics.json")
"""What a report writes into the folder of a run or an experiment."""

WRITTEN = ("config.yaml", "overrides.yaml", PROVENANCE, "changed.json", "session_*", *REPORT_FILES)
"""What a trial writes into its folder, as patterns."""

RUN_DIR = "hydra.run.dir"
"""The key that gives a trial its folder."""

RunStatus = Literal["running", "finished", "pruned", "failed", "interrupted"]
"""`pruned`: a search stopped it early."""


@dataclass(frozen=True)
class SessionFolder:
    """Where one session writes. The folder is made by `RunFolder.session`."""

    path: Path

    @property
    def index(self) -> int:
        """Number of the session in its trial."""
        return int(self.path.name.removeprefix("session_"))

    @property
    def train_csv(self) -> Path:
        """Rows of training metrics."""
        return self.path / "train.csv"

    @property
    def eval_csv(self) -> Path:
        """Rows of evaluation metrics."""
        return self.path / "eval.csv"

    @property
    def checkpoints(self) -> Path:
        """Folder of the resumable states and the best model."""
        return self.path / "checkpoints"

    def checkpoint_frames(self) -> list[int]:
        """The frames of which there is a checkpoint, whole or not; found without loading any."""
        found = (re.fullmatch(r"frame_(\d{12,})", path.name) for path in self.checkpoints.glob("frame_*"))
        return [int(match[1]) for match in found if match]

    @property
    def networks(self) -> Path:
        """The networks' layers and parameters as text."""
        return self.path / "networks.txt"

    @property
    def crash(self) -> Path:
        """Folder of the state in which the session failed, where `meta.on_crash` asks for it."""
        return self.path / "crash"

    @property
    def profile(self) -> Path:
        """Folder of the trace and the table of a profiled window."""
        return self.path / "profile"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def episodes(self) -> Path:
        """Folder of recorded episodes."""
        return self.path / "episodes"

    @property
    def videos(self) -> Path:
        """Folder of recorded episodes as videos."""
        return self.path / "videos"

    @property
    def log(self) -> Path:
        """What the session said, and the traceback where it crashed."""
        return self.path / "session.log"

    @property
    def result(self) -> Path:
        """The session's outcome as JSON."""
        return self.path / "result.json"

    @property
    def progress(self) -> Path:
        """How far the session is, as JSON; at most a second old while it runs."""
        return self.path / "progress.json"

    def read_result(self) -> dict[str, Any]:
        """What `result.json` says; empty until the session has ended, and where it is damaged."""
        try:
            content = json.loads(self.result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    @property
    def ended_well(self) -> bool:
        """Whether the session says of itself that it has nothing left to do."""
        return self.read_result().get("status") in ("finished", "pruned")

    def lock(self) -> FolderLock:
        """Held by the session's own process, which may outlive the one that started it."""
        return FolderLock(self.path, part_of=self.path.parent)


class RunFolder:
    """One trial's folder; made by `create` or `open`.

    `run.json` marks it: `format_version`, `status` (running, finished, pruned, failed, interrupted), times,
    the sessions' results, and `resumes`, one entry for each time that the run went on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Claim `path` for a new run; of several processes that try, exactly one succeeds.

        Raises InputError if the folder holds a run already, or files of others, or cannot be written.
        """
        folder = place(path, RUN_DIR)
        if not (folder / MARKER).exists():
            check_free(folder, WRITTEN, RUN_DIR)
        time = now()
        marker = {"format_version": FORMAT_VERSION, "status": "running", "created": time, "updated": time}
        try:
            claim(folder / MARKER, marker)
        except OSError as error:
            raise InputError(_why_not(folder, error), code="range", key=RUN_DIR) from error
        return cls(folder)

    @classmethod
    def open(cls, path: str | os.PathLike[str], rebuilt: bool = False) -> RunFolder:
        """The run that lies at `path`.

        rebuilt: whether `run.json` may be missing or damaged, as `rebuilt_info` can do without. Raises
        InputError if there is no run or a newer labrl wrote it, DamagedFileError if its marker is damaged.
        """
        run = cls(Path(os.path.abspath(path)))
        version = (run.rebuilt_info() if rebuilt else run.info()).get("format_version")
        if not isinstance(version, int):
            raise DamagedFileError(
                f"{run.path / MARKER} has no format_version, so labrl did not write it",
                key=str(run.path / MARKER),
            )
        if version > FORMAT_VERSION:
            raise newer(run.path, version, FORMAT_VERSION)
        return run

    @property
    def config(self) -> Path:
        """The resolved configuration, YAML."""
        return self.path / "config.yaml"

    @property
    def overrides(self) -> Path:
        """What was given on the command line, a YAML list."""
        return self.path / "overrides.yaml"

    @property
    def provenance(self) -> Path:
        """Code, packages, machine, command and seed, JSON."""
        return self.path / PROVENANCE

    @property
    def changed(self) -> Path:
        """What of the configuration is not the default of its agent and environment, JSON."""
        return self.path / "changed.json"

    @property
    def report(self) -> Path:
        """The report, one HTML file."""
        return self.path / "report.html"

    @property
    def resumes(self) -> Path:
        """Folder with the provenance of each time that the run went on, by number."""
        return self.path / "resumes"

    @property
    def enjoy(self) -> Path:
        """Folder of what was played with the run's models later on."""
        return self.path / "enjoy"

    @property
    def status(self) -> RunStatus:
        """How the run stands; `running` is also what a killed run leaves behind."""
        return self.info()["status"]

    @property
    def unrecorded(self) -> bool:
        """Whether it was killed before all that describes it was written: then it has done nothing."""
        return not self.provenance.exists() and not self.sessions()

    @property
    def has_lost_marker(self) -> bool:
        """Whether this was a run folder, and `run.json` is gone."""
        return not (self.path / MARKER).exists() and self.provenance.exists()

    @property
    def known(self) -> str:
        """How the run and its sessions stand, in a line, as far as its files say."""
        told = []
        with suppress(OSError, ValueError, KeyError, TypeError):
            told.append(
                f"the run is {json.loads((self.path / MARKER).read_text(encoding='utf-8'))['status']}"
            )
        for session in self.sessions():
            result = session.read_result()
            how = result.get("status", "has no result.json")
            newest = max([result.get("frame", 0), *session.checkpoint_frames()])
            told.append(f"session {session.index}: {how}, frame {newest:,}")
        return "; ".join(told) or "nothing else is known of it"

    def info(self) -> dict[str, Any]:
        """The content of `run.json`. Raises InputError where it is missing, DamagedFileError where it is
        damaged."""
        marker = self.path / MARKER
        try:
            content = json.loads(marker.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            what = f"{self.path} is not a run folder of labrl: it contains no {MARKER}"
            if self.has_lost_marker:
                raise DamagedFileError(f"{what}{self._without_marker()}", key=str(marker)) from error
            raise InputError(what, code="not-found", key=str(self.path)) from error
        except (OSError, ValueError) as error:
            raise DamagedFileError(
                f"{marker} cannot be read: {error}{self._without_marker()}", key=str(marker)
            ) from error
        if not isinstance(content, dict):
            raise DamagedFileError(
                f"{marker} is not what labrl writes there{self._without_marker()}", key=str(marker)
            )
        return content

    @property
    def marker_damage(self) -> str | None:
        """Why `run.json` cannot be read, None where it can."""
        try:
            self.info()
        except LabrlError as error:
            return str(error)
        return None

    def _without_marker(self) -> str:
        """What else the folder says of the run, and how to use it without `run.json`."""
        return (
            f". The other files say: {self.known}. Put the file back, or write this into it: "
            f"{json.dumps(self._rebuilt())}"
        )

    def rebuilt_info(self) -> dict[str, Any]:
        """The same, and where it is missing or damaged what the results of the sessions say.

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
        return {"format_version": FORMAT_VERSION, "status": status}

    def set_status(self, status: RunStatus, **facts: Any) -> None:
        """Record how the run stands, and further plain `facts`, in `run.json`."""
        write_json(self.path / MARKER, {**self.info(), "status": status, "updated": now(), **facts})

    def discard_unplayed(self) -> None:
        """Delete what was written of a run that was refused before its first step.

        A folder that holds anything besides the run's description stays as it is.
        """
        described = {
            self.path / MARKER,
            self.config,
            self.overrides,
            self.provenance,
            *self.path.glob("*.diff"),
        }
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
        with FolderLock(self.path):
            for session in self.sessions():
                # A session's process outlives a killed trial for the step that it is in.
                with session.lock():
                    pass
            yield

    def session(self, index: int) -> SessionFolder:
        """The folder of session number `index`, made if need be."""
        folder = SessionFolder(self.path / f"session_{index}")
        folder.path.mkdir(exist_ok=True)
        return folder

    def sessions(self) -> list[SessionFolder]:
        """The folders of all sessions that have started, in order of their number."""
        found = [path for path in self.path.glob("session_*") if path.name[len("session_") :].isdigit()]
        return sorted(map(SessionFolder, found), key=lambda folder: folder.index)


def _why_not(folder: Path, error: OSError) -> str:
    """What keeps `folder` from becoming a run folder, and the way out."""
    if (folder / MARKER).exists():
        return f"{folder} already contains a run: {another(RUN_DIR)}"
    for parent in (folder, *folder.parents):
        if parent.exists() and not parent.is_dir():
            return f"{folder} cannot be a run folder, because {parent} is a file: {another(RUN_DIR)}"
    return f"{folder} cannot be written ({error.strerror or error}): {another(RUN_DIR)}"
