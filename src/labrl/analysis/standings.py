"""The trials of an experiment from the best to the worst, for commands that show or repeat a single run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labrl.analysis.listing import final_returns
from labrl.analysis.returns import group_return
from labrl.analysis.runs import Run, load_experiment
from labrl.analysis.search import SearchResult, SearchTrial, read_search
from labrl.errors import InputError

SHOWN = 20
"""Trials that a message lists."""


@dataclass(frozen=True)
class Standing:
    """A trial and what it came to."""

    path: Path
    env: str
    place: tuple[float, ...]
    """Rank among the trials of one environment: the better of two has the smaller one."""
    comparable: bool
    """Whether it is a candidate for the best: it has a result, and no search has stopped it early."""
    told: str
    """Its result, for messages."""


def standings(experiment: Path) -> list[Standing]:
    """The trials that have begun, by environment, the best first. Raises InputError for a damaged folder.

    Trials of a grid are ranked by the final return of their sessions. Of a search
    those that fresh seeds have confirmed come first, by their mean there, then the others by its objective.
    """
    found = load_experiment(experiment)
    search = read_search(found.info)
    of_search = {trial.number: trial for trial in search.trials} if search else {}
    standing = []
    for run in found.runs:
        number = found.number_of(run)
        trial = of_search.get(number) if number is not None else None
        standing.append(_searched(run, search, trial) if search and trial else _played(run))
    return sorted(standing, key=lambda one: (one.env, not one.comparable, one.place))


def best_trial(experiment: Path, agrees: Callable[[Path], bool]) -> Standing | None:
    """The best of the trials that agree; None where none of them has a result yet.

    Raises InputError where they learned in several environments, whose returns cannot be compared.
    """
    found = [one for one in standings(experiment) if agrees(one.path)]
    envs = dict.fromkeys(one.env for one in found)
    if len(envs) > 1:
        firsts = [next(one for one in found if one.env == env) for env in envs]
        listed = "\n".join(f"  {_line(one)}   {one.env}" for one in firsts)
        raise InputError(
            f"{os.path.relpath(experiment)} has trials in {len(envs)} environments, whose returns cannot be "
            f"compared. Name one trial; the best of each environment are:\n{listed}",
            code="contradiction",
            key=str(experiment),
        )
    return found[0] if found and found[0].comparable else None


def listed(experiment: Path, command: str) -> str:
    """A line for each trial with its result, the best first. command: what one types before a run folder."""
    found = standings(experiment)
    if not found:
        return "none of its trials has begun"
    lines = [f"  {_line(one)}" for one in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"  and {len(found) - SHOWN} more")
    return "\n".join(["name one of its trials", *lines, f"as in: {command}{os.path.relpath(found[0].path)}"])


def _line(one: Standing) -> str:
    return f"{os.path.relpath(one.path)}   {one.told}"


def _played(run: Run) -> Standing:
    """Rank a trial by its sessions' own returns."""
    returns = final_returns([run])
    found = group_return(returns)
    if found is None or run.status == "failed":
        return Standing(run.path, run.env, (), False, run.status)
    status = "" if run.status == "finished" else f", {run.status}"
    return Standing(run.path, run.env, (-found.value,), True, f"final return {found.value:,.1f}{status}")


def _searched(run: Run, search: SearchResult, trial: SearchTrial) -> Standing:
    """Rank a trial by the objective of the search."""
    sign = -1.0 if search.maximize[0] else 1.0
    measure = search.objective[0]
    mean = next((one.mean for one in search.confirmed if one.trial == trial.number), None)
    if mean is not None:
        told = f"{measure} {mean:,.1f} on the fresh seeds of the confirmation"
        return Standing(run.path, run.env, (0, sign * mean, trial.number), True, told)
    if not trial.values:
        return Standing(run.path, run.env, (), False, run.status)
    value, complete = trial.values[0], trial.state == "complete"
    told = f"{measure} {value:,.1f}{'' if complete else f', {run.status}'}"
    return Standing(run.path, run.env, (1, sign * value, trial.number), complete, told)
