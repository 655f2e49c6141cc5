"""Checkpoints: folders that are either complete or absent, and that are loaded without executing code.

checkpoints/frame_000000100000/     one checkpoint
    manifest.json                   format version, its frame and that of the best checkpoint by then, whether
                                    it is kept, size and SHA-256 of the other file
    state.pt                        the nested state, for torch.load(weights_only=True)
    replay/                         in a kept checkpoint: the replay buffer, if it is stored in files
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from labrl.errors import DamagedFileError, InputError, LabrlError
from labrl.run.atomic import HashedFile, copy_synced, sync_file, write_atomic, write_synced
from labrl.run.folder import check_format

FORMAT_VERSION = 3
"""Version of the format of a checkpoint. In every version, the manifest has `format_version`, `frame` and
`checksum`."""

MANIFEST, STATE = "manifest.json", "state.pt"
REPLAY = "replay"
"""Name of the folder of a replay buffer that is stored in files, in a session's folder and, as a copy, in
kept checkpoints."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint that has been loaded. Its tensors are on the CPU; large tensors are mapped from
    the file."""

    path: Path
    frame: int
    state: Any
    checksum: str = ""
    """SHA-256 of the file that contains the state."""


@contextmanager
def loading(path: str) -> Iterator[None]:
    """Context manager: raise InputError if a state that is being loaded does not fit the configuration.

    path: path of the checkpoint, or of the folder from which the newest checkpoint is loaded.
    """
    try:
        yield
    except LabrlError:
        raise
    except Exception as error:  # raised by the component whose state does not fit
        why = f"it does not fit the configuration: {misfit(error)}"
        fix = "Undo changes of networks, optimizer, replay buffer and transforms"
        raise InputError.about(path, why, fix, code="changed-past", key=path) from error


def misfit(error: BaseException) -> str:
    """Return in one line why a state cannot be loaded. error: exception of the component that refused it."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


class CheckpointStore:
    """The checkpoints of a session in one folder: the `keep_last` newest, those that are kept permanently,
    and the best by the frame of each of these.

    Nothing is written before the first `save`, so a store can also read a folder that is not writable.
    """

    def __init__(self, folder: Path, keep_last: int) -> None:
        self.folder = folder
        self.keep_last = keep_last
        self.broken: dict[Path, str] = {}
        """The checkpoints that were skipped while loading, newest first, each with the reason."""

    def save(self, frame: int, state: Any, **how: Any) -> Path:
        """Pack `state`, and write it as a checkpoint, with the arguments `how` of `write`. Return its folder.

        Raises TypeError if the state contains anything but plain data, arrays and tensors, and the errors of
        `write`.
        """
        from labrl.run.tree import pack  # imports PyTorch, which is not needed to inspect a folder

        return self.write(frame, pack(state), **how)

    def write(
        self,
        frame: int,
        packed: Any,
        best: int | None = None,
        owed: int | None = None,
        keep: bool = False,
        replay: Path | None = None,
    ) -> Path:
        """Write a packed state as the checkpoint of `frame`. Return its folder.

        best: frame of the best checkpoint so far; by default, that of the newest one. Once the new checkpoint
        is on disk, checkpoints that are no longer needed are removed, except that of frame `owed`, which
        `declare_best` may still need. If `keep`, the checkpoint is never removed, and includes the files in
        the folder `replay`, which training replaces. Raises OSError if the disk fails; the earlier
        checkpoints then still exist.
        """
        import torch  # takes a second to import, and is not needed to inspect a folder

        if not self.folder.is_dir():
            self.folder.mkdir()  # without parents: a run folder that has been moved must not come back
            sync_file(self.folder.parent)
        for leftover in self.folder.glob(".*.tmp"):  # of a killed process
            shutil.rmtree(leftover, ignore_errors=True)
        target = self.path_of(frame)
        temporary = self.folder / f".{target.name}.new.tmp"
        temporary.mkdir()
        try:
            if keep and replay is not None:
                copy_replay(replay, temporary / REPLAY)
            file = HashedFile(temporary / STATE)
            # Written directly to disk, because a rollout of images takes tens of megabytes.
            torch.save(packed, cast(IO[bytes], file))
            there = best == frame or best in self.frames()
            facts = {"frame": frame, "best": best if there else self.best_frame(), "keep": keep}
            manifest = {"format_version": FORMAT_VERSION, **facts, "files": {STATE: file.finish()}}
            write_synced(temporary / MANIFEST, _as_json(manifest))
            sync_file(temporary)
            if target.exists():
                self._remove(target)
            os.replace(temporary, target)
            sync_file(self.folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._rotate(owed)
        return target

    def declare_best(self, frame: int) -> None:
        """Make the existing checkpoint of `frame` the best one. Raises OSError if it does not exist, or if
        the newest checkpoint cannot be written."""
        self.path_of(frame).stat()
        for newest in self._newest_first()[:1]:
            write_atomic(newest / MANIFEST, _as_json({**_read_manifest(newest), "best": frame}))

    def latest(self) -> Checkpoint | None:
        """Load the newest complete checkpoint; None if there is none. Broken checkpoints are skipped with a
        warning.

        Raises InputError if the newest one has another format.
        """
        return self._first_whole(self._newest_first())

    def best(self) -> Checkpoint | None:
        """Load the checkpoint with the best evaluation score; None if there is none. Raises the errors of
        `latest`."""
        named = dict.fromkeys(facts.get("best") for facts in map(_read_manifest, self._newest_first()))
        return self._first_whole([self.path_of(frame) for frame in named if frame is not None])

    def at(self, frame: int) -> Checkpoint | None:
        """Load the checkpoint of `frame`; None if there is none. Raises the errors of `latest`."""
        return self._first_whole([path for path in [self.path_of(frame)] if path.is_dir()])

    def best_frame(self) -> int | None:
        """Return the frame of the best checkpoint, or None if there is none."""
        found = (facts for facts in map(_read_manifest, self._newest_first()) if facts)
        return next(found, {}).get("best")

    def load(self, path: Path) -> Checkpoint:
        """Load the checkpoint in the folder `path`.

        Raises DamagedFileError if the checkpoint is not complete, and InputError if its format cannot be
        read.
        """
        import torch  # imported late, as in `write`

        from labrl.run.tree import unpack

        manifest = _check(path)
        try:
            # Mapped, so that each array is copied only once, to the part of the session that keeps it.
            state = unpack(torch.load(path / STATE, map_location="cpu", mmap=True, weights_only=True))
        except Exception as error:  # torch raises many types on foreign files
            why = f"{STATE} contains more than plain data and tensors: {error}"
            raise DamagedFileError.about(path, why) from error
        return Checkpoint(path, int(manifest["frame"]), state, manifest["files"][STATE]["sha256"])

    def frames(self) -> list[int]:
        """Return the frames at which there is a checkpoint, complete or not, newest first. No files are
        read."""
        found = ((re.fullmatch(r"frame_(\d{12,})", path.name), path) for path in self.folder.glob("frame_*"))
        return sorted((int(match[1]) for match, path in found if match and path.is_dir()), reverse=True)

    def newest_whole_frame(self) -> int | None:
        """Return the frame of the checkpoint that `latest` loads; None if there is none. Broken checkpoints
        are reported only when a checkpoint is loaded.

        Raises InputError if the format of the newest checkpoint cannot be read.
        """
        return next(self.whole_frames(), None)

    def whole_frames(self) -> Iterator[int]:
        """Yield the frames of the complete checkpoints, newest first. Raises the errors of
        `newest_whole_frame`."""
        for path in self._newest_first():
            with suppress(DamagedFileError):
                yield int(_check(path)["frame"])

    def old(self) -> list[Path]:
        """Return the folders of all checkpoints that are older than the newest complete one, except the best
        checkpoint.

        Raises InputError if the newest one has another format.
        """
        newest, best = self.newest_whole_frame() or 0, self.best_frame()
        return [self.path_of(frame) for frame in self.frames() if frame < newest and frame != best]

    def copy_past(self, frame: int, target: Path) -> None:
        """Copy the checkpoint of `frame`, and the checkpoint that was the best at that frame, to the store in
        `target`.

        On the same disk, files are linked and take no additional space. Raises OSError if the checkpoint does
        not exist.
        """
        best = _read_manifest(self.path_of(frame)).get("best")
        for copied in {frame, frame if best is None else best}:
            source, copy = self.path_of(copied), CheckpointStore(target, 1).path_of(copied)
            copy.mkdir(parents=True)
            for name in (STATE, MANIFEST):
                try:
                    os.link(source / name, copy / name)  # takes no space while the source exists
                except FileNotFoundError:
                    raise
                except OSError:  # a file system without hard links
                    copy_synced(source / name, copy / name)
            sync_file(copy)
        sync_file(target)

    def refuse_broken(self, latest: Checkpoint | None) -> None:
        """Raise DamagedFileError if there are checkpoints but none is complete. latest: result of
        `self.latest()`."""
        if latest is None and self.broken:
            fix = f"Restore a checkpoint from a copy, or delete {self.folder.parent} to restart the session"
            raise DamagedFileError.about(self.folder, f"{self.broken_message}, and none is complete", fix)

    @property
    def broken_message(self) -> str:
        """Message, in one line, with the number of broken checkpoints and what is wrong with the newest of
        them."""
        path, why = next(iter(self.broken.items()))
        count = f"{len(self.broken)} checkpoint" + ("s are" if len(self.broken) > 1 else " is")
        return f"{count} broken in {self.folder} ({path.name}: {why})"

    def discard_after(self, frame: int) -> None:
        """Remove checkpoints later than `frame`, because a run that continues from `frame` will have a
        different future."""
        for later in self.frames():
            if later > frame:
                self._remove(self.path_of(later))

    def path_of(self, frame: int) -> Path:
        """Return the folder of the checkpoint of `frame`, whether or not it exists."""
        return self.folder / f"frame_{frame:012d}"

    def _newest_first(self) -> list[Path]:
        return [self.path_of(frame) for frame in self.frames()]

    def _first_whole(self, paths: Iterable[Path]) -> Checkpoint | None:
        for path in paths:
            try:
                whole = self.load(path)
            except DamagedFileError as error:
                self.broken[path] = str(error).removeprefix(f"{path}: ")
                continue
            if self.broken:
                _log.warning("%s: skipped", self.broken_message)
            return whole
        return None

    def _rotate(self, owed: int | None) -> None:
        """Remove the checkpoints that are neither `owed`, nor among the `keep_last` newest or kept ones, nor
        the best by the frame of one of these."""
        facts = {frame: _read_manifest(self.path_of(frame)) for frame in self.frames()}
        stay = [*facts][: self.keep_last] + [frame for frame in facts if facts[frame].get("keep")]
        needed = {owed, *stay, *(facts[frame].get("best") for frame in stay)}
        for frame in facts:
            if frame not in needed:
                self._remove(self.path_of(frame))

    def _remove(self, path: Path) -> None:
        # Renamed first, so that a kill during removal leaves nothing that looks like a checkpoint.
        retired = self.folder / f".{path.name}.old.tmp"
        os.replace(path, retired)
        shutil.rmtree(retired, ignore_errors=True)


def copy_replay(source: Path, target: Path) -> None:
    """Copy the files of a replay buffer, which its session may still be writing to.

    `written.npy` records how much of the other files has been overwritten. Files are copied in alphabetical
    order, so `written.npy` comes last and never understates the amount.
    """
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_dir():  # the files of another rank
            copy_replay(path, target / path.name)
        else:
            copy_synced(path, target / path.name)
    sync_file(target)


def _as_json(manifest: dict[str, Any]) -> bytes:
    """Encode a manifest as JSON, including its checksum."""
    manifest["checksum"] = _checksum(manifest)
    return (json.dumps(manifest, indent=2) + "\n").encode()


def _checksum(manifest: dict[str, Any]) -> str:
    """Return the checksum of a manifest. Without a checksum, a flipped bit could be mistaken for a newer
    format version."""
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint; an empty dict if it is missing or damaged."""
    with suppress(OSError, ValueError):
        manifest = json.loads((path / MANIFEST).read_bytes())
        if isinstance(manifest, dict) and manifest.get("checksum") == _checksum(manifest):
            return manifest
    return {}


def _check(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint, after checking its format and the checksum of the state. Raises
    DamagedFileError, or InputError for another format."""
    try:
        if not (manifest := _read_manifest(path)):
            raise OSError(f"{MANIFEST} is missing or damaged")
        check_format(path, manifest["format_version"], FORMAT_VERSION)
        with open(path / STATE, "rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        if checksum != manifest["files"][STATE]["sha256"]:
            raise ValueError(f"{STATE} does not have the checksum that was written")
    except LabrlError:
        raise
    except Exception as error:  # the files may contain anything, and fail in any way
        raise DamagedFileError.about(path, str(error)) from error
    return manifest
