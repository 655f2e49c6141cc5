"""A search on this machine, from its first trial to the confirmation of the best ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from optuna.trial import FrozenTrial, TrialState

from labrl.errors import DONE, FAILED
from labrl.experiment.pool import Lost, Pool
from labrl.experiment.search.channel import Hub
from labrl.experiment.search.confirm import Confirmation
from labrl.experiment.search.options import Confirm
from labrl.experiment.search.recipe import Recipe
from labrl.experiment.search.study import FACTS, HEARTBEAT, Assignment, Study
from labrl.experiment.search.worker import Outcome, Task, perform
from labrl.session.interruption import Interruption
from labrl.storage.experiment_folder import ExperimentFolder, TrialRecord, TrialStatus
from labrl.storage.provenance import Typed
from labrl.trial.shares import Share
from labrl.trial.summary import say

STATUS: dict[TrialState, TrialStatus] = {
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}

TICK = 1.0
"""Seconds between two looks at what has changed."""

Processes = Pool[tuple[Assignment, Share], Task, Outcome]
"""A process knows what it runs, and on which share of the machine."""


@dataclass
class Search:
    """What one machine does for a study."""

    study: Study
    confirm: Confirm | None
    """How the best are confirmed; None: not at all."""
    max_failure_rate: float
    """Share of all trials that may fail."""
    recipe: Recipe
    experiment: ExperimentFolder
    config_dir: str | None
    shares: list[Share]
    """Of this machine, one for each trial that runs at once."""
    subfolder: str
    """Name of a trial's run folder, with `{number}` in it."""
    typed: Typed
    """The command that started it."""

    def __post_init__(self) -> None:
        self._free = list(self.shares)
        self._again: list[Assignment] = []
        self._gave_up = False
        self._broken: Exception | None = None
        self._last_beat = time.monotonic()

    def run(self) -> tuple[int, Confirmation | None]:
        """Run trials until the study has all of them, then confirm the best.

        Returns the exit code, that of a signal or FAILED where too many trials have failed, and the
        confirmation, if this machine made one. Raises what the study's storage raises, after all trials have
        been saved and ended.
        """
        with (
            Interruption() as interruption,
            Hub(self._report) as hub,
            Processes(perform) as pool,
        ):
            self._run_trials(pool, hub, interruption)
            self.record(interrupted=interruption.requested)
            if interruption.requested:
                return interruption.exit_code, None
            if self._gave_up:
                return FAILED, None
            confirmation = self._confirmed(pool, interruption)
            return (interruption.exit_code if interruption.requested else DONE), confirmation

    def record(self, interrupted: bool = False) -> None:
        """Bring `experiment.json` up to what the study knows."""
        self.experiment.set_trials(self._as_record(trial, interrupted) for trial in self.study.trials())

    def _run_trials(self, pool: Processes, hub: Hub, interruption: Interruption) -> None:
        def task(one: Assignment) -> Task:
            words = self.recipe.words(one.params, one.seed)
            return Task(words, one.folder, self.config_dir, one.resume, hub.channel(one.number), self.typed)

        def following() -> Assignment | None:
            if self._gave_up:
                return None
            return self._again.pop() if self._again else self.study.next(self.subfolder)

        self._keep_busy(pool, interruption, following, task, self._trial_ended)

    def _keep_busy(
        self,
        pool: Processes,
        interruption: Interruption,
        following: Callable[[], Assignment | None],
        task: Callable[[Assignment], Task],
        ended: Callable[[Assignment, Outcome | Lost, bool], None],
    ) -> None:
        """Give tasks to free workers until none is left and the last has ended, or a signal came."""
        told = False
        while True:
            if self._broken is not None:
                raise self._broken
            while self._free and not interruption.requested and (one := following()) is not None:
                share = self._free.pop(0)
                pool.start((one, share), task(one), share.environment)
                self.record()
            if not pool.jobs:
                return
            for (one, share), outcome in pool.ended(TICK):
                self._free.append(share)
                ended(one, outcome, interruption.requested)
            self._beat()
            if interruption.requested and not told:
                told = True
                pool.stop()

    def _trial_ended(self, one: Assignment, outcome: Outcome | Lost, interrupted: bool) -> None:
        died = isinstance(outcome, Lost) or outcome.status == "interrupted"
        if died and interrupted:
            return  # it stays this machine's to go on with
        if died:
            again = self.study.died(one)
            if again is not None:
                self._again.append(again)
                say(f"trial {one.number}: {_how(outcome)}. It continues from its checkpoint")
                return
            self.study.fail(
                one.number, f"its process died {one.attempts + 1} times; the last time: {_how(outcome)}"
            )
        elif isinstance(outcome, Outcome) and outcome.status == "failed":
            self.study.fail(one.number, outcome.error or "it failed")
        else:
            self.study.finish(one.number, one.folder)
        self.record()
        self._tell(one.number)
        self._count_failures()

    def _count_failures(self) -> None:
        failed = sum(trial.state == TrialState.FAIL for trial in self.study.trials())
        if failed > self.max_failure_rate * self.study.total and not self._gave_up:
            self._gave_up = True
            say(
                f"{failed} of {self.study.total} trials have failed, more than "
                f"search.max_failure_rate={self.max_failure_rate:g} allows, so the search stops"
            )

    def _tell(self, number: int) -> None:
        """One line about a trial that has ended."""
        trials = self.study.trials()
        trial, best = trials[number], self.study.best()
        done = sum(one.state.is_finished() for one in trials)
        match trial.state:
            case TrialState.COMPLETE:
                what = ", ".join(f"{value:,.1f}" for value in trial.values)
            case TrialState.PRUNED:
                what = f"{trial.value:,.1f}, pruned at frame {trial.last_step:,}"
            case _:
                what = f"failed: {trial.user_attrs.get(FACTS, {}).get('error')}".partition("\n")[0]
        leader = ""
        if best and len(self.study.plan.measures) == 1:
            leader = f"   best so far {best[0].value:,.1f} (trial {best[0].number})"
        params = " ".join(f"{key}={_short(value)}" for key, value in trial.params.items())
        say(f"[{done}/{self.study.total}] trial {number}: {what}{leader}   {params}")

    def _confirmed(self, pool: Processes, interruption: Interruption) -> Confirmation | None:
        """The best trials on fresh seeds, each a run of its own; None where that is not to be done here."""
        config, study = self.confirm, self.study
        best = study.best()
        if config is None or not best or len(study.plan.measures) > 1 or not study.is_complete():
            return None
        if not study.claims_confirmation():
            say("another machine confirms the best trials on fresh seeds")
            return None
        confirmation = Confirmation.of(config, study.plan, best, study.seed, self.experiment.path)
        say(
            f"confirming the best {min(config.top, len(best))} trials"
            f"{' and the default' if config.default else ''}, each on {config.sessions} fresh seeds"
        )
        left = [
            Assignment(-1 if one.number is None else one.number, one.params, folder, seed, resume=True)
            for one in confirmation.candidates
            for folder, seed in zip(one.folders, confirmation.seeds, strict=True)
        ]
        left.reverse()

        def task(one: Assignment) -> Task:
            words = self.recipe.words(one.params, one.seed, max_session=1)
            return Task(words, one.folder, self.config_dir, one.resume, channel=None, typed=self.typed)

        def ended(one: Assignment, outcome: Outcome | Lost, interrupted: bool) -> None:
            died = isinstance(outcome, Lost) or outcome.status == "interrupted"
            if died and not interrupted and one.attempts < study.plan.retries:
                left.append(one.again())
                say(f"{one.folder.name}: {_how(outcome)}. It continues from its checkpoint")
            elif died and not interrupted:
                say(f"{one.folder.name} failed: its process died {one.attempts + 1} times")
            elif isinstance(outcome, Outcome) and outcome.error:
                say(f"{one.folder.name} failed: {outcome.error}")

        self._keep_busy(pool, interruption, lambda: left.pop() if left else None, task, ended)
        if interruption.requested:
            return None
        confirmation.read(study.plan)
        return confirmation

    def _report(self, number: int) -> bool:
        """Whether a trial, one of whose sessions has evaluated, is to stop; called in a thread of its own."""
        try:
            facts = self.study.trials()[number].user_attrs[FACTS]
            return self.study.report(number, Path(facts["folder"]))
        except Exception as error:
            self._broken = self._broken or error  # for the thread that can end the search
            return False

    def _beat(self) -> None:
        if time.monotonic() - self._last_beat > HEARTBEAT:
            self._last_beat = time.monotonic()
            self.study.beat()

    def _as_record(self, trial: FrozenTrial, interrupted: bool) -> TrialRecord:
        own = trial.user_attrs.get(FACTS, {})
        status = STATUS[trial.state]
        is_mine = own.get("home") == str(self.experiment.path)
        return TrialRecord(
            number=trial.number,
            overrides=self.recipe.words(trial.params, self.study.trial_seed(trial.number)),
            folder=self._relative(own.get("folder", self.subfolder.format(number=trial.number))),
            status="interrupted" if interrupted and status == "running" and is_mine else status,
            error=own.get("error"),
            facts={
                "params": dict(trial.params),
                "values": list(trial.values) if trial.values is not None else None,
                "state": trial.state.name.lower(),
                "intermediate": [
                    [frame, value] for frame, value in sorted(trial.intermediate_values.items())
                ],
                "host": own.get("host"),
            },
        )

    def _relative(self, folder: str) -> str:
        """As `experiment.json` has it; of another machine's trial the whole path."""
        path = Path(folder)
        home = self.experiment.path
        return str(path.relative_to(home)) if path.is_relative_to(home) else folder


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _how(outcome: Outcome | Lost) -> str:
    return str(outcome) if isinstance(outcome, Lost) else "its process was asked to stop"
