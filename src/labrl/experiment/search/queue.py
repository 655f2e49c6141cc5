"""A search on this machine: the queue of its trials, the confirmation of the best ones, and the result.

The confirmation runs the best trials on seeds that the search has not used, to rule out luck. It is recorded
as the entry `confirm` of `experiment.json`, with the fresh `seeds` and the `candidates`. Each candidate has
the number of its `trial` (null for the configuration without any searched value), its `params`, its values in
the search (`searched`), the frame at which the search `pruned` it (if it did), its run `folders`, one for
each seed, and, after these runs, their `values` by objective.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from labrl.analysis.formats import join_names, number, score
from labrl.analysis.search_result import SearchResult, read_search, summary, verdict
from labrl.config.compose import resolve
from labrl.errors import DONE, FAILED, INTERRUPTED, TERMINATED, InputError, first_line
from labrl.experiment.launcher import TrialLauncher
from labrl.experiment.machine import Need
from labrl.experiment.scheduler import RetryingQueue, run_queue
from labrl.experiment.search.options import Confirm, SearchConfig
from labrl.experiment.search.space import BEST, Recipe
from labrl.experiment.search.study import ERROR, HEARTBEAT, MACHINE, Study, is_given_up
from labrl.experiment.summary import print_experiment
from labrl.run.atomic import write_atomic
from labrl.run.experiment import CONFIRMING, Experiment, TrialRecord
from labrl.run.folder import Status
from labrl.run.provenance import as_yaml
from labrl.run.run import Run
from labrl.seeding import derived_seed
from labrl.session.callbacks.pruning import Pruning
from labrl.session.interruption import Interruption
from labrl.trial import reporting
from labrl.trial.summary import say

STATUS: dict[TrialState, Status] = {
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}

RECORD_SECONDS = 1.0
"""Shortest time between two updates of `experiment.json`, in seconds."""

Confirmation = dict[str, Any]
"""The entry `confirm` of `experiment.json`."""


class Search(RetryingQueue):
    """One machine's part in a study: the queue of its trials."""

    seconds = 0.05  # A session waits for the answer to its evaluation.

    def __init__(
        self,
        study: Study,
        recipe: Recipe,
        experiment: Experiment,
        folder_of: Callable[[int], str],
        need: Need,
        options: SearchConfig,
        max_failure_rate: float,
    ) -> None:
        """folder_of: function from the number of a trial to the name of its run folder; need: cores and GPUs
        of each trial; max_failure_rate: fraction of the trials that may fail."""
        super().__init__(experiment.path, options.retries, Interruption())
        self.study, self.recipe, self.experiment, self.options = study, recipe, experiment, options
        self.need, self._folder_of, self._max_failure_rate = need, folder_of, max_failure_rate
        self._pruning, self._gave_up = Pruning(), False
        self._next_beat = self._next_record = time.monotonic() + RECORD_SECONDS

    def run(self, launcher: TrialLauncher) -> tuple[int, Confirmation | None]:
        """Run all trials of the study, then confirm the best.

        Returns the exit code (FAILED if too many trials failed, or the code of a signal), and the
        confirmation; None if there is none. Raises errors of the study's storage after all trials have been
        saved and ended.
        """
        interruption, confirmation = self._interruption, None
        with launcher, interruption:
            run_queue(self, launcher, interruption)
            self.record()
            if self._gave_up and not interruption.requested:
                return FAILED, None
            if not interruption.requested:
                confirmation = confirm(self, launcher, interruption)
        return (interruption.exit_code if interruption.requested else DONE), confirmation

    def check_first(self) -> None:
        """Draw the first trial of a new study, and raise InputError if one of its values is wrong by itself.
        A contradiction of several values is left to the trial."""
        if self.study.trials() or (trial := self.study.ask()) is None:
            return
        try:
            resolve(self.recipe.compose(trial.params))
        except InputError as error:
            if error.code != "contradiction":
                self.study.fail(trial.number, str(error))
                raise
        self.left.append(self._to_run(trial))

    def about(self, trial: TrialRecord) -> str:
        """Return the searched values of a trial in one line."""
        return values_text(trial.facts["params"])

    def next(self, has_room: Callable[[Need], bool]) -> tuple[TrialRecord, Need] | None:
        """Return a trial to continue after its process died, or the next trial, if there is room."""
        if self._gave_up or not has_room(self.need):
            return None
        if self.left:
            return self.left.pop(0)
        trial = self.study.ask()
        return None if trial is None else self._to_run(trial)

    def done(self, trial: TrialRecord) -> None:
        """Tell the study the result of a trial."""
        if trial.status == "failed":
            self.study.fail(trial.number, trial.error or "it failed")
        else:
            self.study.finish(trial.number, self.path_of(trial))
        self._say_end(trial.number)

    def tick(self, running: Collection[TrialRecord]) -> None:
        """Answer the sessions that have evaluated. If due, also record the status of the trials and give a
        heartbeat. Raises errors of the study's storage."""
        for trial in running:
            folder = self.path_of(trial)
            for session in folder.glob("session_*"):
                self._pruning.answer(session, partial(self.study.should_prune, trial.number, folder))
        now = time.monotonic()
        if now > self._next_record:
            self.record()
        if now > self._next_beat:
            self._next_beat = now + HEARTBEAT
            self.study.beat()

    def states(self, running: Collection[Any]) -> Counter[str]:
        """Return the number of trials in each state, including those of other machines."""
        states = Counter[str](STATUS[trial.state] for trial in self.study.trials())
        states["waiting"] = max(self.study.total - states.total() + states["waiting"], 0)
        return states

    def note(self) -> str:
        """Return the best value so far, or an empty string before a trial has finished."""
        return _leader(self.study.best())

    def record(self) -> None:
        """Update `experiment.json` from the study."""
        began = time.monotonic()
        self.experiment.set_trials(map(self.record_of, self.study.trials()))
        now = time.monotonic()  # An update takes longer the more trials there are.
        self._next_record = now + max(RECORD_SECONDS, 20 * (now - began))

    def record_of(self, trial: FrozenTrial) -> TrialRecord:
        """Return the entry of a trial for `experiment.json`."""
        own, status = self.study.is_own(trial), STATUS[trial.state]
        if status == "running" and own and self._interruption.requested:
            status = "interrupted"
        host, _, home = trial.user_attrs.get(MACHINE, "").partition(":")
        folder = self._folder_of(trial.number)
        given_up = f"its machine, {host}, gave no heartbeat" if is_given_up(trial) else None
        return TrialRecord(
            number=trial.number,
            overrides=self.recipe.overrides(self.params_of(trial), self.study.trial_seed(trial.number)),
            # For a trial of another machine, the full path.
            folder=str(Path(home) / folder if home and not own else folder),
            status=status,
            error=trial.user_attrs.get(ERROR, given_up),
            facts={
                "params": self.params_of(trial),
                "values": list(trial.values) if trial.values is not None else None,
                "state": trial.state.name.lower(),
                "intermediate": [list(pair) for pair in sorted(trial.intermediate_values.items())],
                "host": host or None,
            },
        )

    def params_of(self, trial: FrozenTrial | optuna.Trial) -> dict[str, Any]:
        """Return the values of the searched keys of a trial."""
        return {key: trial.params[key] for key in self.recipe.space.distributions if key in trial.params}

    def _to_run(self, trial: optuna.Trial) -> tuple[TrialRecord, Need]:
        params, number = self.params_of(trial), trial.number
        overrides = self.recipe.overrides(params, self.study.trial_seed(number))
        folder, facts = self._folder_of(number), {"params": params}
        return TrialRecord(number=number, overrides=overrides, folder=folder, facts=facts), self.need

    def _say_end(self, number: int) -> None:
        """Print a line about a trial that has ended. Give up if too many trials have failed."""
        trials = self.study.trials()
        trial, best = trials[number], self.study.best(trials)
        done = sum(one.state.is_finished() for one in trials)
        leader = f"   {_leader(best)}" if best else ""
        frame = trial.last_step
        match trial.state:
            case TrialState.COMPLETE:
                what = score(trial.value)
            case TrialState.PRUNED:
                what = f"{score(trial.value, 1)}, pruned at frame {frame or 0:,}"
                # The final value of the best trial would be compared with a value of fewer frames.
                there = best[0].intermediate_values.get(frame or 0) if best else None
                leader += "" if there is None else f", which had {score(there, 1)} at that frame"
            case _:
                lost = "its machine has been silent for too long"
                what = f"failed: {first_line(trial.user_attrs.get(ERROR, lost))}"
        say(f"[{done}/{self.study.total}] trial {number}: {what}{leader}   {values_text(trial.params)}")
        failed, most = sum(ERROR in one.user_attrs for one in trials), self._max_failure_rate
        if failed > most * self.study.total and not self._gave_up:
            self._gave_up = True
            say(
                f"{failed} of {self.study.total} trials have failed, more than "
                f"search.max_failure_rate={most:g} allows, so the search stops"
            )


def _leader(best: Sequence[FrozenTrial]) -> str:
    """Return a text about the best trial, or an empty string before a trial has finished."""
    return f"best so far {score(best[0].value, 1)} (trial {best[0].number})" if best else ""


def values_text(params: Mapping[str, Any]) -> str:
    """Return the searched values of a trial in one line."""
    return " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in params.items()
    )


def confirm(search: Search, launcher: TrialLauncher, interruption: Interruption) -> Confirmation | None:
    """Run the best trials of a complete study on fresh seeds. Return the confirmation; None if there is
    none."""
    study, config, home = search.study, search.options.confirm, search.experiment.path
    if config is None or not study.best() or not study.is_complete():
        return None
    entry = to_confirm(config, study)
    names = [
        "the default" if one["trial"] is None else f"trial {one['trial']}{' (pruned)' * ('pruned' in one)}"
        for one in entry["candidates"]
    ]
    say(f"confirming {join_names(names)}, each on {config.sessions} fresh seeds")
    runs = [
        (name, search.recipe.overrides(one["params"], seed, max_session=1))
        for one in entry["candidates"]
        for name, seed in zip(one["folders"], entry["seeds"], strict=True)
    ]
    trials = [TrialRecord(number=n, overrides=own, folder=name) for n, (name, own) in enumerate(runs)]
    left = [(trial, search.need) for trial in trials]
    confirming = RetryingQueue(home, search.options.retries, interruption, left)
    confirming.shows_progress = search.shows_progress
    run_queue(confirming, launcher, interruption)
    return None if interruption.requested else confirmed(entry, home, study)


def to_confirm(config: Confirm, study: Study) -> Confirmation:
    """Return the seeds and the candidates of a confirmation, the best trial first.

    If fewer trials have finished than `config.top`, the best pruned trials follow, with the frame at which
    they were `pruned`.
    """
    candidates: list[dict[str, Any]] = []
    for trial in [*study.best(), *study.best_pruned()][: config.top]:
        pruned = {"pruned": trial.last_step} if trial.state == TrialState.PRUNED else {}
        params = {key: value for key, value in trial.params.items() if key in study.space.distributions}
        candidates.append({"trial": trial.number, "params": params, "searched": list(trial.values), **pruned})
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
    candidates = []
    for one in entry["candidates"]:
        values = [
            objective.value(home / name) if Run.status_at(home / name) == "finished" else None
            for name in one["folders"]
        ]
        known = [value for value in values if value is not None]
        mean = float(np.mean(known)) if len(known) == len(values) else None
        listed = [None if value is None else [value] for value in values]
        candidates.append({**one, "values": listed, "mean": mean})
    sign = -1 if study.maximizes else 1
    sound = [one for one in candidates if one["trial"] is not None and one["mean"] is not None]
    winner = min(sound, key=lambda one: (sign * one["mean"], one["trial"]), default=None)
    return {
        **entry,
        "candidates": candidates,
        "winner": None if winner is None else winner["trial"],
    }


def conclude(search: Search, code: int, confirmation: Confirmation | None, report: bool) -> int:
    """Write and print the results of the search. Return the exit code of the command.

    code, confirmation: results of `Search.run`; report: whether to make a report.
    """
    study, experiment = search.study, search.experiment
    search.record()
    if code in (INTERRUPTED, TERMINATED):
        experiment.set_status("interrupted")
        _tell_so_far(search)
        return code
    facts = dict(experiment.read_info().get("search", {}))
    best = study.best()
    if confirmation is not None:
        facts["confirm"] = confirmation
    elif (earlier := facts.get("confirm")) and earlier["candidates"][0]["trial"] != best[0].number:
        del facts["confirm"]  # another trial has become the best since
    found = read_search({**experiment.read_info(), "search": facts})
    assert found is not None
    told = summary(found, Experiment.load(experiment.path).runs, experiment.path)
    if not best:
        say("no trial has finished, so there is no best trial")
    else:
        facts["best"] = _tell_best(search, found, told)
    states = search.states(())
    say(
        f"{states.total()} trials: {states['pruned']} pruned, {states['failed']} failed, "
        f"{states['running']} still running elsewhere"
    )
    frames = told["frames"]
    say(f"frames: {frames['search']:,} in the search, {frames['confirmation']:,} in the confirmation")
    code = FAILED if code or not best else DONE
    experiment.set_status("failed" if code else "finished", search=facts)
    reporting.finish_experiment(experiment.path, report)
    say(f"experiment folder: {experiment.path}")
    study.close()
    return code


def _tell_so_far(search: Search) -> None:
    """Print the best trial of an interrupted search and the table of its trials, as for a grid."""
    records = [search.record_of(trial) for trial in search.study.trials()]
    if told := search.note():
        say(told)
    shown = [dataclasses.replace(one, overrides=[search.about(one)]) for one in records]
    print_experiment(search.experiment.path, shown, "interrupted")


def _tell_best(search: Search, found: SearchResult, told: dict[str, Any]) -> dict[str, Any]:
    """Print the best configuration, and write it to `experiment/best.yaml` and Hydra's file of results.

    See `SearchResult.confirmed_best`; without a confirmation, it is the best trial, or the default if all
    values are equal. told: summary of the search. Returns the entry for `experiment.json`, in which `trial`
    is null for the default.
    """
    first, home, best = search.study.best()[0], search.experiment.path, found.confirmed_best
    results = {"name": "optuna", "best_params": dict(first.params), "best_value": first.value}
    write_atomic(home / "optimization_results.yaml", as_yaml(results))  # as hydra-optuna-sweeper calls it
    sentences = list(verdict(found))
    for line in sentences:
        say(line)
    for one in found.confirmed:
        say(f"  {one.name}: {', '.join(map(number, one.values)) or 'failed'}")
    trial: int | None
    if best is not None:
        trial, params, searched = best.trial, best.params, best.searched
    elif found.is_flat:
        trial, params, searched = None, {}, None
    else:
        trial, params, searched = first.number, search.params_of(first), first.value
    path = home / BEST
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, search.recipe.as_yaml(params, home, sentences))
    command = search.recipe.command(params)
    say(f"best configuration, also in {path}:")
    say(f"  {command}")
    if best is found.default and found.winner is not None and not found.is_flat:
        say(f"configuration of trial {found.winner.trial}:")
        say(f"  {search.recipe.command(found.winner.params)}")
    return {
        "trial": trial,
        "params": params,
        "command": command,
        "file": BEST,
        "searched": searched,
        "confirmed": next((one for one in told["confirmed"] if best and one["trial"] == best.trial), None),
    }
