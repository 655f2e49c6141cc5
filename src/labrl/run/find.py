"""Find runs by their folder, in folders that contain runs, or by a pattern."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from labrl.errors import InputError, LabrlError
from labrl.run.run import MARKER, Run

DEEPEST = 4
"""Number of levels below a folder that are searched for runs."""

_log = logging.getLogger(__name__)


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Return the run in `folder`.

    Raises InputError (which suggests a better folder, if there is one) if this is not a run folder, and
    DamagedFileError if a file that describes the run is missing or damaged.
    """
    path = Path(folder).expanduser()
    if is_run(path):
        run = Run.open(path)
        run.provenance  # noqa: B018 (raises DamagedFileError)
        return run
    if is_run(path.parent):
        raise InputError.usage(path, "it is part of a run", f"Name the run folder, {path.parent}")
    for first in _folders(path):
        raise InputError.usage(path, "it contains several runs", f"Name one of them, such as {first}")
    raise _no_run(str(path))


def find_runs(places: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """Return the runs in `places`: run folders, folders that contain runs, or globs. Each run is returned
    once.

    Runs are in the order of the places, and below each place from the oldest to the newest. If there are
    several places, for example from a glob of the shell, places without a run are skipped with a warning.
    Damaged runs below a folder are also skipped with a warning. Raises InputError if no run is found, or if a
    place does not exist or is part of a run.
    """
    found: dict[Path, Run] = {}
    without: list[str] = []
    for text in (os.path.expanduser(os.fspath(place)) for place in places):
        if not text.strip():
            why = "it is empty, perhaps because a shell variable is not set"
            raise InputError.missing("folder", why, "Name a run folder")
        matches = [text] if os.path.exists(text) else sorted(glob.glob(text))
        runs: list[Run] = []
        for path in map(Path, matches):
            runs += [load_run(path)] if is_run(path) or is_run(path.parent) else runs_below(path)
        if not matches:
            raise _no_run(text)
        if not runs:
            without.append(text)
        found |= {run.path.resolve(): run for run in runs if run.path.resolve() not in found}
    if without and not found:
        raise _no_run(*without)
    if without:
        _log.warning("skipped, because it contains no run: %s", ", ".join(without))
    return list(found.values())


def runs_below(path: Path) -> list[Run]:
    """Return the runs below a folder from the oldest to the newest. Damaged runs are skipped with a warning.

    Raises InputError if all runs are in a format that cannot be read.
    """
    runs, refusals = [], []
    for folder in _folders(path):
        try:
            runs.append(load_run(folder))
        except LabrlError as error:
            refusals.append(error)
    for refusal in refusals:
        if not runs and isinstance(refusal, InputError):
            raise refusal
        _log.warning("skipped: %s", refusal)
    return sorted(runs, key=lambda run: (run.created, run.path))


def is_run(path: Path) -> bool:
    """Return whether `path` is a run folder."""
    return (path / MARKER).exists()


def _folders(path: Path) -> Iterator[Path]:
    """Yield every run folder at most DEEPEST levels below `path`. Run folders are not searched for other
    runs."""
    root = len(path.parts)
    for folder, below, files in os.walk(path):
        if MARKER in files:
            yield Path(folder)
        if MARKER in files or len(Path(folder).parts) - root >= DEEPEST:
            below.clear()
        below.sort()


def _no_run(*places: str) -> InputError:
    why = f"it contains no labrl run (no {MARKER} in it or in its subfolders)"
    fix = "Name a run folder, or a folder that contains runs"
    return InputError.not_found(
        ", ".join(places), why if os.path.exists(places[0]) else "it does not exist", fix
    )
