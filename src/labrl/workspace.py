"""Where the large arrays of a session lie, in memory or in files, and whether there is room for them."""

from __future__ import annotations

import errno
import io
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CGROUP = Path("/sys/fs/cgroup")


class NoRoomError(Exception):
    """Arrays do not fit where they are to lie."""

    def __init__(self, needed: int, available: int) -> None:
        super().__init__(f"{needed} bytes are needed, {available} available")
        self.needed = needed
        """Bytes that are missing a place."""
        self.available = available
        """Bytes that there are for them."""


class UnfitFileError(Exception):
    """A file that is there holds another array than the one wanted."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path = path


class Layout(NamedTuple):
    """One array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    least: int | None = None
    """Length of the second axis down to which a file from before will do; None: only the shape itself."""

    @property
    def num_bytes(self) -> int:
        """Of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a file of this shape will do."""
        if self.least is None or len(shape) != len(self.shape):
            return shape == self.shape
        same = (shape[0], *shape[2:]) == (self.shape[0], *self.shape[2:])
        return same and shape[1] >= self.least


class Arrays:
    """Arrays by name, in memory or each in a `.npy` file."""

    def __init__(self, arrays: Mapping[str, NDArray], folder: Path | None) -> None:
        self._arrays = dict(arrays)
        self.folder = folder
        """Where the files are; None: the arrays are in memory."""

    def __getitem__(self, name: str) -> NDArray:
        # A plain view: indexing a np.memmap costs a subclass's bookkeeping each time.
        return np.asarray(self._arrays[name])

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        return sum(array.nbytes for array in self._arrays.values())

    def flush(self) -> None:
        """Return when the disk has what the files were given; nothing to do in memory."""
        for array in self._arrays.values():
            if isinstance(array, np.memmap):
                array.flush()


class Room(Protocol):
    """Rings in files, with room for what is written while checkpoints count on what is there."""

    @property
    def frames_safe(self) -> int:
        """Frames for which there is room, if they take no more of it than they usually do."""

    def mark(self) -> None:
        """A checkpoint counts on what is there now."""

    def spent(self) -> float:
        """Part of the room that was filled since the last mark, or may be with the next step."""


@dataclass(frozen=True)
class Workspace:
    """Where large arrays may lie, and for how long their old content must survive."""

    folder: Path | None = None
    """For memory-mapped arrays; None: everything in memory."""
    frames_kept: int = 0
    """Frames that may be added after the oldest checkpoint that must stay resumable, >= 0."""
    sharers: int = 1
    """Sessions that use the memory and the disk of this machine at once, >= 1."""
    acting_only: bool = False
    """Nothing will be learned: what only learning needs takes no room, and stays empty."""
    rooms: list[Room] = field(default_factory=list)
    """What lies in files that were opened so far."""

    @property
    def frames_safe(self) -> int:
        """`frames_kept`, or fewer where files of a run before this one have less room."""
        return min([self.frames_kept, *(room.frames_safe for room in self.rooms)])

    @property
    def spent(self) -> float:
        """Part of the room in files that was filled since the last `mark`, or may be with the next step."""
        return max((room.spent() for room in self.rooms), default=0.0)

    def mark(self) -> None:
        """A checkpoint counts on what the files hold now."""
        for room in self.rooms:
            room.mark()

    def in_memory(self, layouts: Mapping[str, Layout]) -> Arrays:
        """New arrays of zeros. Raises NoRoomError when memory lacks room for those of all sharers."""
        needed = sum(layout.num_bytes for layout in layouts.values())
        available = memory_available(self.sharers)
        if available is not None and needed > available:
            raise NoRoomError(needed, available)
        return Arrays({name: np.zeros(shape, dtype) for name, (shape, dtype, _) in layouts.items()}, None)

    def in_files(self, layouts: Mapping[str, Layout]) -> Arrays:
        """The arrays in the files of the folder, with what a run before left there, or new ones of zeros.

        New files are reserved in full, so that a disk does not turn out to be full later. Raises
        NoRoomError when the disk lacks room, UnfitFileError when only some of the files are there, or
        one holds an array of another shape or type or a part of one. A file that is there keeps its length.
        """
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        paths = {name: self.folder / f"{name}.npy" for name in layouts}
        # They are made in order: without the last one, the making was broken off and nothing is in use.
        if not list(paths.values())[-1].exists():
            _make_files({paths[name]: layout for name, layout in layouts.items()}, self.folder)
        return Arrays({name: _open_file(paths[name], layouts[name]) for name in layouts}, self.folder)


def memory_available(sharers: int = 1) -> int | None:
    """Bytes that one of `sharers` processes may still take, None where the system does not say.

    What is free now, but no more than an equal share of all, because sessions that began together have
    not yet taken theirs; less a tenth, for all that is no large array.
    """
    now, whole = _system_memory()
    limit, used = _cgroup_memory()
    if limit is not None:
        whole = limit if whole is None else min(whole, limit)
        now = limit - used if now is None else min(now, limit - used)
    if now is None or whole is None:
        return None
    return max(min(now, whole // sharers) * 9 // 10, 0)


def gigabytes(num_bytes: int) -> str:
    """As messages tell it."""
    return f"{num_bytes / 1e9:,.0f}" if num_bytes >= 100e9 else f"{num_bytes / 1e9:.3g}"


def _system_memory() -> tuple[int | None, int | None]:
    """Bytes of memory that are available, and there in all; None where unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        return kilobytes["MemAvailable"] * 1024, kilobytes["MemTotal"] * 1024
    except (OSError, KeyError, ValueError, IndexError):
        pass
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        whole = page * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None, None
    try:
        return page * os.sysconf("SC_AVPHYS_PAGES"), whole
    except (OSError, ValueError):  # macOS counts no available pages
        return whole, whole


def _cgroup_memory() -> tuple[int | None, int]:
    """Limit and use in bytes of the container that this process runs in; None: no limit."""
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="utf-8"))  # "max" where there is none
        used = int((_CGROUP / "memory.current").read_text(encoding="utf-8"))
        statistics = dict(
            line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="utf-8").splitlines()
        )
    except (OSError, ValueError):
        return None, 0
    # The system takes cached pages of files back when it needs them.
    return limit, used - int(statistics.get("inactive_file", 0))


def _header(layout: Layout) -> bytes:
    """How a `.npy` file of the array begins."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(layout.dtype)
    words = {"descr": descr, "fortran_order": False, "shape": layout.shape}
    np.lib.format.write_array_header_1_0(header, words)
    return header.getvalue()


def _make_files(layouts: Mapping[Path, Layout], folder: Path) -> None:
    """All files or none. Raises NoRoomError."""
    for path in layouts:
        path.unlink(missing_ok=True)
    needed = sum(layout.num_bytes for layout in layouts.values())
    # What other sessions have reserved is gone from the free space already.
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise NoRoomError(needed, free)
    try:
        for path, layout in layouts.items():
            _make_file(path, layout)
    except OSError as error:
        for path in layouts:
            path.unlink(missing_ok=True)
        if error.errno in _FULL:
            raise NoRoomError(needed, shutil.disk_usage(folder).free) from None
        raise


def _make_file(path: Path, layout: Layout) -> None:
    header = _header(layout)
    size = len(header) + layout.num_bytes
    with path.open("wb") as file:
        file.write(header)
        file.truncate(size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)


def _open_file(path: Path, wanted: Layout) -> np.memmap:
    """What is in the file. Raises UnfitFileError when that is not what is wanted."""
    if not path.exists():
        raise UnfitFileError(path, "is missing")
    try:
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            begin = file.tell()
    except ValueError as error:
        raise UnfitFileError(path, f"is not an array of NumPy ({error})") from None
    if not wanted.fits(shape) or dtype != wanted.dtype:
        raise UnfitFileError(path, f"holds {shape} of {dtype} instead of {wanted.shape} of {wanted.dtype}")
    size, expected = path.stat().st_size, begin + Layout(shape, dtype).num_bytes
    if size != expected:
        raise UnfitFileError(path, f"has {size:,} bytes instead of {expected:,}")
    return np.memmap(path, wanted.dtype, "r+", begin, shape)
