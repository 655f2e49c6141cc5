"""Checkpoints: folders that are either complete or absent, and that are loaded without executing code.

checkpoints/frame_000000100000/     one checkpoint; best/ has the same files
    manifest.json                   format version, frame, size and SHA-256 of the other file
    state.pt                        the nested state, for torch.load(weights_only=True)
    best/, replay/                  in a kept checkpoint: the best one by then, and the replay buffer
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from labrl.errors import DamagedFileError, InputError, LabrlError
from labrl.run.atomic import HashedFile, copy_synced, sync_file, write_atomic, write_synced
from labrl.run.folder import check_format

FORMAT_VERSION = 2
"""Version of the format of a checkpoint. In every version, the manifest has `format_version`, `frame` and
`checksum`."""

MANIFEST, STATE = "manifest.json", "state.pt"
REPLAY = "replay"
"""Name of the folder of a replay buffer that is stored in files, in a session's folder and, as a copy, in
kept checkpoints."""

BEST = "best"

_log = logging.getLogger(__name__)


def frames_in(checkpoints: Path) -> list[int]:
    """Return the frames at which a folder has a checkpoint, complete or not, newest first. No files are
    read."""
    found = ((re.fullmatch(r"frame_(\d{12,})", path.name), path) for path in checkpoints.glob("frame_*"))
    return sorted((int(match[1]) for match, path in found if match and path.is_dir()), reverse=True)


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
    told = " ".join(f"{type(error).__name__}: {error}".split())
    sizes = re.findall(r"size mismatch for (\S+): .*?Size\(\[(.*?)\]\).*?Size\(\[(.*?)\]\)", told)
    if "loading state_dict" not in told:
        return told[:300]
    listed = [f"{name} is [{then}], not [{now}]" for name, then, now in sizes]
    listed += [f"only one of the networks has {name}" for name in re.findall(r'"([\w.]+)"', told)]
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return f"weights of another size cannot be loaded: {', '.join(listed[:3])}{more}"


class CheckpointStore:
    """The checkpoints of a session in one folder: the `keep_last` newest, those that are kept permanently,
    and the best.

    Nothing is written before the first `save`, so a store can also read a folder that is not writable.
    """

    def __init__(self, folder: Path, keep_last: int) -> None:
        self.folder = folder
        self.keep_last = keep_last
        self.broken: dict[Path, str] = {}
        """The checkpoints that were skipped while loading, newest first, each with the reason."""
        self._ready = False
        self._kept: set[int] = set()

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
        best: bool = False,
        owed: int | None = None,
        keep: bool = False,
        replay: Path | None = None,
    ) -> Path:
        """Write a packed state as the checkpoint of `frame`, and also as `best/` if `best`. Return its
        folder.

        Once the new checkpoint is on disk, checkpoints older than the `keep_last` newest are removed, except
        the checkpoint of frame `owed`, which `declare_best` may still need. If `keep`, the checkpoint is
        never removed, and includes files that a fork from it needs but that training replaces: the best
        checkpoint, and the files in the folder `replay`. Raises OSError if the disk fails; the earlier
        checkpoints then still exist.
        """
        self._make_ready()
        target = self._at(frame)
        temporary = self._temporary(target.name)
        try:
            # Training replaces these files later.
            if keep and not best and self.best_frame() is not None:
                (temporary / BEST).mkdir()
                _link_files(self.folder / BEST, temporary / BEST)
            if keep and replay is not None:
                copy_replay(replay, temporary / REPLAY)
            _write(temporary, frame, packed, best, keep)
            self._publish(temporary, target)
            if best:
                self._publish_best(target)
        except OSError:
            self._ready = False  # the next write removes or completes what this call has left behind
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if keep:
            self._kept.add(frame)
        for old in [one for one in self.frames() if one <= frame][self.keep_last :]:
            if old != owed and old not in self._kept:
                self._remove(self._at(old))
        return target

    def declare_best(self, frame: int) -> None:
        """Make the existing checkpoint of `frame` the best one. Raises OSError if there is no such
        checkpoint, or if its manifest cannot be read."""
        self._make_ready()
        path = self._at(frame)
        try:
            manifest = _read_manifest(path)
        except ValueError as error:
            raise OSError(f"{path}: {error}") from error
        write_atomic(path / MANIFEST, _as_json({**manifest, "best": True}))
        self._publish_best(path)

    def latest(self) -> Checkpoint | None:
        """Load the newest complete checkpoint; None if there is none. Broken checkpoints are skipped with a
        warning.

        Raises InputError if the newest one has another format.
        """
        return self._first_whole(self._newest_first())

    def best(self) -> Checkpoint | None:
        """Load the checkpoint with the best evaluation score; None if there is none. Raises the errors of
        `latest`."""
        # If a process is killed after writing a checkpoint and before linking it to best/, only the manifest
        # marks the checkpoint as the best.
        marked = [path for path in self._newest_first() if _claims_best(path)]
        named = [path for path in (self.folder / BEST, self._retired(BEST)) if path.is_dir()]
        return self._first_whole(sorted(marked + named, key=_claimed_frame, reverse=True))

    def at(self, frame: int) -> Checkpoint | None:
        """Load the checkpoint of `frame`, even if only `best/` contains it; None if there is none. Raises the
        errors of `latest`."""
        named = [self._at(frame), *([self.folder / BEST] if self.best_frame() == frame else [])]
        return self._first_whole([path for path in named if path.is_dir()])

    def best_frame(self) -> int | None:
        """Return the frame of the checkpoint in `best/`, or None if there is none."""
        frame = _claimed_frame(self.folder / BEST)
        return None if frame < 0 else frame

    def load(self, path: Path) -> Checkpoint:
        """Load the checkpoint in the folder `path`.

        Raises DamagedFileError if the checkpoint is not complete, and InputError if its format cannot be
        read.
        """
        with _damages(path):
            manifest = _checked_manifest(path)
            import torch  # imported late, as in `_write`

            from labrl.run.tree import unpack

            with open(path / STATE, "rb") as file:
                checksum = hashlib.file_digest(file, "sha256").hexdigest()
            if checksum != manifest["files"][STATE]["sha256"]:
                raise ValueError(f"{STATE} does not have the checksum that was written")
            try:
                # Mapped, so that each array is copied only once, to the part of the session that keeps it.
                state = unpack(torch.load(path / STATE, map_location="cpu", mmap=True, weights_only=True))
            except Exception as error:  # torch raises many types on foreign files
                raise ValueError(f"{STATE} contains more than plain data and tensors: {error}") from error
            return Checkpoint(path, int(manifest["frame"]), state, checksum)

    def frames(self) -> list[int]:
        """Return the frames at which there is a checkpoint, complete or not, newest first."""
        return frames_in(self.folder)

    def newest_whole_frame(self) -> int | None:
        """Return the frame of the newest checkpoint that is complete according to its manifest; None if there
        is none.

        No state is read, so damage that does not change file sizes is found only when a checkpoint is loaded.
        Broken checkpoints are reported only then, too. Raises InputError if the format of the newest
        checkpoint cannot be read.
        """
        for path in self._newest_first():
            with suppress(DamagedFileError), _damages(path):
                return int(_checked_manifest(path)["frame"])
        return None

    def whole_frames(self) -> list[int]:
        """Return the frames whose checkpoint is complete according to its manifest, including the best one,
        in increasing order."""
        whole = set()
        for path in [*self._newest_first(), self.folder / BEST]:
            with suppress(LabrlError), _damages(path):
                whole.add(int(_checked_manifest(path)["frame"]))
        return sorted(whole)

    def old(self) -> list[Path]:
        """Return the folders of all checkpoints that are older than the newest complete one, except the best
        checkpoint.

        Raises InputError if the newest one has another format.
        """
        newest, best = self.newest_whole_frame() or 0, self.best_frame()
        return [self._at(frame) for frame in self.frames() if frame < newest and frame != best]

    def copy_past(self, frame: int, target: Path) -> None:
        """Copy the checkpoint of `frame`, and the checkpoint that was the best at that frame, to the store in
        `target`.

        On the same disk, files are linked and take no additional space. Raises OSError if the checkpoint does
        not exist.
        """
        source = self._path_of(frame)
        flagged = [path for path in self._newest_first() if _claims_best(path)]
        bests = [source / BEST] if (source / BEST).is_dir() else [self.folder / BEST, *flagged]
        by_then = [path for path in bests if 0 <= _claimed_frame(path) <= frame]
        copies = {target / f"frame_{frame:012d}": source}
        if by_then:
            copies[target / BEST] = max(by_then, key=_claimed_frame)
        for copy, original in copies.items():
            copy.mkdir(parents=True)
            _link_files(original, copy)
        sync_file(target)

    def replay_of(self, frame: int) -> Path | None:
        """Return the folder with the copy of a replay buffer in the checkpoint of `frame`; None if it has no
        copy."""
        copy = self._path_of(frame) / REPLAY
        return copy if copy.is_dir() else None

    def _at(self, frame: int) -> Path:
        return self.folder / f"frame_{frame:012d}"

    def _path_of(self, frame: int) -> Path:
        path = self._at(frame)
        return self.folder / BEST if not path.is_dir() and self.best_frame() == frame else path

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
                _log.warning("%s: skipped", self.broken_message)
            return whole
        return None

    def _make_ready(self) -> None:
        """Prepare the folder for the first write: complete or remove what a killed process left behind."""
        if self._ready:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        sync_file(self.folder.parent)
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

    def _publish(self, temporary: Path, target: Path) -> None:
        """Move a completely written folder to its final place. An existing folder there is first moved away,
        because a folder cannot be renamed over one that has content."""
        retired = self._retired(target.name)
        if target.exists():
            shutil.rmtree(retired, ignore_errors=True)
            os.replace(target, retired)
        os.replace(temporary, target)
        sync_file(self.folder)
        shutil.rmtree(retired, ignore_errors=True)

    def _publish_best(self, source: Path) -> None:
        temporary = self._temporary(BEST)
        _link_files(source, temporary)
        self._publish(temporary, self.folder / BEST)

    def _remove(self, path: Path) -> None:
        # Renamed first, so that a kill during removal leaves nothing that looks like a checkpoint.
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


def _link_files(source: Path, target: Path) -> None:
    """Link the manifest and the state of the checkpoint in `source` to the folder `target`."""
    for name in (STATE, MANIFEST):
        try:
            os.link(source / name, target / name)  # takes no space while the source exists
        except FileNotFoundError:
            raise
        except OSError:  # a file system without hard links
            copy_synced(source / name, target / name)
    sync_file(target)


def _write(folder: Path, frame: int, packed: Any, best: bool, keep: bool) -> None:
    import torch  # takes a second to import, and is not needed to inspect a folder

    file = HashedFile(folder / STATE)
    # Written directly to disk, because a rollout of images takes tens of megabytes.
    torch.save(packed, cast(IO[bytes], file))
    files = {STATE: file.finish()}
    facts = {"format_version": FORMAT_VERSION, "frame": frame, "best": best, "keep": keep}
    manifest = {**facts, "files": files}
    write_synced(folder / MANIFEST, _as_json(manifest))
    sync_file(folder)


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
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("checksum") != _checksum(manifest):
        raise ValueError(f"{MANIFEST} is damaged")
    return manifest


def _claims(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint; an empty dict if it is missing or damaged."""
    try:
        return _read_manifest(path)
    except (OSError, ValueError):
        return {}


def _claims_best(path: Path) -> bool:
    return bool(_claims(path).get("best"))


def _claimed_frame(path: Path) -> int:
    """Return the frame in the manifest of a checkpoint; -1 if the manifest cannot be read."""
    return int(_claims(path).get("frame", -1))


@contextmanager
def _damages(path: Path) -> Iterator[None]:
    """Context manager: convert every error while reading a checkpoint to DamagedFileError, except a
    LabrlError such as that for an unknown format."""
    try:
        yield
    except LabrlError:
        raise
    except Exception as error:  # the files may contain anything, and fail in any way
        raise DamagedFileError.about(path, str(error)) from error


def _checked_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint, after checking the format, and that the file with the state exists
    and has the size that was written."""
    manifest = _read_manifest(path)
    check_format(path, manifest["format_version"], FORMAT_VERSION)
    size, expected = (path / STATE).stat().st_size, manifest["files"][STATE]["size"]
    if size != expected:
        raise ValueError(f"{STATE} has {size} bytes, {expected} were written")
    return manifest
