"""A search on this machine, from its first trial to the confirmation of the best ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from optuna.trial import FrozenTrial, TrialState

from labrl.analysis.formats import score
from labrl.errors import DONE, FAILED
from labrl.experiment.machine import Need
from labrl.experiment.scheduler import Engine, RetryingQueue, run_queue, working
from labrl.experiment.search.channel import Hub
from labrl.experiment.search.confirm import Confirmation, ConfirmingRuns
from labrl.experiment.search.options import Confirm
from labrl.experiment.search.recipe import Recipe
from labrl.experiment.search.study import FACTS, HEARTBEAT, Study
from labrl.experiment.task import Outcome, Task
from labrl.session.interruption import Interruption
from labrl.storage.experiment_folder import TRIAL_LOG, ExperimentFolder, TrialRecord, TrialStatus
from labrl.trial.summary import say

STATUS: dict[TrialState, TrialStatus] = {
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}

RECORD_SECONDS = 1.0
"""Between two updates of `experiment.json`, which takes longer the more trials there are."""


class Search(RetryingQueue):
    """One machine's part in a study: the queue of its trials."""

    def __init__(
        self,
        study: Study,
        recipe: Recipe,
        experiment: ExperimentFolder,
        subfolder: str,
        need: Need,
        max_failure_rate: float,
    ) -> None:
        """subfolder: name of a trial's run folder, with `{number}` in it; need: what each trial takes;
        max_failure_rate: share of all trials that may fail."""
        super().__init__(study.plan.retries, Interruption())
        self.study, self.recipe, self.experiment = study, recipe, experiment
        self._subfolder, self._need, self._max_failure_rate = subfolder, need, max_failure_rate
        self._gave_up = False
        self._broken: Exception | None = None
        self._last_beat = self._last_record = time.monotonic()

    def run(
        self, engine: Engine, confirm: Confirm | None, elsewhere: bool
    ) -> tuple[int, Confirmation | None]:
        """Run trials until the study has all of them, then confirm the best.

        confirm: how; None: not at all. elsewhere: whether trials run on other machines. Returns the exit
        code, that of a signal or FAILED where too many trials have failed, and the confirmation, if this
        machine made one. Raises what the study's storage raises, after all trials have been saved and ended.
        """
        with Hub(self._report, elsewhere) as self._hub, working(engine, self._interruption):
            run_queue(self, engine, self._interruption)
            self.record()
            if self._interruption.requested:
                return self._interruption.exit_code, None
            if self._gave_up:
                return FAILED, None
            confirmation = self._confirmed(confirm, engine)
            return (self._interruption.exit_code if self._interruption.requested else DONE), confirmation

    def next(self, has_room: Callable[[Need], bool]) -> Task | None:
        """Return a trial that died and continues, else the study's next one, if there is room."""
        if self._gave_up or not has_room(self._need):
            return None
        if self.left:
            return self.left.pop(0)
        one = self.study.next(self._subfolder)
        if one is None:
            return None
        return Task(
            number=one.number,
            overrides=[*self.recipe.overrides(one.params, one.seed), *self.recipe.place(one.folder)],
            folder=one.folder,
            need=self._need,
            channel=self._hub.channel(one.number),
            log=TRIAL_LOG,
            attempts=one.attempts,
        )

    def retried(self, task: Task) -> None:
        """Record in the study how often the trial's process has died."""
        self.study.note(task.number, attempts=task.attempts)

    def done(self, task: Task, outcome: Outcome) -> None:
        """Record in the study what a trial came to."""
        if outcome.status == "failed":
            self.study.fail(task.number, outcome.error or "it failed")
        else:
            self.study.finish(task.number, task.folder)
        self._say_end(task.number)

    def tick(self, running: Collection[Task]) -> None:
        """Record how the trials stand and tell other machines that this one lives, each when it is due.

        Raises what went wrong when a session reported.
        """
        if self._broken is not None:
            raise self._broken
        now = time.monotonic()
        if now - self._last_record > RECORD_SECONDS:
            self.record()
        if now - self._last_beat > HEARTBEAT:
            self._last_beat = now
            self.study.beat()

    def record(self) -> None:
        """Bring `experiment.json` up to what the study knows."""
        self.experiment.set_trials(map(self._as_record, self.study.trials()))
        self._last_record = time.monotonic()

    def _say_end(self, number: int) -> None:
        """Print a line about a trial that has ended, and give up where too many have failed."""
        trials = self.study.trials()
        trial, best = trials[number], self.study.best()
        done = sum(one.state.is_finished() for one in trials)
        match trial.state:
            case TrialState.COMPLETE:
                what = " ".join(map(score, trial.values))
            case TrialState.PRUNED:
                what = f"{score(trial.value)}, pruned at frame {trial.last_step:,}"
            case _:
                what = f"failed: {trial.user_attrs.get(FACTS, {}).get('error')}".partition("\n")[0]
        leader = ""
        if best and len(self.study.plan.measures) == 1:
            leader = f"   best so far {score(best[0].value)} (trial {best[0].number})"
        params = " ".join(
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in trial.params.items()
        )
        say(f"[{done}/{self.study.total}] trial {number}: {what}{leader}   {params}")
        failed = sum(one.state == TrialState.FAIL for one in trials)
        if failed > self._max_failure_rate * self.study.total and not self._gave_up:
            self._gave_up = True
            say(
                f"{failed} of {self.study.total} trials have failed, more than "
                f"search.max_failure_rate={self._max_failure_rate:g} allows, so the search stops"
            )

    def _confirmed(self, config: Confirm | None, engine: Engine) -> Confirmation | None:
        """Run the best trials on fresh seeds. Returns None where that is not to be done here."""
        study = self.study
        best = study.best()
        if config is None or not best or len(study.plan.measures) > 1 or not study.is_complete():
            return None
        if not study.claims_confirmation():
            say("another machine confirms the best trials on fresh seeds")
            return None
        confirmation = Confirmation.of(config, study.plan, best, study.seed, self.experiment.path)
        top = min(config.top, len(best))
        say(
            f"confirming the best {f'{top} trials' if top > 1 else 'trial'}"
            f"{' and the default' if config.default else ''}, each on {config.sessions} fresh seeds"
        )
        runs = ConfirmingRuns(confirmation, self.recipe, self._need, study.plan.retries, self._interruption)
        run_queue(runs, engine, self._interruption)
        if self._interruption.requested:
            return None
        confirmation.read(study.plan)
        return confirmation

    def _report(self, number: int) -> bool:
        """Return whether a trial, one of whose sessions has evaluated, is to stop. Other threads call it."""
        try:
            facts = self.study.trials()[number].user_attrs[FACTS]
            return self.study.report(number, Path(facts["folder"]))
        except Exception as error:
            self._broken = self._broken or error  # for the thread that can end the search
            return False

    def _as_record(self, trial: FrozenTrial) -> TrialRecord:
        own = trial.user_attrs.get(FACTS, {})
        home, status = self.experiment.path, STATUS[trial.state]
        if status == "running" and own.get("home") == str(home) and self._interruption.requested:
            status = "interrupted"
        # of another machine's trial the whole path
        folder = Path(own.get("folder", self._subfolder.format(number=trial.number)))
        return TrialRecord(
            number=trial.number,
            overrides=self.recipe.overrides(trial.params, self.study.trial_seed(trial.number)),
            folder=str(folder.relative_to(home) if folder.is_relative_to(home) else folder),
            status=status,
            error=own.get("error"),
            facts={
                "params": dict(trial.params),
                "values": list(trial.values) if trial.values is not None else None,
                "state": trial.state.name.lower(),
                "intermediate": [list(pair) for pair in sorted(trial.intermediate_values.items())],
                "host": own.get("host"),
            },
        )
