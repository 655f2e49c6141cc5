"""Allocation of the large arrays of a session in memory or in files, with checks that there is room."""

from __future__ import annotations

import errno
import math
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from labrl.errors import DamagedFileError, InputError, LabrlError

STEPS = 16
"""Number of steps in which disk space for a ring is allocated."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CGROUP = Path("/sys/fs/cgroup")


class Layout(NamedTuple):
    """Shape and type of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    least: int | None = None
    """Smallest allowed length of the second axis in an existing file; None to require exactly `shape`."""
    grows: bool = False
    """Whether the second axis is filled from its start, and `Workspace.reserve` allocates disk space for it.
    """

    @property
    def num_bytes(self) -> int:
        """Size of all elements in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class Room(Protocol):
    """A buffer in files, with spare room for new data while checkpoints need the old data."""

    @property
    def frames_safe(self) -> int:
        """Number of further frames for which there is room, if frames take no more room than usual."""

    def mark(self) -> None:
        """Record that a checkpoint needs the buffer's current content."""

    def spent(self) -> float:
        """Return the fraction of the spare room filled since the last `mark`, including the next step."""


@dataclass(frozen=True)
class Workspace:
    """Place where large arrays are stored, and number of frames for which old content must survive."""

    folder: Path | None = None
    """Folder for memory-mapped arrays; None to keep everything in memory."""
    frames_kept: int = 0
    """Number of frames after which an old checkpoint must still be usable, >= 0."""
    sharers: int = 1
    """Number of sessions that use this machine's memory and disk at the same time, >= 1."""
    acting_only: bool = False
    """Whether the agent will only act, so that arrays for learning remain empty."""
    rooms: list[Room] = field(default_factory=list)
    """Buffers in files that are open."""

    @property
    def frames_safe(self) -> int:
        """`frames_kept`, or less if existing files have less room."""
        return min([self.frames_kept, *(room.frames_safe for room in self.rooms)])

    @property
    def spent(self) -> float:
        """Largest fraction of any file's spare room filled since the last `mark`, including the next step."""
        return max((room.spent() for room in self.rooms), default=0.0)

    def mark(self) -> None:
        """Record that a checkpoint needs the current content of the files."""
        for room in self.rooms:
            room.mark()

    def arrays(self, layouts: Mapping[str, Layout], capacity: int, in_files: bool) -> dict[str, NDArray]:
        """Return arrays of zeros in memory, or arrays in the files of the folder.

        Existing files keep their content and length. New files have their final length. `reserve` allocates
        disk space for files that grow; this method allocates it for the others. capacity:
        `agent.memory.capacity`, for messages. Raises InputError if there is not enough room, and
        DamagedFileError if files are missing or incomplete, or contain an array of a different shape or type.
        """
        if not in_files:
            needed = sum(layout.num_bytes for layout in layouts.values())
            available = memory_available(self.sharers)
            if available is not None and needed > available:
                raise self._no_room(needed, available, capacity, in_files)
            return {name: np.zeros(shape, dtype) for name, (shape, dtype, *_) in layouts.items()}
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        paths = {name: self.folder / f"{name}.npy" for name in layouts}
        # Files are created in order, so if the last one is missing, their creation was interrupted.
        if not list(paths.values())[-1].exists():
            self._make_files({paths[name]: layout for name, layout in layouts.items()}, capacity)
        return {name: _open_file(paths[name], layout) for name, layout in layouts.items()}

    def reserve(self, name: str, rows: int, capacity: int) -> int:
        """Allocate disk space for the first `rows` rows of an array in a file that grows.

        Rows are along the second axis. Without allocation, writing to a full disk would end the process with
        a signal. Returns the number of rows for which disk space is now allocated, which may be larger than
        `rows`. capacity: `agent.memory.capacity`, for messages. Raises LabrlError if the disk is full.
        """
        assert self.folder is not None
        path = self.folder / f"{name}.npy"
        with path.open("r+b") as file:
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            begin, row = file.tell(), math.prod(shape[2:]) * dtype.itemsize
            step = -(-shape[1] // STEPS)
            rows = min(-(-rows // step) * step, shape[1])
            try:
                for part in range(shape[0]) if sys.platform == "linux" else ():
                    os.posix_fallocate(file.fileno(), begin + part * shape[1] * row, rows * row)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                total = gigabytes(math.prod(shape) * dtype.itemsize)
                raise LabrlError.about(
                    f"agent.memory.capacity={capacity}",
                    f"the disk of {self.folder} is full, but the replay buffer will need {total} GB in all",
                    "Make room and resume, or start again with a smaller capacity",
                    code="resources",
                ) from None
        return rows

    def _make_files(self, layouts: Mapping[Path, Layout], capacity: int) -> None:
        """Create all files or none. Raises InputError if the disk has too little space."""
        for path in layouts:
            path.unlink(missing_ok=True)
        needed = sum(layout.num_bytes for layout in layouts.values())
        # The free space excludes the space that the files of other sessions take so far.
        free = shutil.disk_usage(str(self.folder)).free
        if needed > free:
            raise self._no_room(needed, free, capacity, in_files=True)
        try:
            for path, layout in layouts.items():
                with path.open("wb") as file:
                    descr = np.lib.format.dtype_to_descr(layout.dtype)
                    header = {"descr": descr, "fortran_order": False, "shape": layout.shape}
                    np.lib.format.write_array_header_1_0(file, header)
                    size = file.tell() + layout.num_bytes
                    file.truncate(size)  # to zeros
                    if sys.platform == "linux" and not layout.grows:  # other systems may lack this function
                        os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            for path in layouts:
                path.unlink(missing_ok=True)
            if error.errno not in _FULL:
                raise
            free = shutil.disk_usage(str(self.folder)).free
            raise self._no_room(needed, free, capacity, in_files=True) from None

    def _no_room(self, needed: int, available: int, capacity: int, in_files: bool) -> InputError:
        place = f"on the disk of {self.folder}" if in_files else "of memory"
        each = f" for each of {self.sharers} sessions" if not in_files and self.sharers > 1 else ""
        other = "ram" if in_files else "mmap, which stores it on the disk"
        fits = capacity * available // needed
        fits -= fits % 10 ** max(len(str(fits)) - 2, 0)  # two significant digits
        there = f"{gigabytes(available)} GB are available{each}"
        return InputError.resources(
            f"agent.memory.capacity={capacity}",
            f"it needs {gigabytes(needed)} GB {place}, but only {there}",
            f"agent.memory.capacity={fits}, or agent.memory.storage={other}",
        )


def memory_available(sharers: int = 1) -> int | None:
    """Return the amount of memory, in bytes, that one of `sharers` processes may use; None if unknown.

    The amount is the free memory, but at most an equal share of all memory, because sessions that started at
    the same time may not have allocated their memory yet. A tenth is left for everything other than large
    arrays.
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
    """Format a number of bytes in GB, for messages."""
    return f"{num_bytes / 1e9:,.0f}" if num_bytes >= 100e9 else f"{num_bytes / 1e9:.3g}"


def _system_memory() -> tuple[int | None, int | None]:
    """Return the available and the total memory in bytes; None for either if unknown."""
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
    except (OSError, ValueError):  # macOS does not report available pages
        return whole, whole


def _cgroup_memory() -> tuple[int | None, int]:
    """Return the memory limit and usage, in bytes, of this process's container; None for no limit."""
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="utf-8"))  # "max" if there is no limit
        used = int((_CGROUP / "memory.current").read_text(encoding="utf-8"))
        lines = (_CGROUP / "memory.stat").read_text(encoding="utf-8").splitlines()
        statistics = dict(line.split() for line in lines)
    except (OSError, ValueError):
        return None, 0
    # The system frees cached pages of files when it needs memory.
    return limit, used - int(statistics.get("inactive_file", 0))


def _open_file(path: Path, wanted: Layout) -> NDArray:
    """Map the array in a file. Raises DamagedFileError if the array does not fit the layout."""
    if not path.exists():
        raise _unfit(path, "is missing")
    try:
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            begin = file.tell()
    except ValueError as error:
        raise _unfit(path, f"is not a NumPy array ({error})") from None
    fits = shape == wanted.shape
    if wanted.least is not None and len(shape) == len(wanted.shape):
        fits = shape[1] >= wanted.least and (shape[0], *shape[2:]) == (wanted.shape[0], *wanted.shape[2:])
    if not fits or dtype != wanted.dtype:
        raise _unfit(path, f"contains {shape} of {dtype} instead of {wanted.shape} of {wanted.dtype}")
    size, expected = path.stat().st_size, begin + Layout(shape, dtype).num_bytes
    if size != expected:
        raise _unfit(path, f"has {size:,} bytes instead of {expected:,}")
    # Return a plain array, because indexing np.memmap has the overhead of a subclass.
    return np.asarray(np.memmap(path, wanted.dtype, "r+", begin, shape))


def _unfit(path: Path, why: str) -> DamagedFileError:
    return DamagedFileError.about(
        path,
        f"this file of the replay buffer {why}, so it is damaged or was written with another configuration",
        "Set agent.memory.capacity, env.num_envs and agent.n_step to their earlier values, or remove "
        f"{path.parent} to start over",
    )
