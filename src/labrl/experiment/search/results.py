"""The results of a search: its files, and the last lines on the terminal."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import yaml
from optuna.trial import TrialState

from labrl.analysis.formats import number, score
from labrl.analysis.runs import load_experiment
from labrl.analysis.search import SearchResult, read_search, summary, verdict
from labrl.errors import DONE, FAILED, INTERRUPTED, TERMINATED, LabrlError
from labrl.experiment.search.confirm import Confirmation
from labrl.experiment.search.recipe import BEST
from labrl.experiment.search.storage import StudyStorage
from labrl.storage.atomic import write_atomic
from labrl.storage.experiment_folder import ExperimentFolder
from labrl.trial import reporting
from labrl.trial.summary import say

if TYPE_CHECKING:
    from labrl.experiment.search.search import Search

RESULTS = "optimization_results.yaml"
"""File that hydra-optuna-sweeper writes, too."""


def conclude(
    search: Search, storage: StudyStorage, code: int, confirmation: Confirmation | None, report: bool
) -> int:
    """Write and print the results. report: whether to make a report. Returns the exit code of the command."""
    study, experiment = search.study, search.experiment
    stopped = code in (INTERRUPTED, TERMINATED)
    search.record()
    if stopped:
        experiment.set_status("interrupted")
        say(f"interrupted; to resume: labrl -m +resume={experiment.path}")
        return code
    facts = dict(experiment.info().get("search", {}))
    best = study.best()
    if confirmation is not None:
        maximize = study.plan.directions[0] == "maximize"
        facts["confirm"] = confirmation.as_json(experiment.path, maximize)
    elif (earlier := facts.get("confirm")) and earlier["candidates"][0]["trial"] != best[0].number:
        del facts["confirm"]  # another trial has become the best since
    found = read_search({**experiment.info(), "search": facts})
    assert found is not None
    told = summary(found, load_experiment(experiment.path).runs, experiment.path)
    if best:
        _write_results(search)
    if len(study.plan.measures) > 1:
        _tell_front(search)
    elif best:
        _tell_best(search, found, facts)
        facts["best"]["searched"] = next(one.value for one in best if one.number == facts["best"]["trial"])
        facts["best"]["confirmed"] = next(
            (one for one in told["confirmed"] if one["trial"] == told["winner"]), None
        )
    else:
        say("no trial has finished, so there is no best trial")
    trials = study.trials()
    failed = [trial for trial in trials if trial.state == TrialState.FAIL]
    running = sum(not trial.state.is_finished() for trial in trials)
    pruned = sum(trial.state == TrialState.PRUNED for trial in trials)
    say(f"{len(trials)} trials: {pruned} pruned, {len(failed)} failed, {running} still running elsewhere")
    frames = told["frames"]
    say(f"frames: {frames['search']:,} in the search, {frames['confirmation']:,} in the confirmation")
    code = FAILED if code or not best else DONE
    experiment.set_status("failed" if code else "finished", search=facts)
    if report:
        reporting.report_experiment(experiment.path)
    say(f"experiment folder: {experiment.path}")
    storage.close()
    return code


def break_off(experiment: ExperimentFolder, storage: StudyStorage, error: Exception) -> int:
    """Say that the study's storage or the disk has failed during the search. Returns the exit code.

    Raises `error` if it is anything else.
    """
    reason = storage.failed(error)
    if reason is None:
        raise error
    with contextlib.suppress(OSError, LabrlError):  # it may be the disk that is full, or gone
        experiment.set_status("interrupted")
    say(f"the search cannot continue: {reason}   (its storage: {storage.told})")
    say(f"the trials have saved their state. To continue after a repair: labrl -m +resume={experiment.path}")
    return FAILED


def _write_results(search: Search) -> None:
    """The file that users of Hydra's sweeper know."""
    study = search.study
    if len(study.plan.measures) == 1:
        best = study.best()[0]
        content: dict[str, Any] = {
            "name": "optuna",
            "best_params": dict(best.params),
            "best_value": best.value,
        }
    else:
        solutions = [{"params": dict(one.params), "values": list(one.values)} for one in study.best()]
        content = {"name": "optuna", "solutions": solutions}
    write_atomic(search.experiment.path / RESULTS, yaml.safe_dump(content, sort_keys=False))


def _tell_front(search: Search) -> None:
    plan = search.study.plan
    say(f"{len(search.study.best())} trials that no other trial beats in {' and '.join(plan.measures)}:")
    for trial in search.study.best():
        values = ", ".join(map(score, trial.values))
        say(f"  trial {trial.number}: {values}   {search.recipe.command(trial.params)}")


def _tell_best(search: Search, found: SearchResult, facts: dict[str, Any]) -> None:
    """Report the best on the terminal, in `experiment/best.yaml`, and in `facts` for `experiment.json`."""
    first, home, winner = search.study.best()[0], search.experiment.path, found.winner
    told = list(verdict(found))
    for sentence in told:
        say(sentence)
    for one in found.confirmed:
        say(f"  {one.name}: {', '.join(map(number, one.values)) or 'failed'}")
    best = first.number, dict(first.params)
    if winner is not None and winner.trial is not None:
        best = winner.trial, winner.params
    trial, params = best
    path = home / BEST
    path.parent.mkdir(exist_ok=True)
    command = search.recipe.command(params)
    facts["best"] = {"trial": trial, "params": params, "command": command, "file": BEST}
    write_atomic(path, search.recipe.as_yaml(params, home, told))
    say(f"best configuration, also in {path}:")
    say(f"  {command}")
