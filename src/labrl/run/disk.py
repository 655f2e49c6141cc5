"""Measure the disk space of a run, and remove files that a finished run no longer needs."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from contextlib import nullcontext, suppress
from pathlib import Path

from labrl.errors import InputError
from labrl.run.checkpoint import REPLAY
from labrl.run.run import Run

_KINDS = {REPLAY: "replay buffer", "checkpoints": "checkpoints", "videos": "videos"}
"""Kind of the files in a folder of a run, by name of the folder."""


def disk_use(run: Run) -> Counter[str]:
    """Return the disk space of a run in bytes by kind of file, such as `replay buffer`."""
    used: Counter[str] = Counter()
    for path, size in _sizes(run.path).items():
        folders = path.relative_to(run.path).parts[:-1]
        kind = next((_KINDS[name] for name in reversed(folders) if name in _KINDS), "other files")
        used[kind] += size
    return used


def clean(run: Run, remove: bool) -> Counter[str]:
    """Return the disk space that can be freed in a finished run, in bytes by kind of file. If `remove`, also
    remove the files, and record in `run.json` as `cleaned` which sessions have no replay buffer anymore.

    The kinds are replay buffers, checkpoints other than the newest and the best, and videos other than that
    of the best episode. Files behind symbolic links are ignored. Raises InputError if the run has not
    finished or its checkpoints have another format, BusyFolderError if a process uses the run, and OSError if
    files cannot be removed.
    """
    run, sizes = Run.open(run.path.resolve()), Counter[str]()
    with run.lock() if remove else nullcontext():
        if run.status not in ("finished", "pruned"):
            why = f"the run is {run.status}, and +resume needs its files"
            raise InputError.about(run.path, why, code="busy")
        found = dict.fromkeys(run.enjoy.glob("*/*.mp4"), "videos")
        for session in run.sessions:
            found |= dict.fromkeys(session.store().old(), "old checkpoints")
            found |= dict.fromkeys(session.path.glob(f"**/{REPLAY}"), "replay buffers")
            found |= dict.fromkeys({*session.videos.glob("*.mp4")} - {session.best_video}, "videos")
        own = [path for path in found if path == path.resolve()]
        # A file may be in two of these folders.
        files = {file: (found[path], size) for path in own for file, size in _sizes(path).items()}
        for kind, size in files.values():
            sizes[kind] += size
        if remove:
            if without := {session.index for session in run.sessions if session.replay in own}:
                run.update(cleaned=sorted({*run.read_info().get("cleaned", []), *without}))
            for path in filter(Path.exists, own):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return sizes


def _sizes(path: Path) -> dict[Path, int]:
    """Return the disk space in bytes of a file, or of the files in a folder and in folders below it. Symbolic
    links are not followed."""
    sizes = {}
    below = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    for file in below if path.is_dir() else [path]:
        with suppress(OSError):  # a process may be replacing files
            sizes[file] = file.lstat().st_blocks * 512
    return sizes
