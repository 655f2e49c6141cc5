"""Checkpoints: folders that are either whole or not there, and that load without executing code.

checkpoints/frame_000000100000/     also best/ and best_before/, of the same shape
    manifest.json                   format version, frame, sizes and SHA-256 of the other files
    state.json                      the nested state, its arrays and tensors by name
    tensors.pt                      name -> tensor, for torch.load(weights_only=True)
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from labrl.errors import DamagedFileError, InputError, LabrlError
from labrl.storage.atomic import HashedFile, sync_folder, write_atomic, write_synced
from labrl.storage.marker import newer
from labrl.storage.tree import flatten, restore

FORMAT_VERSION = 1
"""Of a checkpoint. Whatever the version, the manifest keeps `format_version`, `frame` and `checksum`."""

MANIFEST, TREE, TENSORS = "manifest.json", "state.json", "tensors.pt"
BEST = "best"
BEFORE = "best_before"
"""The best checkpoint before a provisional one."""

Found = TypeVar("Found")

_FRAME = re.compile(r"frame_(\d{12,})")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint, loaded. Its tensors are on the CPU."""

    path: Path
    frame: int
    state: Any


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


class Taken(NamedTuple):
    """A state on its way to the disk."""

    tree: Any
    """What JSON can hold of it."""
    tensors: dict[str, Tensor]
    """The rest: the session's own, which may not change before they are written."""

    @classmethod
    def of(cls, state: Any) -> Taken:
        """Raises TypeError if `state` holds anything but plain data, arrays and tensors."""
        return cls(*flatten(state))

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def copied(self) -> Taken:
        """The same in memory of its own, so that the session can go on."""
        return Taken(self.tree, {name: tensor.clone() for name, tensor in self.tensors.items()})


class CheckpointStore:
    """The checkpoints of one session in one folder: the `keep_last` newest, and the best.

    Nothing is written before the first `save`, so a store also reads what may not be written.
    """

    def __init__(self, folder: Path, keep_last: int) -> None:
        self.folder = folder
        self.keep_last = keep_last
        self.broken: dict[Path, str] = {}
        """The checkpoints that were skipped while loading, the newest first, and why."""
        self._ready = False

    def save(
        self, frame: int, state: Any, best: bool = False, kept: int | None = None, provisional: bool = False
    ) -> Path:
        """Write `state` as the checkpoint of `frame`, also as `best/` if `best`; returns its folder.

        Once it lies on the disk, those older than the `keep_last` newest are removed, but for that of frame
        `kept`, which `declare_best` may be asked for. With `provisional` the best one until now is kept, for
        `take_back_best`. Raises TypeError if `state` holds anything but plain data, arrays and tensors,
        OSError if the disk refuses; then what was there before still is.
        """
        return self.write(frame, Taken.of(state), best, kept, provisional)

    def write(
        self,
        frame: int,
        taken: Taken,
        best: bool = False,
        kept: int | None = None,
        provisional: bool = False,
    ) -> Path:
        """`save`, of a state that was taken before."""
        self._make_ready()
        target = self.folder / f"frame_{frame:012d}"
        temporary = self._temporary(target.name)
        try:
            _write(temporary, frame, taken, best)
            self._publish(temporary, target)
            if best and provisional:
                self._keep_best_before(frame)
            if best:
                self._publish_best(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        for old in [path for path in self._newest_first() if _frame(path) <= frame][self.keep_last :]:
            if _frame(old) != kept:
                self._remove(old)
        return target

    def declare_best(self, frame: int) -> None:
        """Let the checkpoint of `frame`, written before, be the best. Raises OSError where there is none."""
        self._make_ready()
        path = self.folder / f"frame_{frame:012d}"
        try:
            manifest = _read_manifest(path)
        except ValueError as error:
            raise OSError(f"{path}: {error}") from error
        _mark(path, manifest, best=True)
        self._publish_best(path)

    def take_back_best(self, frame: int) -> None:
        """Let the checkpoint of `frame`, provisionally the best, not be it; the one before is it again."""
        self._make_ready()
        path, best, before = (self.folder / name for name in (f"frame_{frame:012d}", BEST, BEFORE))
        if _claims_best(path):
            _mark(path, _read_manifest(path), best=False)
        if self.best_frame() == frame:
            if before.is_dir():
                self._publish(before, best)
            else:
                self._remove(best)

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint, or None; broken ones are reported and skipped.

        Raises InputError if the newest one comes from a newer labrl.
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
        named = [self.folder / f"frame_{frame:012d}"]
        if self.best_frame() == frame:
            named.append(self.folder / BEST)
        return self._first_whole([path for path in named if path.is_dir()])

    def best_frame(self) -> int | None:
        """The frame of the checkpoint in `best/`, None where there is none."""
        frame = _claimed_frame(self.folder / BEST)
        return None if frame < 0 else frame

    def load(self, path: Path) -> Checkpoint:
        """The checkpoint in folder `path`.

        Raises DamagedFileError if it is not whole, InputError if a newer labrl wrote it.
        """
        return _whole(_read, path)

    def frames(self) -> list[int]:
        """The frames of which there is a checkpoint, whole or not, newest first."""
        return [_frame(path) for path in self._newest_first()]

    def newest_whole_frame(self) -> int | None:
        """The frame of the checkpoint that `latest` would give, None where there is none; raises as it does.

        Broken ones are passed over in silence: whoever loads hears of them.
        """
        for path in self._newest_first():
            with suppress(DamagedFileError):
                return _whole(_checked_frame, path)
        return None

    def refuse_broken(self, latest: Checkpoint | None) -> None:
        """Raises DamagedFileError where there are checkpoints and `latest` found none whole."""
        if latest is None and self.broken:
            raise DamagedFileError(
                f"{self.told_broken}, and none is whole. Restore one from a copy, or delete "
                f"{self.folder.parent} to begin the session again.",
                key=str(self.folder),
            )

    @property
    def told_broken(self) -> str:
        """How many of the checkpoints are broken and what is wrong with the first of them, in a line."""
        path, why = next(iter(self.broken.items()))
        count = f"{len(self.broken)} checkpoint" + ("s are" if len(self.broken) > 1 else " is")
        return f"{count} broken in {self.folder} ({path.name}: {why})"

    def discard_after(self, frame: int) -> None:
        """Remove checkpoints later than `frame`: a run that goes on from there has another future."""
        for path in self._newest_first():
            if _frame(path) > frame:
                self._remove(path)

    def _newest_first(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        found = [path for path in self.folder.iterdir() if _FRAME.fullmatch(path.name) and path.is_dir()]
        return sorted(found, key=_frame, reverse=True)

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
        self._ready = True

    def _publish(self, temporary: Path, target: Path) -> None:
        """Put a written folder in its place; a folder cannot be renamed over one that has content."""
        retired = self._retired(target.name)
        if target.exists():
            shutil.rmtree(retired, ignore_errors=True)
            os.replace(target, retired)
        os.replace(temporary, target)
        sync_folder(self.folder)
        shutil.rmtree(retired, ignore_errors=True)

    def _keep_best_before(self, frame: int) -> None:
        if self.best_frame() not in (None, frame):
            shutil.rmtree(self.folder / BEFORE, ignore_errors=True)
            os.replace(self.folder / BEST, self.folder / BEFORE)

    def _publish_best(self, source: Path) -> None:
        temporary = self._temporary(BEST)
        for path in source.iterdir():
            try:
                os.link(path, temporary / path.name)  # costs no space as long as the source is kept
            except OSError:  # a file system without hard links
                write_synced(temporary / path.name, path.read_bytes())
        sync_folder(temporary)
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


def _frame(path: Path) -> int:
    return int(path.name.removeprefix("frame_"))


def _write(folder: Path, frame: int, taken: Taken, best: bool) -> None:
    manifest: dict[str, Any] = {"format_version": FORMAT_VERSION, "frame": frame, "best": best}
    # allow_nan=False: JSON that every reader can read
    tree_file = HashedFile(folder / TREE)
    tree_file.write(json.dumps(taken.tree, allow_nan=False).encode())
    tensors_file = HashedFile(folder / TENSORS)
    # straight to the disk: a rollout of frames is tens of megabytes
    torch.save(taken.tensors, cast(IO[bytes], tensors_file))
    manifest["files"] = {TREE: tree_file.finish(), TENSORS: tensors_file.finish()}
    write_synced(folder / MANIFEST, _as_json(manifest))
    sync_folder(folder)


def _mark(path: Path, manifest: dict[str, Any], best: bool) -> None:
    write_atomic(path / MANIFEST, _as_json({**manifest, "best": best}))


def _as_json(manifest: dict[str, Any]) -> bytes:
    """With its checksum."""
    manifest["checksum"] = _checksum(manifest)
    return (json.dumps(manifest, indent=2) + "\n").encode()


def _checksum(manifest: dict[str, Any]) -> str:
    """Of the manifest itself: without it, one flipped bit could pass for a newer version."""
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


def _claims_best(path: Path) -> bool:
    try:
        return bool(_read_manifest(path)["best"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _claimed_frame(path: Path) -> int:
    """The frame in a manifest, -1 where it cannot be read."""
    try:
        return int(_read_manifest(path)["frame"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def _whole(read: Callable[[Path], Found], path: Path) -> Found:
    """What `read` finds in a checkpoint. Raises DamagedFileError, InputError if it is too new."""
    try:
        return read(path)
    except LabrlError:
        raise
    except Exception as error:  # what lies there may be anything, and fail in any way
        raise DamagedFileError(f"{path}: {error}", key=str(path)) from error


def _checked(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Manifest and contents of a checkpoint whose files are as they were written."""
    manifest = _read_manifest(path)
    if manifest["format_version"] > FORMAT_VERSION:
        raise newer(path, manifest["format_version"], FORMAT_VERSION)
    contents = {}
    for name in (TREE, TENSORS):
        content = (path / name).read_bytes()
        expected = manifest["files"][name]
        if len(content) != expected["size"]:
            raise ValueError(f"{name} has {len(content)} bytes, {expected['size']} were written")
        if hashlib.sha256(content).hexdigest() != expected["sha256"]:
            raise ValueError(f"{name} does not have the checksum with which it was written")
        contents[name] = content
    return manifest, contents


def _checked_frame(path: Path) -> int:
    return int(_checked(path)[0]["frame"])


def _read(path: Path) -> Checkpoint:
    manifest, contents = _checked(path)
    tensors = _load_tensors(contents[TENSORS])
    return Checkpoint(path, int(manifest["frame"]), restore(json.loads(contents[TREE]), tensors))


def _load_tensors(content: bytes) -> dict[str, torch.Tensor]:
    """The table of tensors; a pickle that asks for anything else is refused, and not run."""
    try:
        tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types on foreign files
        raise ValueError(f"{TENSORS} holds something other than tensors: {error}") from error
    if not isinstance(tensors, dict) or not all(
        isinstance(value, torch.Tensor) for value in tensors.values()
    ):
        raise ValueError(f"{TENSORS} holds something other than tensors")
    return tensors
