"""Checkpoints: folders that are either whole or not there, and that load without executing code.

checkpoints/frame_000000100000/     also best/ and best_before/, of the same shape
    manifest.json                   format version, frame, size and SHA-256 of the other file
    state.pt                        the nested state, for torch.load(weights_only=True)
    best/, replay/                  of a kept one: the best checkpoint at its frame, the replay buffer's files
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from labrl.errors import DamagedFileError, InputError, LabrlError
from labrl.storage.atomic import HashedFile, copy_synced, sync_file, write_atomic, write_synced
from labrl.storage.folder import check_format
from labrl.storage.run_folder import REPLAY, frames_in

FORMAT_VERSION = 2
"""Version of the format of a checkpoint. Whatever the version, the manifest keeps `format_version`, `frame`
and `checksum`."""

MANIFEST, STATE = "manifest.json", "state.pt"
BEST = "best"
BEFORE = "best_before"
"""The best checkpoint before a provisional one."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint, loaded. Its tensors are on the CPU, large ones mapped to the file."""

    path: Path
    frame: int
    state: Any
    checksum: str = ""
    """SHA-256 of the file with the state."""


@contextmanager
def loading(path: str) -> Iterator[None]:
    """While a state is loaded: raises InputError where it is the state of something else.

    path: of the checkpoint, or of the folder whose newest one it is.
    """
    try:
        yield
    except LabrlError:
        raise
    except Exception as error:  # by whatever part does not find what it saved
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"{path} does not fit the configuration: {why[:300]}. Networks, optimizer, replay buffer and "
            "transforms must be those that were saved: undo what you changed.",
            code="changed-past",
            key=path,
        ) from error


class CheckpointStore:
    """The checkpoints of one session in one folder: the `keep_last` newest, the kept ones, and the best.

    Nothing is written before the first `save`, so a store also reads what may not be written.
    """

    def __init__(self, folder: Path, keep_last: int) -> None:
        self.folder = folder
        self.keep_last = keep_last
        self.broken: dict[Path, str] = {}
        """The checkpoints that were skipped while loading, the newest first, and why."""
        self._ready = False
        self._kept: set[int] = set()

    def save(self, frame: int, state: Any, **how: Any) -> Path:
        """Pack `state` and do with it as `write` does, with the arguments `how`; returns the folder.

        Raises TypeError if it holds anything but plain data, arrays and tensors, and what `write` raises.
        """
        from labrl.storage.tree import pack  # loads PyTorch, which looking at a folder does without

        return self.write(frame, pack(state), **how)

    def write(
        self,
        frame: int,
        packed: Any,
        best: bool = False,
        owed: int | None = None,
        provisional: bool = False,
        keep: bool = False,
        replay: Path | None = None,
    ) -> Path:
        """Write a packed state as the checkpoint of `frame`, also as `best/` if `best`; returns its folder.

        Once it lies on the disk, those older than the `keep_last` newest are removed, but for that of frame
        `owed`, which `declare_best` may be asked for. With `provisional` the best one until now is kept, for
        `take_back_best`. With `keep` it is never removed, and holds what a fork from it needs and training
        replaces: the best checkpoint, and the files of the folder `replay`. Raises OSError if the disk
        refuses; then what was there before still is.
        """
        self._make_ready()
        target = self._at(frame)
        temporary = self._temporary(target.name)
        try:
            if keep:
                self._add_past(temporary, best, replay)
            _write(temporary, frame, packed, best, keep)
            self._publish(temporary, target)
            if best and provisional:
                self._keep_best_before(frame)
            if best:
                self._publish_best(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if keep:
            self._kept.add(frame)
        for old in [one for one in self.frames() if one <= frame][self.keep_last :]:
            if old != owed and old not in self._kept:
                self._remove(self._at(old))
        return target

    def declare_best(self, frame: int) -> None:
        """Let the checkpoint of `frame`, written before, be the best. Raises OSError where there is none."""
        self._make_ready()
        _mark(self._at(frame), best=True)
        self._publish_best(self._at(frame))

    def take_back_best(self, frame: int) -> None:
        """Let the checkpoint of `frame`, provisionally the best, not be it; the one before is it again."""
        self._make_ready()
        best, before = self.folder / BEST, self.folder / BEFORE
        if _claims_best(self._at(frame)):
            _mark(self._at(frame), best=False)
        if self.best_frame() == frame:
            if before.is_dir():
                self._publish(before, best)
            else:
                self._remove(best)

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint, or None; broken ones are reported and skipped.

        Raises InputError if the newest one has another format.
        """
        return self._first_whole(self._newest_first())

    def best(self) -> Checkpoint | None:
        """The checkpoint with the best evaluation score, or None; raises as `latest`."""
        # A kill between writing a checkpoint and putting it at best/ leaves it marked in its manifest.
        marked = [path for path in self._newest_first() if _claims_best(path)]
        named = [path for path in (self.folder / BEST, self._retired(BEST)) if path.is_dir()]
        return self._first_whole(sorted(marked + named, key=_claimed_frame, reverse=True))

    def at(self, frame: int) -> Checkpoint | None:
        """The checkpoint of `frame`, the best one included, or None; raises as `latest`."""
        named = [self._at(frame), *([self.folder / BEST] if self.best_frame() == frame else [])]
        return self._first_whole([path for path in named if path.is_dir()])

    def best_frame(self) -> int | None:
        """The frame of the checkpoint in `best/`, None where there is none."""
        frame = _claimed_frame(self.folder / BEST)
        return None if frame < 0 else frame

    def load(self, path: Path) -> Checkpoint:
        """The checkpoint in folder `path`.

        Raises DamagedFileError if it is not whole, InputError if it has another format.
        """
        with _damages(path):
            return _read(path)

    def frames(self) -> list[int]:
        """The frames of which there is a checkpoint, whole or not, newest first."""
        return frames_in(self.folder)

    def newest_whole_frame(self) -> int | None:
        """Return the frame of the newest checkpoint that is whole by its manifest, None where there is none.

        Reads no state: damage that leaves the sizes of files as they were is found by whoever loads, who also
        reports what is broken. Raises InputError if the newest one has another format.
        """
        for path in self._newest_first():
            with suppress(DamagedFileError), _damages(path):
                return int(_checked_manifest(path)["frame"])
        return None

    def whole_frames(self) -> list[int]:
        """Return the frames of which a checkpoint is whole by its manifest, the best included, in order."""
        whole = set()
        for path in [*self._newest_first(), self.folder / BEST]:
            with suppress(LabrlError), _damages(path):
                whole.add(int(_checked_manifest(path)["frame"]))
        return sorted(whole)

    def copy_past(self, frame: int, target: Path) -> None:
        """Copy the checkpoint of `frame`, and what was the best one by then, to the store in `target`.

        What lies on the same disk is linked, which takes no room. Raises OSError where it is not there.
        """
        source = self._path_of(frame)
        flagged = [path for path in self._newest_first() if _claims_best(path)]
        bests = [source / BEST] if (source / BEST).is_dir() else [self.folder / BEST, *flagged]
        by_then = [path for path in bests if 0 <= _claimed_frame(path) <= frame]
        copies = {target / f"frame_{frame:012d}": source}
        if by_then:
            copies[target / BEST] = max(by_then, key=_claimed_frame)
        if 0 <= _claimed_frame(self.folder / BEFORE) < frame:
            copies[target / BEFORE] = self.folder / BEFORE
        for copy, original in copies.items():
            copy.mkdir(parents=True)
            _link_files(original, copy)
        sync_file(target)

    def replay_of(self, frame: int) -> Path | None:
        """Return the copy of a replay buffer that belongs to the checkpoint of `frame`, if it has one."""
        copy = self._path_of(frame) / REPLAY
        return copy if copy.is_dir() else None

    def _at(self, frame: int) -> Path:
        return self.folder / f"frame_{frame:012d}"

    def _path_of(self, frame: int) -> Path:
        path = self._at(frame)
        return self.folder / BEST if not path.is_dir() and self.best_frame() == frame else path

    def refuse_broken(self, latest: Checkpoint | None) -> None:
        """Raise DamagedFileError where there are checkpoints and `latest` found none whole."""
        if latest is None and self.broken:
            raise DamagedFileError(
                f"{self.told_broken}, and none is whole. Restore one from a copy, or delete "
                f"{self.folder.parent} to begin the session again.",
                key=str(self.folder),
            )

    @property
    def told_broken(self) -> str:
        """Return, in one line, how many checkpoints are broken and what is wrong with the first."""
        path, why = next(iter(self.broken.items()))
        count = f"{len(self.broken)} checkpoint" + ("s are" if len(self.broken) > 1 else " is")
        return f"{count} broken in {self.folder} ({path.name}: {why})"

    def discard_after(self, frame: int) -> None:
        """Remove checkpoints later than `frame`: a run that goes on from there has another future."""
        for later in self.frames():
            if later > frame:
                self._remove(self._at(later))

    def _newest_first(self) -> list[Path]:
        return [self._at(frame) for frame in self.frames()]

    def _first_whole(self, paths: list[Path]) -> Checkpoint | None:
        for path in paths:
            try:
                whole = self.load(path)
            except DamagedFileError as error:
                self.broken[path] = str(error).removeprefix(f"{path}: ")
                continue
            if self.broken:
                _log.warning("%s: skipped", self.told_broken)
            return whole
        return None

    def _make_ready(self) -> None:
        """Before the first write: finish or clear away what a killed process left behind."""
        if self._ready:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        retired, best = self._retired(BEST), self.folder / BEST
        if retired.exists() and not best.exists():
            os.replace(retired, best)
        marked = next((path for path in self._newest_first() if _claims_best(path)), None)
        if marked is not None and _claimed_frame(marked) > _claimed_frame(best):
            self._publish_best(marked)
        for leftover in self.folder.glob(".*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)
        self._kept = {frame for frame in self.frames() if _claims(self._at(frame)).get("keep")}
        self._ready = True

    def _add_past(self, kept: Path, is_best: bool, replay: Path | None) -> None:
        """Put into the folder of a kept checkpoint what training replaces later."""
        if not is_best and self.best_frame() is not None:
            (kept / BEST).mkdir()
            _link_files(self.folder / BEST, kept / BEST)
        if replay is not None:
            copy_replay(replay, kept / REPLAY)

    def _publish(self, temporary: Path, target: Path) -> None:
        """Put a written folder in its place; a folder cannot be renamed over one that has content."""
        retired = self._retired(target.name)
        if target.exists():
            shutil.rmtree(retired, ignore_errors=True)
            os.replace(target, retired)
        os.replace(temporary, target)
        sync_file(self.folder)
        shutil.rmtree(retired, ignore_errors=True)

    def _keep_best_before(self, frame: int) -> None:
        if self.best_frame() not in (None, frame):
            shutil.rmtree(self.folder / BEFORE, ignore_errors=True)
            os.replace(self.folder / BEST, self.folder / BEFORE)

    def _publish_best(self, source: Path) -> None:
        temporary = self._temporary(BEST)
        _link_files(source, temporary)
        self._publish(temporary, self.folder / BEST)

    def _remove(self, path: Path) -> None:
        # renamed first, so that a kill while removing leaves nothing that looks like a checkpoint
        retired = self._retired(path.name)
        os.replace(path, retired)
        shutil.rmtree(retired, ignore_errors=True)

    def _temporary(self, name: str) -> Path:
        path = self.folder / f".{name}.new.tmp"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def _retired(self, name: str) -> Path:
        return self.folder / f".{name}.old.tmp"


def copy_replay(source: Path, target: Path) -> None:
    """Copy the files of a replay buffer, which its session may go on writing to.

    `written.npy`, which says how far the others are overwritten, comes last by its name: so it never says too
    little of them.
    """
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_dir():  # of another rank
            copy_replay(path, target / path.name)
        else:
            copy_synced(path, target / path.name)
    sync_file(target)


def _link_files(source: Path, target: Path) -> None:
    """Let the folder `target` have the manifest and the state of the checkpoint in `source`."""
    for name in (STATE, MANIFEST):
        try:
            os.link(source / name, target / name)  # costs no space as long as the source is kept
        except FileNotFoundError:
            raise
        except OSError:  # a file system without hard links
            copy_synced(source / name, target / name)
    sync_file(target)


def _write(folder: Path, frame: int, packed: Any, best: bool, keep: bool) -> None:
    import torch  # which takes a second to load, and looking at a folder does without

    file = HashedFile(folder / STATE)
    # Straight to the disk: a rollout of frames is tens of megabytes.
    torch.save(packed, cast(IO[bytes], file))
    files = {STATE: file.finish()}
    facts = {"format_version": FORMAT_VERSION, "frame": frame, "best": best, "keep": keep}
    manifest = {**facts, "files": files}
    write_synced(folder / MANIFEST, _as_json(manifest))
    sync_file(folder)


def _mark(path: Path, best: bool) -> None:
    """Write into the manifest whether the checkpoint is the best. Raises OSError where it cannot be read."""
    try:
        manifest = _read_manifest(path)
    except ValueError as error:
        raise OSError(f"{path}: {error}") from error
    write_atomic(path / MANIFEST, _as_json({**manifest, "best": best}))


def _as_json(manifest: dict[str, Any]) -> bytes:
    """Return the manifest as JSON, with its checksum."""
    manifest["checksum"] = _checksum(manifest)
    return (json.dumps(manifest, indent=2) + "\n").encode()


def _checksum(manifest: dict[str, Any]) -> str:
    """Return the checksum of the manifest: without it, one flipped bit could pass for a newer version."""
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("checksum") != _checksum(manifest):
        raise ValueError(f"{MANIFEST} is damaged")
    return manifest


def _claims(path: Path) -> dict[str, Any]:
    """Return the manifest; empty where it is missing or damaged."""
    try:
        return _read_manifest(path)
    except (OSError, ValueError):
        return {}


def _claims_best(path: Path) -> bool:
    return bool(_claims(path).get("best"))


def _claimed_frame(path: Path) -> int:
    """Return the frame in a manifest, -1 where it cannot be read."""
    return int(_claims(path).get("frame", -1))


@contextmanager
def _damages(path: Path) -> Iterator[None]:
    """Raise DamagedFileError, or InputError for another format, whatever reading a checkpoint raises."""
    try:
        yield
    except LabrlError:
        raise
    except Exception as error:  # what lies there may be anything, and fail in any way
        raise DamagedFileError(f"{path}: {error}", key=str(path)) from error


def _checked_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose file is there and has the size with which it was written."""
    manifest = _read_manifest(path)
    check_format(path, manifest["format_version"], FORMAT_VERSION)
    size, expected = (path / STATE).stat().st_size, manifest["files"][STATE]["size"]
    if size != expected:
        raise ValueError(f"{STATE} has {size} bytes, {expected} were written")
    return manifest


def _read(path: Path) -> Checkpoint:
    import torch  # see `_write`

    from labrl.storage.tree import unpack

    manifest = _checked_manifest(path)
    with open(path / STATE, "rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    if checksum != manifest["files"][STATE]["sha256"]:
        raise ValueError(f"{STATE} does not have the checksum with which it was written")
    try:
        # Mapped, so that an array is copied once, to where a part of the session keeps it.
        state = unpack(torch.load(path / STATE, map_location="cpu", mmap=True, weights_only=True))
    except Exception as error:  # torch raises many types on foreign files
        raise ValueError(f"{STATE} holds something other than plain data and tensors: {error}") from error
    return Checkpoint(path, int(manifest["frame"]), state, checksum)
