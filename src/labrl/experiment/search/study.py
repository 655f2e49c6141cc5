"""A study that several machines share: it assigns trials, and records their reports and results.

Of Optuna 5, the samplers and the storages are used. `ask` and `tell` would read each trial from the storage
several times, and `ask` would store each value by itself. Optuna's heartbeat and retry callback
work only inside `Study.optimize` and on a database, and they count a retried trial as a new one, so that the
total and the draws would depend on failures. Optuna's pruners do not decide from the reports alone (see
`pruners`), and its storages have no lock for a decision (see `storage`).
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import socket
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from labrl.config.keys import key_of, split_override, traits
from labrl.errors import InputError
from labrl.experiment.search.objective import (
    ended_early,
    intermediate_values,
    session_values,
    trial_value,
)
from labrl.experiment.search.options import Direction, Measure
from labrl.experiment.search.pruners import History, Pruner, Reports, WilcoxonPruner
from labrl.experiment.search.sampling import NumberedSampler
from labrl.experiment.search.space import Space
from labrl.experiment.search.storage import StudyStorage
from labrl.processes.secrets import MASK, redact
from labrl.run.lock import FolderLock
from labrl.seeding import derived_seed, draw_seed

FACTS = "labrl"
"""Attribute of the study and of each trial that contains labrl's own data."""

CONFIRMS = "labrl:confirms"
"""Attribute of the study that names the machine which runs the confirmation."""

SESSION = "labrl:session:"
"""Prefix of the attributes of a finished trial that contain the values of each session by frame. A pruner
that compares sessions needs them on every machine."""

HEARTBEAT = 60.0
"""Seconds between two heartbeats of a machine."""

MISSED_BEATS = 5
"""Number of missed heartbeats after which a machine counts as dead."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of a study, which is the same on every machine."""

    name: str
    space: Space
    measure: Measure
    direction: Direction
    pruner: Pruner
    total: int
    """Number of trials of the study, over all machines and resumes."""
    budget: int
    """Budget of a session in frames."""
    num_sessions: int
    """Number of sessions of a trial."""
    seed: int | None
    """Seed of the search; None: drawn by the machine that creates the study."""
    random_return: float = 0.0
    """Mean return of the random policy, the reference of strength."""
    retries: int = 2

    def facts(self) -> dict[str, Any]:
        """Return the settings of the study that must be the same on every machine and in later commands."""
        return {
            "space": self.space.as_json(),
            # Keys that cannot change the result of a trial may differ, and so may secrets.
            "fixed": _by_key(
                override
                for override in redact(self.space.fixed)
                if traits(split_override(override)[0]).score and not override.endswith(f"={MASK}")
            ),
            "objective": self.measure,
            "direction": self.direction,
            "frames": self.budget,
            "sessions": self.num_sessions,
        }


def _by_key(overrides: Iterable[str]) -> list[str]:
    """Return `overrides` sorted by key; overrides of the same key keep their order."""
    return sorted(overrides, key=lambda override: split_override(override)[0])


@dataclass(frozen=True)
class Assignment:
    """A trial that this machine runs or continues."""

    number: int
    params: dict[str, Any]
    folder: Path
    seed: int
    attempts: int = 0
    """Number of times that the process of the trial has died."""


DRAFT_ID = -1
"""Optuna's id of a trial that is not stored yet."""


class DraftStorage:
    """Optuna's storage as a sampler sees it while it draws the values of a trial that is not stored yet."""

    def __init__(
        self, storage: BaseStorage, study: optuna.Study, draft: FrozenTrial, trials: Sequence[FrozenTrial]
    ) -> None:
        """draft: the trial, which receives the notes of the sampler; trials: the trials before it."""
        self._storage, self._study, self._draft, self._trials = storage, study, draft, [*trials, draft]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def get_study_directions(self, study_id: int) -> list[optuna.study.StudyDirection]:
        """Return the directions of the study."""
        return self._study.directions

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials in these states; None: in any state."""
        found = [trial for trial in self._trials if states is None or trial.state in states]
        return copy.deepcopy(found) if deepcopy else found

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Note a value of the sampler."""
        if trial_id == DRAFT_ID:
            self._draft.system_attrs[key] = value
        else:
            self._storage.set_trial_system_attr(trial_id, key, value)


class Study:
    """An Optuna study with labrl's rules. Its methods may be called from several threads.

    Trials are assigned under a lock that all machines share, so that no trial is assigned twice, the total is
    exact, and the values of a trial depend only on the trials before it.
    """

    def __init__(self, storage: StudyStorage, plan: Plan, sampler_node: dict[str, Any], home: Path) -> None:
        """Create or join the study.

        home: the experiment folder of this machine. Raises InputError if a study of this name differs from
        the plan.
        """
        self.home, self._storage = home, storage
        self._host = socket.gethostname()
        self._machine = f"{self._host}:{home}"
        self._mine: dict[int, int] = {}
        """Optuna's id of each trial that this machine runs, by the trial's number."""
        with storage.lock(plan.name):
            self._study = optuna.create_study(
                study_name=plan.name,
                storage=storage.optuna,
                direction=plan.direction,
                load_if_exists=True,
            )
            agreed = _agreed(self._study, plan, storage.shown_url)
        self._id = storage.optuna.get_study_id_from_name(plan.name)
        self.seed: int = agreed["seed"]
        # As measured by the machine that created the study, because measurements may differ.
        self.plan = dataclasses.replace(plan, random_return=agreed["random_return"])
        self.sampler = NumberedSampler(sampler_node, plan.space, self.seed)
        self._study.sampler = self.sampler
        self.total = plan.total
        if self.sampler.is_grid:
            self.total = min(plan.total, math.prod(len(values) for values in plan.space.grid().values()))
        self.beat()

    def trials(self) -> list[FrozenTrial]:
        """Return all trials so far in the order of their numbers. The caller must not change them."""
        return self._study.get_trials(deepcopy=False)

    def folder_of(self, trial: FrozenTrial) -> Path:
        """Return the run folder of a trial.

        The run folder was recorded with its full path, because several machines share the study. If the
        experiment folder has been moved or copied since then, the run folder inside it is returned.
        """
        facts = trial.user_attrs[FACTS]
        folder, home = Path(facts["folder"]), Path(facts["home"])
        here = self.home / (folder.relative_to(home) if folder.is_relative_to(home) else folder.name)
        return here if here.is_dir() else folder

    def is_complete(self) -> bool:
        """Return whether all trials of the study have been assigned and have ended."""
        trials = self.trials()
        return len(trials) >= self.total and all(trial.state.is_finished() for trial in trials)

    def next(self, folder_of: Callable[[int], str]) -> Assignment | None:
        """Return a trial to run: one that a dead machine has left, or a new one.

        folder_of: function from the number of a trial to its run folder. Returns None if all trials have been
        assigned.
        """
        with self._storage.lock(self.plan.name):
            trials = self.trials()
            for trial in trials:
                if trial.state != TrialState.RUNNING or trial.number in self._mine:
                    continue
                facts = trial.user_attrs[FACTS]
                if facts["machine"] == self._machine or self._is_dead(facts):
                    return self._taken_over(trial)
            number = len(trials)
            if number >= self.total:
                return None
            folder = self.home / folder_of(number)
            facts = {**self._self(), "folder": str(folder), "attempts": 0}
            new = optuna.trial.create_trial(state=TrialState.RUNNING, user_attrs={FACTS: facts})
            new.number = number
            self._draw(new, trials)
            # Stored at once, so that a kill leaves no trial without values.
            self._mine[number] = self._storage.optuna.create_new_trial(self._id, new)
            return Assignment(number, dict(new.params), folder, self.trial_seed(number))

    def report(self, number: int, folder: Path) -> bool:
        """Record the evaluations that the sessions of a trial have written. Return whether to stop the trial.

        A stopped trial is recorded as pruned before any of its sessions is told.
        """
        plan = self.plan
        own = self.trials()[number]
        if own.state.is_finished():
            return own.state == TrialState.PRUNED
        values = intermediate_values(folder, plan.measure, plan.num_sessions, plan.random_return)
        last = max(own.intermediate_values, default=0)
        # The last value is judged again, because others may have reached more since, and a process that
        # was killed after storing it has not judged it.
        new = [frame for frame in values if frame >= last]
        for frame in new:
            self._storage.optuna.set_trial_intermediate_value(self._mine[number], frame, values[frame])
        trials = self.trials()
        sessions: list[dict[int, float]] = []
        if isinstance(plan.pruner, WilcoxonPruner):
            sessions = session_values(folder, plan.measure, plan.num_sessions, plan.random_return)
        if any(self._is_hopeless(number, frame, trials, sessions) for frame in new):
            reached = values[max(values)]
            self._end(trials[number], TrialState.PRUNED, None if math.isnan(reached) else reached)
            return True
        return False

    def finish(self, number: int, folder: Path) -> str | None:
        """Record the result of a finished trial. Return an error if the trial has no result."""
        plan, trial = self.plan, self.trials()[number]
        if trial.state.is_finished():
            return None
        of_trial: Any = (folder, plan.measure, plan.num_sessions, plan.random_return)
        value = trial_value(*of_trial)
        if value is None:
            error = "no episode ended within the budget, so there is nothing to compare"
            self.fail(number, error)
            return error
        trial_id, storage = self._mine[number], self._storage.optuna
        # The last value counts to the end of the budget if all sessions stopped early.
        if all(ended_early(folder, index) for index in range(plan.num_sessions)):
            values = intermediate_values(*of_trial)
            if values and max(values) < plan.budget:
                storage.set_trial_intermediate_value(trial_id, plan.budget, values[max(values)])
        if isinstance(plan.pruner, WilcoxonPruner):  # It compares sessions.
            for index, values in enumerate(session_values(*of_trial)):
                content = {str(frame): values[frame] for frame in values}
                storage.set_trial_user_attr(trial_id, f"{SESSION}{index}", content)
        self._end(trial, TrialState.COMPLETE, value)
        return None

    def fail(self, number: int, error: str) -> None:
        """Record why a trial failed."""
        trial = self.trials()[number]
        if not trial.state.is_finished():
            self.note(number, error=error)
            self._end(trial, TrialState.FAIL, None)

    def _end(self, trial: FrozenTrial, state: TrialState, value: float | None) -> None:
        """Record the final state of a trial of this machine, and its value if it has one."""
        values = None if value is None else [value]
        try:
            self.sampler.after_trial(copy.copy(self._study), trial, state, values)
        finally:
            self._storage.optuna.set_trial_state_values(self._mine[trial.number], state, values)

    def note(self, number: int, **facts: Any) -> None:
        """Store `facts` with a trial."""
        noted = {**self.trials()[number].user_attrs.get(FACTS, {}), **facts}
        self._storage.optuna.set_trial_user_attr(self._mine[number], FACTS, noted)

    def beat(self) -> None:
        """Give a heartbeat to other machines."""
        self._study.set_user_attr(f"labrl:alive:{self._machine}", time.time())

    def claims_confirmation(self) -> bool:
        """Return whether this machine is the one that confirms the best trials."""
        with self._storage.lock(self.plan.name):
            claimed = self._study.user_attrs.get(CONFIRMS)
            if claimed and claimed["machine"] != self._machine and not self._is_dead(claimed):
                return False
            self._study.set_user_attr(CONFIRMS, self._self())
            return True

    def best(self, trials: Sequence[FrozenTrial] | None = None) -> list[FrozenTrial]:
        """Return the completed trials, the best first.

        trials: result of `trials()`, if it is known.
        """
        trials = self.trials() if trials is None else trials
        done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        return sorted(done, key=lambda trial: (-self._sign * (trial.value or 0.0), trial.number))

    def best_pruned(self) -> list[FrozenTrial]:
        """Return the pruned trials with a value, ordered by the frame that they reached (highest first), then
        by value (best first)."""
        pruned = [trial for trial in self.trials() if trial.state == TrialState.PRUNED and trial.values]
        return sorted(
            pruned,
            key=lambda trial: (-(trial.last_step or 0), -self._sign * (trial.value or 0.0), trial.number),
        )

    def trial_seed(self, number: int) -> int:
        """Return the seed of a trial, which is the same on every machine and for every attempt."""
        return derived_seed(self.seed, "trial", number)

    def _taken_over(self, trial: FrozenTrial) -> Assignment:
        """Take over a trial of a dead machine, in its folder if this machine can reach it."""
        facts, folder = trial.user_attrs[FACTS], self.folder_of(trial)
        if not folder.parent.is_dir():
            folder = self.home / folder.name
        get_id = self._storage.optuna.get_trial_id_from_study_id_trial_number
        self._mine[trial.number] = get_id(self._id, trial.number)
        self.note(trial.number, **self._self(), folder=str(folder))
        seed = self.trial_seed(trial.number)
        return Assignment(trial.number, dict(trial.params), folder, seed, facts["attempts"])

    def _draw(self, trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> None:
        """Draw the values of a trial that is not stored yet. trials: those before it."""
        storage: Any = DraftStorage(self._storage.optuna, self._study, trial, trials)
        study = optuna.Study(self.plan.name, storage, self.sampler)
        self.sampler.before_trial(study, trial)
        space = self.sampler.infer_relative_search_space(study, trial)
        params = self.sampler.sample_relative(study, trial, space)
        for name, distribution in self.plan.space.distributions.items():
            only: Any = distribution
            if distribution.single():
                params[name] = only.choices[0] if isinstance(only, CategoricalDistribution) else only.low
            elif name not in params:
                params[name] = self.sampler.sample_independent(study, trial, name, distribution)
        trial.distributions = dict(self.plan.space.distributions)
        trial.params = {name: params[name] for name in trial.distributions}

    def _is_dead(self, owner: dict[str, Any]) -> bool:
        """Return whether a machine is dead, because its lock on this machine is free or it has missed its
        heartbeats."""
        home = Path(owner["home"])
        if home.is_dir():
            if FolderLock(home).holder() is not None:
                return False
            if owner["host"] == self._host:
                return True
        seen = self._study.user_attrs.get(f"labrl:alive:{owner['machine']}", 0.0)
        return time.time() - seen > MISSED_BEATS * HEARTBEAT

    @property
    def _sign(self) -> int:
        return 1 if self.plan.direction == "maximize" else -1

    def _is_hopeless(
        self, number: int, frame: int, trials: Sequence[FrozenTrial], sessions: Sequence[History]
    ) -> bool:
        """Return whether the pruner stops a trial.

        frame: frame of the report that is judged; sessions: values of each session, if the pruner compares
        them.
        """
        plan = self.plan
        histories = {
            trial.number: self._signed(trial.intermediate_values)
            for trial in trials
            if trial.intermediate_values
        }
        histories[number] = {at: value for at, value in histories[number].items() if at <= frame}
        best = self.best(trials)[:1] if sessions else []
        kept = [best[0].user_attrs.get(f"{SESSION}{index}", {}) for index in range(len(sessions)) if best]
        return plan.pruner.stops(
            Reports(
                number=number,
                histories=histories,
                full=sum(trial.state == TrialState.COMPLETE for trial in trials),
                total=self.total,
                budget=plan.budget,
                study=plan.name,
                sessions=[self._signed({at: one[at] for at in one if at <= frame}) for one in sessions],
                best=[self._signed({int(at): one[at] for at in one}) for one in kept],
            )
        )

    def _signed(self, values: Mapping[int, float]) -> dict[int, float]:
        """Return the values with such a sign that larger values are better."""
        return {frame: self._sign * value for frame, value in values.items()}

    def _self(self) -> dict[str, Any]:
        return {
            "machine": self._machine,
            "host": self._host,
            "home": str(self.home),
            "process": os.getpid(),
        }


def _agreed(study: optuna.Study, plan: Plan, storage: str) -> dict[str, Any]:
    """Return the settings of the study that the first machine has stored. Raises InputError if the plan
    differs."""
    mine, name = plan.facts(), plan.name
    agreed = study.user_attrs.get(FACTS)
    if agreed is None:
        if study.get_trials(deepcopy=False):
            raise InputError.contradiction(
                f"hydra.sweeper.study_name={name}",
                f"a study of this name in {storage}, which labrl did not create",
                fix="hydra.sweeper.study_name=<another name>",
            )
        seed = draw_seed() if plan.seed is None else plan.seed
        agreed = {**mine, "seed": seed, "random_return": plan.random_return}
        study.set_user_attr(FACTS, agreed)
        return agreed
    then = {**agreed, "fixed": _by_key(agreed.get("fixed", []))}
    differs = [key for key in mine if mine[key] != then.get(key)]
    if "fixed" in differs:
        differs = [key for key in differs if key not in ("frames", "sessions")]  # follow from overrides
    if differs:
        told = "".join(
            f"\n  {line}" for key in differs for line in _differences(key, then.get(key), mine[key])
        )
        raise InputError.contradiction(
            f"hydra.sweeper.study_name={name}",
            f"a study of this name in {storage} with other settings",
            f"{told}\nTo join that study, give the same values",
            "To create another study, leave out +resume, and set another hydra.sweeper.study_name if several "
            "studies share the storage",
        )
    return agreed


def _differences(key: str, then: Any, now: Any) -> list[str]:
    """Return a line for each difference between the stored study and the present one."""
    if isinstance(then, dict) and isinstance(now, dict):
        parts = [part for part in {**then, **now} if then.get(part) != now.get(part)]
        return [f"{part}: {_shown(then.get(part))} there, {_shown(now.get(part))} here" for part in parts]
    if key == "fixed":
        typed = [
            [[one for one in overrides if key_of(one) == part] for overrides in (then, now)]
            for part in dict.fromkeys(map(key_of, [*then, *now]))
        ]
        told = [[" ".join(own) or "not set" for own in pair] for pair in typed if pair[0] != pair[1]]
        return [f"{there} there, {here} here" for there, here in told]
    return [f"{key}: {then} there, {now} here"]


def _shown(distribution: dict[str, Any] | None) -> str:
    if distribution is None:
        return "not searched"
    content = distribution["attributes"]
    if "choices" in content:
        return f"choice({', '.join(map(str, content['choices']))})"
    scale = " on a logarithmic scale" if content.get("log") else ""
    return f"{content['low']} to {content['high']}{scale}"
