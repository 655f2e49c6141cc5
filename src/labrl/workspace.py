"""Place of the large arrays of a session, in memory or in files, with checks that there is room."""

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

from labrl.errors import DamagedFileError, InputError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CGROUP = Path("/sys/fs/cgroup")


class Layout(NamedTuple):
    """Shape and type of one array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    least: int | None = None
    """Smallest length of the second axis that an existing file may have; None: `shape` exactly."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize


class Room(Protocol):
    """A buffer in files, with room for what is written while checkpoints count on its content."""

    @property
    def frames_safe(self) -> int:
        """Frames for which there is room, where they take no more of it than they usually do."""

    def mark(self) -> None:
        """Note that a checkpoint counts on the present content."""

    def spent(self) -> float:
        """Return the part of the room that was filled since the last mark, or may be with the next step."""


@dataclass(frozen=True)
class Workspace:
    """Place of large arrays, and for how long their old content must survive."""

    folder: Path | None = None
    """Folder for memory-mapped arrays; None: everything in memory."""
    frames_kept: int = 0
    """Frames that may be added after the oldest checkpoint that must stay resumable, >= 0."""
    sharers: int = 1
    """Sessions that use the memory and the disk of this machine at once, >= 1."""
    acting_only: bool = False
    """Nothing will be learned: what only learning needs takes no room, and stays empty."""
    rooms: list[Room] = field(default_factory=list)
    """The buffers in files that were opened so far."""

    @property
    def frames_safe(self) -> int:
        """`frames_kept`, or fewer where files of a run before this one have less room."""
        return min([self.frames_kept, *(room.frames_safe for room in self.rooms)])

    @property
    def spent(self) -> float:
        """Part of the room in files that was filled since the last `mark`, or may be with the next step."""
        return max((room.spent() for room in self.rooms), default=0.0)

    def mark(self) -> None:
        """Note that a checkpoint counts on the present content of the files."""
        for room in self.rooms:
            room.mark()

    def arrays(self, layouts: Mapping[str, Layout], capacity: int, in_files: bool) -> dict[str, NDArray]:
        """Return arrays of zeros in memory, or those in the files of the folder.

        Files keep what a run before left in them, and their length. New ones are reserved in full, so that
        a disk does not turn out to be full later. capacity: `agent.memory.capacity`, for the message.
        Raises InputError when there is no room, DamagedFileError when only some of the files are there, or
        one holds an array of another shape or type or a part of one.
        """
        if not in_files:
            needed = sum(layout.num_bytes for layout in layouts.values())
            available = memory_available(self.sharers)
            if available is not None and needed > available:
                raise self._no_room(needed, available, capacity, in_files)
            return {name: np.zeros(shape, dtype) for name, (shape, dtype, _) in layouts.items()}
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        paths = {name: self.folder / f"{name}.npy" for name in layouts}
        # They are made in order: without the last one, the making was broken off and nothing is in use.
        if not list(paths.values())[-1].exists():
            self._make_files({paths[name]: layout for name, layout in layouts.items()}, capacity)
        return {name: _open_file(paths[name], layout) for name, layout in layouts.items()}

    def _make_files(self, layouts: Mapping[Path, Layout], capacity: int) -> None:
        """Make all files or none. Raises InputError when the disk lacks room."""
        for path in layouts:
            path.unlink(missing_ok=True)
        needed = sum(layout.num_bytes for layout in layouts.values())
        # What other sessions have reserved is gone from the free space already.
        free = shutil.disk_usage(str(self.folder)).free
        if needed > free:
            raise self._no_room(needed, free, capacity, in_files=True)
        try:
            for path, layout in layouts.items():
                _make_file(path, layout)
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
        other = "ram" if in_files else "mmap, which needs the room on the disk"
        fits = capacity * available // needed
        fits -= fits % 10 ** max(len(str(fits)) - 2, 0)  # a number that one would type
        return InputError(
            f"agent.memory.capacity={capacity} needs {gigabytes(needed)} GB {place}, "
            f"{gigabytes(available)} GB are available{each} (set agent.memory.capacity={fits}, "
            f"or agent.memory.storage={other}).",
            code="resources",
            key="agent.memory.capacity",
        )


def memory_available(sharers: int = 1) -> int | None:
    """Return the bytes that one of `sharers` processes may still take, None where the system does not say.

    They are what is free now, but no more than an equal share of all, because sessions that began together
    have not yet taken theirs; less a tenth, for all that is no large array.
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
    """Return the bytes of memory that are available, and all that there are; None where unknown."""
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
    """Return limit and use in bytes of the container that this process runs in; None: no limit."""
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="utf-8"))  # "max" where there is none
        used = int((_CGROUP / "memory.current").read_text(encoding="utf-8"))
        lines = (_CGROUP / "memory.stat").read_text(encoding="utf-8").splitlines()
        statistics = dict(line.split() for line in lines)
    except (OSError, ValueError):
        return None, 0
    # The system takes cached pages of files back when it needs them.
    return limit, used - int(statistics.get("inactive_file", 0))


def _make_file(path: Path, layout: Layout) -> None:
    """Reserve a `.npy` file of zeros."""
    descr = np.lib.format.dtype_to_descr(layout.dtype)
    with path.open("wb") as file:
        header = {"descr": descr, "fortran_order": False, "shape": layout.shape}
        np.lib.format.write_array_header_1_0(file, header)
        size = file.tell() + layout.num_bytes
        file.truncate(size)
        if sys.platform == "linux":  # elsewhere there may be no such function
            os.posix_fallocate(file.fileno(), 0, size)


def _open_file(path: Path, wanted: Layout) -> NDArray:
    """Map the array in a file. Raises DamagedFileError when it is not what is wanted."""
    if not path.exists():
        raise _unfit(path, "is missing")
    try:
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            begin = file.tell()
    except ValueError as error:
        raise _unfit(path, f"is not an array of NumPy ({error})") from None
    fits = shape == wanted.shape
    if wanted.least is not None and len(shape) == len(wanted.shape):
        fits = shape[1] >= wanted.least and (shape[0], *shape[2:]) == (wanted.shape[0], *wanted.shape[2:])
    if not fits or dtype != wanted.dtype:
        raise _unfit(path, f"holds {shape} of {dtype} instead of {wanted.shape} of {wanted.dtype}")
    size, expected = path.stat().st_size, begin + Layout(shape, dtype).num_bytes
    if size != expected:
        raise _unfit(path, f"has {size:,} bytes instead of {expected:,}")
    # A plain view: indexing a np.memmap costs a subclass's bookkeeping each time.
    return np.asarray(np.memmap(path, wanted.dtype, "r+", begin, shape))


def _unfit(path: Path, why: str) -> DamagedFileError:
    return DamagedFileError(
        f"agent.memory: {path} {why}: the file is damaged or was written with another configuration. Set "
        "agent.memory.capacity, env.num_envs and agent.n_step as they were, or remove "
        f"{path.parent} to start anew.",
        key=str(path),
    )
