"""Tab completion of what Hydra does not know: the runs that +resume, +rerun, +fork and +enjoy name."""

from __future__ import annotations

import glob
from pathlib import Path

from labrl.storage.experiment_folder import is_experiment
from labrl.storage.run_folder import MARKER
from labrl.trial.past import RUNS

TAKE_A_RUN = ("+resume=", "+rerun=", "+fork=", "+enjoy=")
"""Arguments whose value is a run folder, or `latest`."""


def completions(line: str) -> list[str] | None:
    """Return completions of the last argument of a command line, or None where Hydra completes it.

    Folders are completed one level at a time: a run folder as it is, and one with a slash that may hold runs.
    """
    arguments = line.split()
    argument = arguments[-1] if arguments and not line.endswith(" ") else ""
    verb = next((verb for verb in TAKE_A_RUN if argument.startswith(verb)), None)
    if verb is None:
        verbs = [verb for verb in TAKE_A_RUN if len(argument) > 1 and verb.startswith(argument)]
        return verbs if argument.startswith(("+r", "+f", "+enj")) else None
    typed = argument.removeprefix(verb)
    whole = verb == "+resume=" and not {"-m", "--multirun"}.isdisjoint(arguments)
    start = typed or f"{RUNS}/"
    folders = [Path(folder) for folder in sorted(glob.glob(f"{glob.escape(start)}*/"), reverse=True)]
    if whole:
        found = [str(one) if is_experiment(one) else f"{one}/" for one in folders if not _is_run(one)]
    else:
        found = [str(one) if _is_run(one) else f"{one}/" for one in folders]
    latest = ["latest"] if "latest".startswith(typed) else []
    return [f"{verb}{one}" for one in [*latest, *found]]


def _is_run(folder: Path) -> bool:
    return (folder / MARKER).exists()
