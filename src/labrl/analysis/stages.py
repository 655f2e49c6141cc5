"""Comparisons in stages of seeds: what the returns decide, and what the next stage costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from labrl.analysis.adastop import ALPHA, Stages, compare
from labrl.analysis.formats import duration
from labrl.analysis.groups import Group, by_env
from labrl.analysis.statistics import group_statistics, values_of
from labrl.errors import InputError
from labrl.run.experiment import Experiment
from labrl.run.folder import is_experiment
from labrl.run.run import Run

NOT_PLANNED = (
    "These seeds were not planned in stages, so the error is not limited to 5 %: looking at the returns "
    "before adding seeds produces differences that do not exist. To plan stages: labrl -m <groups> seed=auto"
)
"""Limitation of a comparison of runs whose seeds were not planned with `seed=auto`."""


def stages_of(experiment: Experiment | None) -> Stages | None:
    """Return the stages in which the seeds of an experiment were planned; None if they were not planned in
    stages."""
    recorded = experiment.info.get("stages") if experiment else None
    return Stages(**recorded) if recorded else None


def planned_stages(runs: Sequence[Run]) -> Stages | None:
    """Return the stages in which the seeds of `runs` were planned; None unless `runs` are all runs of one
    experiment that was planned in stages."""
    folders = {run.path.parent for run in runs}
    if len(folders) != 1 or not is_experiment(folder := folders.pop()):
        return None
    experiment = Experiment.open(folder)
    return stages_of(experiment) if len(experiment.runs) == len(runs) else None


def compare_entries(entries: Sequence[Mapping[str, Any]], stages: Stages) -> dict[str, Any]:
    """Compare the groups of one environment by AdaStop. entries: statistics of each group.

    Returns `size`, `most`, `alpha`; `pairs` (groups `x` and `y`, the `better` group or None, and `seeds`, the
    number of seeds of each group that were compared); `available`: the number of seeds of each group, also
    beyond the last complete stage; `next_stage`: the total number of seeds that each group of an undecided
    pair needs; `more`: how many of these seeds the group still lacks; `frames` and `seconds`: the expected
    training cost of the missing seeds, estimated from the group's sessions so far.
    """
    returns = {entry["name"]: values_of(entry, "final_return") for entry in entries}
    found = compare(returns, stages)
    next_stage = found.next_stage()
    more = {name: max(seeds - len(returns[name]), 0) for name, seeds in next_stage.items()}
    cost = {
        measure: sum(
            more[entry["name"]] * np.mean([one[measure] or 0 for one in entry["sessions"]] or [0])
            for entry in entries
            if entry["name"] in more
        )
        for measure in ("frames", "wall")
    }
    return {
        "size": stages.size,
        "most": stages.most,
        "alpha": ALPHA,
        "pairs": [pair._asdict() for pair in found.pairs],
        "available": {name: len(values) for name, values in returns.items()},
        "next_stage": next_stage,
        "more": more,
        "frames": round(cost["frames"]),
        "seconds": float(cost["wall"]),
    }


def best_of(found: Mapping[str, Any]) -> str | None:
    """Return the name of the group that is better than every other group; None if there is no such group.
    found: result of `compare_entries`."""
    pairs = found["pairs"]
    names = {name for pair in pairs for name in (pair["x"], pair["y"])}
    wins = [pair["better"] for pair in pairs]
    return next((name for name in names if wins.count(name) == len(names) - 1), None)


def pair_text(pair: Mapping[str, Any], most: int) -> str:
    """Return the decision about a pair as text, such as `ppo is better`."""
    if pair["better"]:
        return f"{pair['better']} is better"
    return "no difference found" if pair["seeds"] >= most else "undecided"


def next_text(found: Mapping[str, Any]) -> str:
    """Return a text on the seeds and the cost of the next stage, if there is one. found: result of
    `compare_entries`."""
    if not found["next_stage"]:
        return "no further seeds are needed"
    seeds, trials = found["more"], sum(found["more"].values())
    names = ", ".join(f"{count} of {name}" for name, count in seeds.items() if count)
    cost = f"{trials} trials, {found['frames']:,} frames, about {duration(found['seconds'])} of training"
    return f"next stage: seeds to add: {names} ({cost}); at most {found['most']} of each group"


def lines(env: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines on the state of each pair of groups in an environment, and on the next stage. found: result
    of `compare_entries`."""
    size, alpha = found["size"], 100 * found["alpha"]
    yield f"{env}, final returns in stages of {size} seeds (AdaStop, family-wise error at most {alpha:g} %):"
    for pair in found["pairs"]:
        state = pair_text(pair, found["most"])
        if pair["seeds"]:
            yield f"  {pair['x']} and {pair['y']}: {state} after {pair['seeds']} seeds each"
        else:
            had = " and ".join(f"{found['available'][name]} of {name}" for name in (pair["x"], pair["y"]))
            yield f"  {pair['x']} and {pair['y']}: {state}: a stage needs {size} seeds of each, got {had}"
    yield f"  {next_text(found)}"


def compare_in_stages(groups: Sequence[Group], stages: Stages) -> dict[str, dict[str, Any]]:
    """Return the result of `compare_entries` for each environment with at least two groups."""
    return {
        env: compare_entries([group_statistics(group.runs, group.name) for group in own], stages)
        for env, own in by_env(groups).items()
        if len(own) > 1
    }


def describe(groups: Sequence[Group], stages: Stages | None) -> Iterator[str]:
    """Yield the lines of `labrl-report --adaptive`. stages: None for runs that were not planned in stages.

    Raises InputError if no environment has two groups.
    """
    if not (found := compare_in_stages(groups, stages or Stages())):
        why = f"it needs two groups in one environment, got {', '.join(group.name for group in groups)}"
        raise InputError.usage("--adaptive", why, "Add folders, or set --by <key>")
    for env, own in found.items():
        yield from lines(env, own)
    if stages is None:
        yield NOT_PLANNED
