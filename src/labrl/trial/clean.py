"""`labrl-clean`: list or remove files that finished runs no longer need."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.filesize import decimal

from labrl.errors import DONE, FAILED, LabrlError
from labrl.run.disk import clean
from labrl.run.find import find_runs
from labrl.trial.find import newest_folder
from labrl.trial.summary import say


def clean_runs(places: Sequence[str], remove: bool) -> int:
    """Print for each run in `places` the kinds of files that can be removed, with their sizes. If `remove`,
    remove the files.

    places: as for `find_runs`, or `latest`. Prints a line for each run that is skipped, such as one that has
    not finished. Returns the exit code: 1 if a run could not be cleaned. Raises InputError if there is no
    run.
    """
    total, code = 0, DONE
    for run in find_runs(str(newest_folder()) if place == "latest" else place for place in places):
        try:
            sizes = clean(run, remove)
        except (LabrlError, OSError) as error:
            say(f"skipped: {error}")
            code = code if isinstance(error, LabrlError) and error.code == "busy" else FAILED
            continue
        total += sizes.total()
        for kind, size in sizes.items():
            say(f"{decimal(size):>9}  {os.path.relpath(run.path)}: {kind}")
    say(f"{decimal(total):>9}  {'removed' if remove else 'can be removed with --yes'} in all")
    return code
