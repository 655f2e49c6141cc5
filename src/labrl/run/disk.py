"""Measure the disk space of a run, and remove files that a finished run no longer needs."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

from labrl.errors import InputError, LabrlError
from labrl.run.checkpoint import REPLAY
from labrl.run.folder import now
from labrl.run.run import Run

_KINDS = {REPLAY: "replay buffer", "checkpoints": "checkpoints", "videos": "videos"}
"""Kind of the files in a folder of a run, by name of the folder."""


def disk_use(run: Run) -> Counter[str]:
    """Return the disk space of a run in bytes by kind of file, such as `replay buffer`."""
    used: Counter[str] = Counter()
    for path, stat in {stat.st_ino: (path, stat) for path, stat in _files([run.path])}.values():
        folders = path.relative_to(run.path).parts[:-1]
        kind = next((_KINDS[name] for name in reversed(folders) if name in _KINDS), "other files")
        used[kind] += stat.st_blocks * 512
    return used


def clean(run: Run, remove: bool) -> dict[str, int]:
    """Return the disk space that can be freed in a finished run, in bytes by kind of file. If `remove`, also
    remove the files, after recording them in `run.json` as `cleaned`.

    The kinds are replay buffers, checkpoints other than the newest and the best, and videos other than that
    of the best episode. Files behind symbolic links are ignored. Raises InputError if the run has not
    finished or its checkpoints have another format, BusyFolderError if a process uses the run, LabrlError if
    `run.json` cannot be written, and OSError if files cannot be removed.
    """
    with run.lock() if remove else nullcontext():
        run.forget()
        if run.status not in ("finished", "pruned"):
            why = f"the run is {run.status}, and +resume needs its files"
            raise InputError.about(run.path, why, code="busy")
        # Files that a finished run does not need.
        found = {"replay buffers": [], "old checkpoints": [], "videos": [*run.enjoy.glob("*/*.mp4")]}
        for session in run.sessions:
            old = session.store().old()
            copies = [one for one in session.checkpoints.glob(f"*/{REPLAY}") if one.parent not in old]
            found["replay buffers"] += [session.replay, *copies]
            found["old checkpoints"] += old
            found["videos"] += {*session.videos.glob("*.mp4")} - {session.best_video}
        home, sizes = run.path.resolve(), {}
        for kind, paths in found.items():
            there = (path for path in paths if path.exists())
            found[kind] = [one for one in there if one.resolve() == home / one.relative_to(run.path)]
            # A file with other links stays on the disk.
            stats = [stat for _, stat in _files(found[kind])]
            links = Counter(stat.st_ino for stat in stats)
            gone = {stat.st_ino: stat for stat in stats if links[stat.st_ino] == stat.st_nlink}
            if found[kind]:
                sizes[kind] = sum(stat.st_blocks * 512 for stat in gone.values())
        if remove and sizes:
            removed = [path for kind in found.values() for path in sorted(kind)]
            files = [str(path.relative_to(run.path)) for path in removed]
            entry = {"time": now(), "bytes": sum(sizes.values()), "files": files}
            run.update(cleaned=[*run.read_info().get("cleaned", []), entry])
            if run.errors.lacking:  # a resume would not know why the files are missing
                raise LabrlError.about(
                    run.marker, f"it cannot be written ({run.errors.cause})", code="resources"
                )
            for path in removed:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return sizes


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files in `paths` and in folders below them. Symbolic links are not followed."""
    for path in paths:
        below = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
        for file in below if path.is_dir() else [path]:
            with suppress(OSError):  # a process may be replacing files
                yield file, file.lstat()
