"""The queue of the trials of a search on this machine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from labrl.analysis.formats import score
from labrl.errors import first_line
from labrl.experiment.launcher import TrialLauncher
from labrl.experiment.machine import Need
from labrl.experiment.scheduler import RetryingQueue, run_queue
from labrl.experiment.search.options import SearchConfig
from labrl.experiment.search.study import HEARTBEAT, MACHINE, SILENT, Study, error_of
from labrl.run.experiment import Experiment, TrialRecord
from labrl.session.callbacks.pruning import Answers
from labrl.session.interruption import Interruption
from labrl.trial.summary import say

OF_A_TRIAL = ("meta.progress=false", "meta.report=false", "meta.videos=false")
"""Overrides of every trial of a search, unless the command line sets the key. Reports and videos of many
short trials would take more time than the trials."""

RECORD_SECONDS = 1.0
"""Shortest time between two updates of `experiment.json`, in seconds."""


class SearchQueue(RetryingQueue):
    """The queue of the trials of one machine's part in a study."""

    seconds = 0.05  # A session waits for the answer to its evaluation.

    def __init__(
        self,
        study: Study,
        experiment: Experiment,
        folder_of: Callable[[int], str],
        need: Need,
        options: SearchConfig,
    ) -> None:
        """folder_of: function from the number of a trial to the name of its run folder; need: cores and GPUs
        of each trial."""
        super().__init__(experiment.path, options.retries, Interruption())
        self.study, self.experiment, self.options, self.need = study, experiment, options, need
        self.gave_up = False
        """Whether too many trials have failed."""
        self._folder_of, self._answers = folder_of, Answers()
        self._seen: Sequence[FrozenTrial] | None = None
        """The trials of the study when the last one ended, for the next one that is asked for."""
        self._next_beat = self._next_record = time.monotonic() + RECORD_SECONDS

    def run(self, launcher: TrialLauncher) -> None:
        """Run trials until all of the study have ended, or a signal or too many failures end the search.

        Waits for the trials of other machines, because another trial takes the place of one whose machine
        dies. Raises errors of the study's storage after the own trials have been saved and ended.
        """
        run_queue(self, launcher, self.interruption)
        waits = False
        while not (self.gave_up or self.interruption.requested or self.study.is_complete()):
            if not waits:
                say("waiting for the trials of other machines")
            waits = True
            time.sleep(RECORD_SECONDS)
            self.tick(())
            if self.ask():
                run_queue(self, launcher, self.interruption)
        self.record()

    def about(self, trial: TrialRecord) -> str:
        """Return the searched values of a trial in one line."""
        return values_text(trial.facts["params"])

    def next(self, has_room: Callable[[Need], bool]) -> tuple[TrialRecord, Need] | None:
        """Return a trial to continue after its process died, or the next trial, if there is room."""
        if self.gave_up or not has_room(self.need) or not (self.left or self.ask()):
            return None
        return self.left.pop(0)

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
                self._answers.give(session, partial(self.study.should_prune, trial.number, folder))
        now = time.monotonic()
        if now > self._next_record:
            self.record()
        if now > self._next_beat:
            self._next_beat = now + HEARTBEAT
            self.study.beat()

    def states(self, running: Collection[Any]) -> Counter[str]:
        """Return the number of trials in each state, including those of other machines."""
        states = Counter[str](_status(trial) for trial in self.study.trials())
        states["waiting"] = max(self.study.total - states.total() + states["waiting"], 0)
        return states

    def note(self, trials: Sequence[FrozenTrial] | None = None) -> str:
        """Return the best value so far, or an empty string before a trial has finished."""
        best = self.study.best(trials)[:1]
        return "".join(f"best so far {score(one.value, 1)} (trial {one.number})" for one in best)

    def record(self) -> None:
        """Update `experiment.json` from the study."""
        began = time.monotonic()
        self.experiment.set_trials(map(self.record_of, self.study.trials()))
        now = time.monotonic()  # An update takes longer the more trials there are.
        self._next_record = now + max(RECORD_SECONDS, 20 * (now - began))

    def record_of(self, trial: FrozenTrial) -> TrialRecord:
        """Return the entry of a trial for `experiment.json`."""
        own, status = self.study.is_own(trial), _status(trial)
        if status == "running" and own and self.interruption.requested:
            status = "interrupted"
        _, _, home = trial.user_attrs.get(MACHINE, "").partition(":")
        folder = self._folder_of(trial.number)
        return TrialRecord(
            number=trial.number,
            overrides=self.overrides(trial.params, self.study.trial_seed(trial.number)),
            # For a trial of another machine, the full path.
            folder=str(Path(home) / folder if home and not own else folder),
            status=status,
            error=error_of(trial),
            facts={
                "params": trial.params,
                "values": list(trial.values) if trial.values is not None else None,
                "state": trial.state.name.lower(),
                "intermediate": [list(pair) for pair in sorted(trial.intermediate_values.items())],
            },
        )

    def overrides(self, params: Mapping[str, Any], seed: int) -> list[str]:
        """Return all overrides of a trial with the values `params`."""
        return [*OF_A_TRIAL, *self.study.space.overrides(params), f"seed={seed}"]

    def ask(self) -> bool:
        """Ask the study for the next trial. Return whether there is one."""
        trial, self._seen = self.study.ask(self._seen), None
        if trial is None:
            return False
        number, folder, facts = trial.number, self._folder_of(trial.number), {"params": trial.params}
        overrides = self.overrides(trial.params, self.study.trial_seed(number))
        record = TrialRecord(number=number, overrides=overrides, folder=folder, facts=facts)
        self.left.append((record, self.need))
        return True

    def _say_end(self, number: int) -> None:
        """Print a line about a trial that has ended. Give up if too many trials have failed."""
        trials = self._seen = self.study.trials()
        trial, leader = trials[number], self.note(trials)
        done = sum(one.state.is_finished() for one in trials)
        if trial.state == TrialState.FAIL:
            what = f"failed: {first_line(error_of(trial))}"
        else:
            pruned = trial.state == TrialState.PRUNED
            what = score(trial.value) + f", pruned at frame {trial.last_step or 0:,}" * pruned
        say(f"[{done}/{self.study.total}] trial {number}: {what}   {leader}   {values_text(trial.params)}")
        failed = sum(error_of(one) not in (None, SILENT) for one in trials)
        if failed > self.options.max_failure_rate * self.study.total and not self.gave_up:
            self.gave_up = True
            say(
                f"{failed} of {self.study.total} trials have failed, more than "
                f"search.max_failure_rate={self.options.max_failure_rate:g} allows, so the search stops"
            )


def _status(trial: FrozenTrial) -> Any:
    """Return the state of a trial in the words of `experiment.json`."""
    state = trial.state.name.lower()
    return {"complete": "finished", "fail": "failed"}.get(state, state)


def values_text(params: Mapping[str, Any]) -> str:
    """Return the searched values of a trial in one line."""
    return " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in params.items()
    )
