"""`labrl-clean`: list or remove files that finished runs no longer need."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Sequence

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
    "videos": "labrl-replay and +enjoy can make them again; labrl-report updates reports that show them",
}
"""For each kind of files, what can no longer be done with a run after its files of this kind are removed."""


def clean_runs(places: Sequence[str], remove: bool) -> int:
    """List the kinds of files that can be removed from the runs in `places`, with their sizes. If `remove`,
    remove the files.

    places: as for `find_runs`, or `latest`. For each run that is skipped because it has not finished, a line
    is printed. Returns the exit code: 1 if a run could not be cleaned. Raises InputError if there is no run.
    """
    total, code = Counter[str](), DONE
    for run in find_runs(str(newest_folder()) if place == "latest" else place for place in places):
        try:
            sizes = clean(run, remove)
        except (LabrlError, OSError) as error:
            say(f"skipped: {error}")
            code = code if isinstance(error, LabrlError) and error.code == "busy" else FAILED
            continue
        if sizes:
            kinds = ", ".join(f"{kind} {decimal(size)}" for kind, size in sizes.items())
            say(f"{os.path.relpath(run.path)}: {kinds}")
        total.update(sizes)
    say(f"{'removed' if remove else 'can be removed'}: {decimal(total.total())}")
    for kind in total:
        say(f"without {kind}: {_LOST[kind]}")
    if total and not remove:
        say(f"to remove these files: {shlex.join(['labrl-clean', '--yes', *places])}")
    return code
