"""`labrl-clean`: list or remove files that finished runs no longer need."""

from __future__ import annotations

import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.filesize import decimal

from labrl.errors import DONE, FAILED, LabrlError
from labrl.run.disk import clean
from labrl.run.find import find_runs
from labrl.trial.find import newest_folder
from labrl.trial.summary import say

_LOST = {
    "replay buffers": "+resume cannot extend these runs, +fork cannot start from them, and "
    "agent.offline.folder cannot learn from them. +enjoy, +rerun and start_from.run can still use them",
    "old checkpoints": "only the newest and the best checkpoint can be forked, played or exported",
    "videos": "labrl-replay and +enjoy can make them again; labrl-report updates reports that show them. The "
    "video of each session's best episode stays",
}
"""For each kind of files, what can no longer be done with a run after its files of this kind are removed."""


def clean_runs(places: Sequence[str], remove: bool) -> int:
    """List the kinds of files that can be removed from the runs in `places`, with their sizes. If `remove`,
    remove the files.

    places: as for `find_runs`, or `latest`. There is a line for each experiment and for each other run, the
    largest first, and one for each run that is skipped because it has not finished. Returns the exit code: 1
    if a run could not be cleaned. Raises InputError if there is no run.
    """
    found: defaultdict[Path, Counter[str]] = defaultdict(Counter)
    total, runs, code = Counter[str](), Counter[Path](), DONE
    for run in find_runs(str(newest_folder()) if place == "latest" else place for place in places):
        try:
            sizes = clean(run, remove)
        except (LabrlError, OSError) as error:
            say(f"skipped: {error}")
            code = code if isinstance(error, LabrlError) and error.code == "busy" else FAILED
            continue
        if sizes:
            folder = run.experiment or run.path
            found[folder].update(sizes)
            total.update(sizes)
            runs[folder] += 1
    for folder, counted in sorted(found.items(), key=lambda pair: -pair[1].total()):
        several = f" ({runs[folder]} runs)" if runs[folder] > 1 else ""
        kinds = ", ".join(f"{kind} {decimal(size)}" for kind, size in counted.items())
        say(f"{decimal(counted.total()):>9}  {os.path.relpath(folder)}{several}: {kinds}")
    say(f"{decimal(total.total()):>9}  {'removed' if remove else 'can be removed'} in all")
    for kind in total:
        say(f"without {kind}: {_LOST[kind]}")
    if total and not remove:
        say(f"to remove these files: {shlex.join(['labrl-clean', '--yes', *places])}")
    return code
