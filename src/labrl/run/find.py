"""Find runs by their folder, in folders that contain runs, or by a pattern."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from labrl.errors import InputError, LabrlError
from labrl.run.folder import PROVENANCE
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
    first = next(_folders(path), None)
    if first == path:
        return _loaded(path)
    if (path.parent / MARKER).exists():
        raise InputError.usage(path, "it is part of a run", f"Name the run folder, {path.parent}")
    if first is not None:
        raise InputError.usage(path, "it contains several runs", f"Name one of them, such as {first}")
    raise _no_run(path)


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
    texts = [os.path.expanduser(os.fspath(place)) for place in places]
    for text in texts:
        if not text.strip():
            why = "it is empty, perhaps because a shell variable is not set"
            raise InputError.missing("folder", why, "Name a run folder")
        literal = os.path.exists(text) or not glob.has_magic(text)
        paths = [Path(one) for one in ([text] if literal else sorted(glob.glob(text)))]
        if not paths:
            raise InputError.not_found(Path(text), "it matches no file or folder")
        runs: list[Run] = []
        for path in paths:
            first, part = next(_folders(path), None), literal and (path.parent / MARKER).exists()
            if first == path or part or not path.exists():
                runs.append(load_run(path))
            elif first is not None or (literal and len(texts) == 1):
                runs += runs_below(path) if path.is_dir() else [load_run(path)]
            elif literal:
                without.append(text)
        if not literal and not runs:
            raise InputError.not_found(Path(text), "it matches no labrl run")
        for run in runs:
            found.setdefault(run.path.resolve(), run)
    if without and not found:
        fix = f"Name folders that contain a {MARKER}, directly or in their subfolders"
        raise InputError.about(
            ", ".join(without), "no labrl run was found there", fix, code="not-found", key=without[0]
        )
    if without:
        _log.warning("skipped, because it contains no run: %s", ", ".join(without))
    return list(found.values())


def runs_below(path: Path) -> list[Run]:
    """Return the runs below a folder from the oldest to the newest. Damaged runs are skipped with a warning.

    Raises InputError if there is no run.
    """
    runs, refusals = [], []
    for folder in _folders(path):
        try:
            runs.append(_loaded(folder))
        except LabrlError as error:
            refusals.append(error)
    if not runs:
        raise next((one for one in refusals if isinstance(one, InputError)), None) or _no_run(path)
    for refusal in refusals:
        _log.warning("skipped: %s", refusal)
    return sorted(runs, key=lambda run: (run.created, run.path))


def is_run(path: Path) -> bool:
    """Return whether `path` is a run folder, even if its marker is missing."""
    return any((path / name).exists() for name in (MARKER, PROVENANCE))


def _loaded(path: Path) -> Run:
    run = Run.open(path)
    run.provenance  # noqa: B018 (raises DamagedFileError)
    return run


def _folders(path: Path) -> Iterator[Path]:
    """Yield every run folder at most DEEPEST levels below `path`. Run folders are not searched for other
    runs."""
    root = len(path.parts)
    for folder, below, files in os.walk(path):
        if MARKER in files or PROVENANCE in files:
            below.clear()
            yield Path(folder)
        elif len(Path(folder).parts) - root >= DEEPEST:
            below.clear()
        below.sort()


def _no_run(path: Path) -> InputError:
    why = "it is a file" if path.exists() else "it does not exist"
    if path.is_dir():
        why = "it contains no labrl run" if any(path.iterdir()) else "it is empty"
        why += f" (no {MARKER} in it or in its subfolders)"
    return InputError.not_found(path, why, "Name a run folder, or a folder that contains runs")
