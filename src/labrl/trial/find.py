"""Find a run or an experiment by its folder, or the latest one in ./runs."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

from labrl.config import config_folder
from labrl.config.keys import is_hydras, traits
from labrl.errors import InputError, LabrlError
from labrl.mistakes.spelling import nearest, suggested
from labrl.run.experiment import Experiment
from labrl.run.find import is_run
from labrl.run.folder import EXPERIMENT_MARKER, is_experiment
from labrl.run.run import MARKER, Run

AnyFolder = TypeVar("AnyFolder", Run, Experiment)

RUNS = Path("runs")
"""Default folder of runs."""

_MARKERS = (f"*/{MARKER}", f"*/*/{MARKER}")
"""Glob patterns of the markers of runs in ./runs and in its experiments."""

SHOWN = 20
"""Maximum number of folders that a message lists."""

Verb = Literal["resume", "rerun", "fork", "enjoy", "replay", "load", "start_from", "export", "wandb"]
"""Commands and functions that use an earlier run."""

_FORMS: dict[Verb, tuple[str, str]] = {
    "resume": ("+resume", "labrl +resume="),
    "rerun": ("+rerun", "labrl +rerun="),
    "fork": ("+fork", "labrl +fork="),
    "enjoy": ("+enjoy", "labrl +enjoy="),
    "replay": ("run", "labrl-replay "),
    "load": ("run", "labrl.load "),
    "export": ("run", "labrl-export "),
    "wandb": ("folders", "labrl-wandb "),
    "start_from": ("start_from.run", "labrl start_from.run="),
}
"""For each verb, the key that names the run in messages, and the command line up to the run folder."""


def option_of(verb: Verb, name: str) -> str:
    """Return how an option is typed in the command or function of `verb`, with {} for its value."""
    forms: dict[Verb, str] = {"load": f"{name}={{!r}}", "export": f"--{name} {{}}"}
    return forms.get(verb, f"{'start_from.' * (verb == 'start_from')}{name}={{}}")


def find_run(which: str, edits: Sequence[str], verb: Verb) -> Run:
    """Return the run folder `which`, or for `latest` the newest one in ./runs that matches `edits`.

    `which` may also be a pattern that matches one folder, such as runs/*ppo*. Only edits that choose an
    option of a group, such as env=pong, are compared. If the newest run is a trial of an experiment, the best
    matching trial is returned and a line is printed; the verb `resume` refuses a trial of an experiment.
    Raises InputError if there is no such run.
    """
    if not which.strip():
        why = "it is empty, perhaps because a shell variable is not set"
        raise InputError.missing(_FORMS[verb][0], why, "Name a run folder, or latest")
    if which != "latest":
        return _named_run(_path_of(which, _FORMS[verb][0]), verb)
    wanted = choices(edits)
    run = _latest_run(wanted, _FORMS[verb][0])
    experiment = run.experiment
    return run if experiment is None else _best_of(experiment, run, wanted, verb)


def find_experiment(which: str) -> Experiment:
    """Return the experiment folder `which`, or for `latest` the newest one in ./runs.

    `which` may also be a pattern that matches one folder, such as runs/*ppo*. Raises InputError if there is
    no such experiment.
    """
    if which != "latest":
        return _named_experiment(_path_of(which, "+resume", runs=False))
    found, refusal = _opened(Experiment, f"*/{EXPERIMENT_MARKER}")
    if not found:
        why, fix = f"there is no experiment in {RUNS.absolute()}", "Type labrl -m +resume=<folder>"
        raise refusal or InputError.not_found("+resume=latest", why, fix)
    return found[0]


def newest_folder() -> Path:
    """Return the folder of the newest run in ./runs, or of the experiment to which this run belongs.

    Raises InputError if there is no run.
    """
    run = _latest_run({}, "latest")
    return run.experiment or run.path


def choices(edits: Sequence[str]) -> dict[str, str]:
    """Return the options that `edits` choose, by group, without groups that only log, such as wandb."""
    pairs = (override.split("=", 1) for override in edits if "=" in override)
    return {
        name: value
        for name, value in pairs
        if not is_hydras(name) and not traits(name).resume and (config_folder() / name).is_dir()
    }


def _best_of(experiment: Path, newest: Run, wanted: Mapping[str, str], verb: Verb) -> Run:
    # Imported late: a wrong override must not wait for NumPy.
    from labrl.analysis.listing import best_trial
    from labrl.trial.summary import say

    place = os.path.relpath(experiment)
    if verb == "resume":
        fix = f"Resume the whole experiment with labrl -m +resume={place}, or {_trials_of(experiment, verb)}"
        raise InputError.usage("+resume=latest", "the newest run is part of an experiment", fix)
    best = best_trial(experiment, lambda run: _chosen_as(run, wanted))
    if best is None:
        among = f" with {_formatted(wanted)}" if wanted else ""
        say(f"{place}: no trial{among} has a return yet. Using the newest trial, {newest.path.name}")
        return newest
    say(
        f"The newest run is part of the experiment {place}. "
        f"Using its best run, {best.run.name}: {best.result}"
    )
    return best.run


def _trials_of(experiment: Path, verb: Verb) -> str:
    """Return a list of the trials of an experiment, for a command that takes one run."""
    from labrl.analysis.listing import list_trials

    return list_trials(experiment, _FORMS[verb][1])


def _latest_run(wanted: Mapping[str, str], key: str) -> Run:
    found, refusal = _opened(Run, *_MARKERS)
    for run in found:
        # A run that was killed before it was recorded has done nothing.
        if not run.unrecorded and _chosen_as(run, wanted):
            return run
    agrees = f" with {_formatted(wanted)}" if found and wanted else ""
    why = f"there is no run in {RUNS.absolute()}{agrees}"
    raise (None if found else refusal) or InputError.not_found(key, why, "Name a run folder")


def _formatted(wanted: Mapping[str, str]) -> str:
    return " ".join(f"{group}={option}" for group, option in wanted.items())


def _chosen_as(run: Run, wanted: Mapping[str, str]) -> bool:
    """Return whether a run was started with the options `wanted`, given by group."""
    with suppress(LabrlError):
        return not wanted or wanted.items() <= run.choices.items()
    return False


def _opened(kind: type[AnyFolder], *markers: str) -> tuple[list[AnyFolder], LabrlError | None]:
    """Return the runs or experiments in ./runs, newest first, and the error of a folder that only another
    version of labrl can read, or None. markers: glob patterns of the folders' markers."""
    found: list[AnyFolder] = []
    refusal = None
    for marker in (path for pattern in markers for path in RUNS.glob(pattern)):
        try:
            found.append(kind.open(marker.parent))
        except LabrlError as error:
            refusal = refusal or (error if error.code == "not-installed" else None)
    return sorted(found, key=lambda one: (str(one.info.get("created")), one.path), reverse=True), refusal


def _path_of(which: str, key: str, runs: bool = True) -> Path:
    """Return the path `which`, or the only run or experiment that the pattern `which`, such as runs/*ppo*,
    matches.

    key: the key that names the run, for messages; runs: whether the pattern may match a run. Raises
    InputError if the pattern does not match exactly one folder.
    """
    path = Path(os.path.expanduser(which))
    if path.exists() or not glob.has_magic(which):
        return path
    places = (Path(one) for one in sorted(glob.glob(str(path))))
    found = [place for place in places if is_experiment(place) or (runs and (place / MARKER).exists())]
    if not found:
        what = "run or experiment" if runs else "experiment"
        raise InputError.not_found(f"{key}={which}", f"it matches no {what}")
    if len(found) > 1:
        listed = "".join(f"\n  {place}" for place in found[:SHOWN])
        more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        fix = f"Name one of them:{listed}{more}"
        raise InputError.usage(f"{key}={which}", f"it matches {len(found)} folders", fix)
    return found[0]


def _named_run(path: Path, verb: Verb) -> Run:
    if is_run(path):
        return Run.open(path)
    trials = sorted(marker.parent for marker in path.glob(f"*/{MARKER}"))
    key = _FORMS[verb][0]
    if (path.parent / MARKER).exists():
        why, fix = "it is part of a run", f"Name the run folder, {path.parent}"
    elif is_experiment(path):
        why, fix = "it is an experiment", _trials_of(path, verb)
        whole = f"Resume the whole experiment with labrl -m +resume={path}, or {fix}"
        fix = whole if verb == "resume" else fix[0].upper() + fix[1:]
    elif trials:
        listed = "".join(f"\n  {trial}" for trial in trials)
        why, fix = "it contains several runs", f"Name one of them:{listed}"
    else:
        raise _lost(path, "run", MARKER, [run.path for run in _opened(Run, *_MARKERS)[0]])
    raise InputError.about(path, why, fix, code="usage", key=key)


def _named_experiment(path: Path) -> Experiment:
    if is_experiment(path):
        return Experiment.open(path)
    if is_experiment(path.parent):
        why, fix = "it is one trial of an experiment", f"Name the experiment, {path.parent}"
        raise InputError.about(path, why, fix, code="usage", key="+resume")
    if (path / MARKER).exists():
        fix = f"Resume it without -m: labrl +resume={path}"
        raise InputError.about(path, "it is a single run", fix, code="usage", key="-m")
    experiments = [marker.parent for marker in RUNS.glob(f"*/{EXPERIMENT_MARKER}")]
    raise _lost(path, "experiment", EXPERIMENT_MARKER, experiments)


def _lost(path: Path, what: str, marker: str, known: Sequence[Path]) -> InputError:
    """Return the error for a path that is not the folder of a run or an experiment.

    what: "run" or "experiment"; marker: name of the file that the folder lacks; known: the existing folders.
    """
    why = f"it is not the folder of a labrl {what}, because it contains no {marker}"
    # Suggest the folder with the most similar path or name; the names of trials are only numbers.
    places = {_within_runs(folder): os.path.relpath(folder) for folder in known}
    by_name = {name: folder for name, folder in places.items() if os.sep not in name}
    near = [places[name] for name in nearest(_within_runs(path), places)]
    near = near or [by_name[name] for name in nearest(path.name, by_name)]
    fix = suggested(near).strip() or f"By default, folders are in {RUNS}/; latest names the newest one"
    return InputError.not_found(path, why if path.exists() else "it does not exist", fix)


def _within_runs(folder: Path) -> str:
    """Return a path without the prefix ./runs, because the prefix would make any two paths similar."""
    return os.path.relpath(folder).removeprefix(f"{RUNS}{os.sep}")
