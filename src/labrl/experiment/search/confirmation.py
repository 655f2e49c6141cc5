"""The confirmation of a search, which rules out luck, and its result.

The best trials run again on seeds that the search has not used. The confirmation is recorded as the entry
`confirm` of `experiment.json`, with the fresh `seeds` and the `candidates`. Each candidate has the number of
its `trial` (null for the configuration without any searched value), its `params`, its values in the search
(`searched`), the frame at which the search `pruned` it (if it did), its run `folders`, one for each seed,
and, after these runs, their `values` by objective.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import TrialState

from labrl.analysis.search_result import SearchResult, read_search, summary, verdict
from labrl.errors import DONE, FAILED
from labrl.experiment.launcher import TrialLauncher
from labrl.experiment.scheduler import RetryingQueue, run_queue
from labrl.experiment.search.options import Confirm
from labrl.experiment.search.queue import SearchQueue
from labrl.experiment.search.space import BEST
from labrl.experiment.search.study import Study
from labrl.experiment.summary import print_experiment
from labrl.run.atomic import write_atomic
from labrl.run.experiment import CONFIRMING, Experiment, TrialRecord
from labrl.run.provenance import as_yaml
from labrl.run.run import Run
from labrl.seeding import derived_seed
from labrl.trial import reporting
from labrl.trial.summary import say

Confirmation = dict[str, Any]
"""The entry `confirm` of `experiment.json`."""


def confirm(queue: SearchQueue, launcher: TrialLauncher) -> Confirmation | None:
    """Run the best trials of a complete study on fresh seeds. Return the confirmation; None if there is
    none on this machine."""
    study, config, interruption = queue.study, queue.options.confirm, queue.interruption
    if config is None or queue.gave_up or interruption.requested or not study.best():
        return None
    if (machine := study.confirming_machine()) != study.machine:
        say(f"the best trials are confirmed by {machine}")
        return None
    entry = to_confirm(config, study)
    count = len(entry["candidates"])
    say(f"confirming {count} configurations, each on {config.sessions} fresh seeds")
    runs = [
        (name, [*queue.overrides(one["params"], seed), "meta.max_session=1"])
        for one in entry["candidates"]
        for name, seed in zip(one["folders"], entry["seeds"], strict=True)
    ]
    trials = [TrialRecord(number=n, overrides=own, folder=name) for n, (name, own) in enumerate(runs)]
    left = [(trial, queue.need) for trial in trials]
    confirming = RetryingQueue(queue.home, queue.options.retries, interruption, left)
    confirming.shows_progress = queue.shows_progress
    run_queue(confirming, launcher, interruption)
    return None if interruption.requested else confirmed(entry, queue.home, study)


def to_confirm(config: Confirm, study: Study) -> Confirmation:
    """Return the seeds and the candidates of a confirmation, the best trial first.

    If fewer trials have finished than `config.top`, the best pruned trials follow, with the frame at which
    they were `pruned`.
    """
    candidates: list[dict[str, Any]] = []
    for trial in [*study.best(), *study.best(pruned=True)][: config.top]:
        one = {"trial": trial.number, "params": trial.params, "searched": list(trial.values)}
        pruned = {"pruned": trial.last_step} if trial.state == TrialState.PRUNED else {}
        candidates.append({**one, **pruned})
    if config.default:
        candidates.append({"trial": None, "params": {}, "searched": None})
    for one in candidates:
        name = "default" if one["trial"] is None else f"trial_{one['trial']}"
        one["folders"] = [f"{CONFIRMING}{name}_{index}" for index in range(config.sessions)]
    seeds = [derived_seed(study.seed, "confirmation", index) for index in range(config.sessions)]
    return {"seeds": seeds, "candidates": candidates}


def confirmed(entry: Mapping[str, Any], home: Path, study: Study) -> Confirmation:
    """Return the confirmation with the results of its runs.

    Each candidate gets its `values`, a list with the value of each run (null for an unfinished run), and
    their `mean` (null if a run did not finish). `winner` is the trial with the best mean.
    """
    objective = dataclasses.replace(study.objective, num_sessions=1)
    candidates, means = [], {}
    for one in entry["candidates"]:
        folders = [home / name for name in one["folders"]]
        found = [objective.value(run) if Run.status_at(run) == "finished" else None for run in folders]
        values = [value for value in found if value is not None]
        mean = float(np.mean(values)) if len(values) == len(found) else None
        listed = [None if value is None else [value] for value in found]
        candidates.append({**one, "values": listed, "mean": mean})
        if one["trial"] is not None and mean is not None:
            means[one["trial"]] = mean if study.maximizes else -mean
    winner = max(sorted(means), key=means.__getitem__, default=None)
    return {**entry, "candidates": candidates, "winner": winner}


def conclude(queue: SearchQueue, confirmation: Confirmation | None, report: bool) -> int:
    """Write and print the results of a search that has ended. Return the exit code of the command.

    report: whether to make a report.
    """
    study, experiment = queue.study, queue.experiment
    queue.record()
    if queue.interruption.requested:
        experiment.set_status("interrupted")
        say(queue.note() or "no trial has finished")
        records = map(queue.record_of, study.trials())
        shown = [dataclasses.replace(one, overrides=[queue.about(one)]) for one in records]
        print_experiment(experiment.path, shown, "interrupted")
        return queue.interruption.exit_code
    facts = dict(experiment.read_info().get("search", {}))
    best = study.best()
    if confirmation is not None:
        facts["confirm"] = confirmation
    elif (earlier := facts.get("confirm")) and earlier["candidates"][0]["trial"] != best[0].number:
        del facts["confirm"]  # another trial has become the best since
    found = read_search({**experiment.read_info(), "search": facts})
    assert found is not None
    told = summary(found, Experiment.load(experiment.path).runs, experiment.path)
    if best:
        facts["best"] = _tell_best(queue, found, told)
    else:
        say("no trial has finished, so there is no best trial")
    states = queue.states(())
    say(f"{states.total()} trials: {states['pruned']} pruned, {states['failed']} failed")
    frames = told["frames"]
    say(f"frames: {frames['search']:,} in the search, {frames['confirmation']:,} in the confirmation")
    code = FAILED if queue.gave_up or not best else DONE
    experiment.set_status("failed" if code else "finished", search=facts)
    reporting.finish_experiment(experiment.path, report)
    say(f"experiment folder: {experiment.path}")
    study.leave()
    return code


def _tell_best(queue: SearchQueue, found: SearchResult, told: dict[str, Any]) -> dict[str, Any]:
    """Print the best configuration, and write it to `experiment/best.yaml` and Hydra's file of results.

    See `SearchResult.confirmed_best`; without a confirmation, it is the best trial, or the default if all
    values are equal. told: summary of the search. Returns the entry for `experiment.json`, in which `trial`
    is null for the default.
    """
    space, home, first, best = queue.study.space, queue.home, queue.study.best()[0], found.confirmed_best
    results = {"name": "optuna", "best_params": dict(first.params), "best_value": first.value}
    write_atomic(home / "optimization_results.yaml", as_yaml(results))  # as hydra-optuna-sweeper calls it
    sentences = list(verdict(found))
    for line in sentences:
        say(line)
    trial: int | None
    trial, params, searched = first.number, first.params, first.value
    if best is not None:
        trial, params, searched = best.trial, best.params, best.searched
    elif found.is_flat:
        trial, params, searched = None, {}, None
    path = home / BEST
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, space.as_yaml(params, home, sentences))
    command = space.command(params)
    say(f"best configuration, also in {path}:")
    say(f"  {command}")
    if best is found.default and found.winner is not None and not found.is_flat:
        say(f"configuration of trial {found.winner.trial}:")
        say(f"  {space.command(found.winner.params)}")
    return {
        "trial": trial,
        "params": params,
        "command": command,
        "file": BEST,
        "searched": searched,
        "confirmed": next((one for one in told["confirmed"] if best and one["trial"] == best.trial), None),
    }
