"""The study of a search: Optuna's study, which is asked for trials and told their values.

Several machines may share a study. Each trial that labrl asks for has the name of its machine as an
attribute, and each machine gives a heartbeat to the study. Optuna's own heartbeat works only inside
`Study.optimize` and on a database.
"""

from __future__ import annotations

import functools
import math
import socket
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from hydra.utils import instantiate
from hydra_plugins.hydra_optuna_sweeper.config import TPESamplerConfig
from omegaconf import OmegaConf
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, GridSampler, QMCSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from labrl.errors import InputError, LabrlError, first_line, install_command
from labrl.experiment.search import options
from labrl.experiment.search.objective import Objective
from labrl.experiment.search.space import Space
from labrl.experiment.search.storage import open_storage, own_url
from labrl.seeding import derived_seed, draw_seed

OWN_STUDY = "labrl"
"""Name of a study that has a storage of its own."""

MACHINE = "labrl:machine"
"""Attribute of a trial that names the machine which runs it. Trials of other programs lack it."""

ERROR = "labrl:error"
"""Attribute of a trial with the error that ended it. A failed trial without it was given up, because its
machine was silent."""

SEED = "labrl:seed"
"""Attribute of the study with the seed of the search."""

ALIVE = "labrl:alive:"
"""Prefix of the attributes of the study with the time of each machine's last heartbeat."""

HEARTBEAT = 60.0
"""Seconds between two heartbeats of a machine."""

SILENCE = 5 * HEARTBEAT
"""Seconds without a heartbeat after which the running trials of a machine are given up."""

TARGETS = ("hydra_plugins.hydra_optuna_sweeper.*", "optuna.samplers.*")
"""Targets that `hydra.sweeper.sampler` may name."""


class Study:
    """The part of one machine in a study."""

    def __init__(
        self,
        home: Path,
        settings: options.Settings,
        pruner: options.Pruner,
        space: Space,
        objective: Objective,
        budget: int,
        every: int,
        seed: int | None,
    ) -> None:
        """Create or join the study of `settings`.

        home: the experiment folder of this machine; budget: budget of a session in frames; every: frames
        between its evaluations; seed: seed of the search, None to draw it. Raises InputError if the storage
        cannot be opened or the sampler cannot be created.
        """
        self.space, self.objective, self._budget = space, objective, budget
        self.total, self.machine = settings.n_trials, f"{socket.gethostname()}:{home}"
        self._shared, self.url = settings.storage is not None, settings.storage or own_url(home)
        self._n_startup_trials, first = options.start_of(pruner, self.total, budget, every)
        self._storage = open_storage(self.url)
        self.optuna = optuna.create_study(
            study_name=settings.study_name or OWN_STUDY,
            storage=self._storage,
            pruner=make_pruner(pruner, first, budget),
            direction=settings.direction or ("minimize" if objective.measure == "wall" else "maximize"),
            load_if_exists=True,
        )
        if SEED not in self.optuna.user_attrs:
            self.optuna.set_user_attr(SEED, draw_seed() if seed is None else seed)
        self.seed: int = self.optuna.user_attrs[SEED]
        self.optuna.sampler = make_sampler(settings.sampler, space, self.seed)
        if isinstance(self.optuna.sampler, GridSampler):
            self.total = min(self.total, math.prod(map(len, space.grid().values())))
        self.maximizes = self.optuna.direction == optuna.study.StudyDirection.MAXIMIZE
        self._asked: dict[int, optuna.Trial] = {}
        """The trials that this command has asked for, by number."""
        self.beat()

    def trials(self) -> list[FrozenTrial]:
        """Return all trials so far in the order of their numbers. The caller must not change them."""
        return self.optuna.get_trials(deepcopy=False)

    def ask(self) -> optuna.Trial | None:
        """Return a trial to run: one that this machine has left, one that a user has enqueued, or a new one.

        Returns None if the study has all its trials.
        """
        trials = self.trials()
        enqueued = [one for one in trials if one.state == TrialState.WAITING]
        if not self._left(trials) and enqueued:
            # A trial names its machine from the start, so that a kill leaves none without one.
            self._storage.set_trial_user_attr(enqueued[0]._trial_id, MACHINE, self.machine)
            trial = self.optuna.ask()
            trial.set_user_attr(MACHINE, self.machine)
        else:
            if not self._left(trials):
                if sum(not is_given_up(one) for one in trials) >= self.total:
                    return None
                # `Study.ask` would create it without an attribute, or let two machines have it on SQLite.
                attrs = {MACHINE: self.machine}
                self.optuna.add_trial(create_trial(state=TrialState.RUNNING, user_attrs=attrs))
                trials = self.trials()
            trial = optuna.trial.Trial(self.optuna, self._left(trials)[0]._trial_id)
        try:
            for name, distribution in self.space.distributions.items():
                trial._suggest(name, distribution)
        except ValueError as error:  # Optuna allows other limits of a range, but not other choices.
            name, why = self.optuna.study_name, f"its trials have another space ({first_line(error)})"
            raise InputError.contradiction(f"hydra.sweeper.study_name={name}", "its storage", why) from error
        self._asked[trial.number] = trial
        return trial

    def should_prune(self, number: int, folder: Path) -> bool:
        """Report the evaluations of a trial that all its sessions have passed. Return whether it must stop.

        A trial that must stop is told as pruned before any of its sessions knows.
        """
        trial, known = self._asked[number], self.trials()[number]
        if known.state.is_finished():  # by an earlier answer, or another machine has given it up
            return True
        reports = self.objective.reports(folder)
        for frame in sorted(reports.keys() - known.intermediate_values.keys()):
            trial.report(reports[frame], frame)
        if not reports or max(reports) >= self._budget or not trial.should_prune():
            return False
        finished = sum(one.state == TrialState.COMPLETE for one in self.trials())
        if finished < self._n_startup_trials:
            return False
        self.optuna.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
        return True

    def finish(self, number: int, folder: Path) -> None:
        """Tell the value of a finished trial, or why it has none."""
        trial, value = self._asked[number], self.objective.value(folder)
        if value is None or math.isnan(value):
            self.fail(number, "no episode ended within the budget, so there is nothing to compare")
            return
        if self.objective.stopped_early(folder) and not self.trials()[number].state.is_finished():
            # The last value counts to the end of the budget, for the pruner too.
            reports = self.objective.reports(folder)
            trial.report(reports[max(reports)], self._budget)
            trial.should_prune()
        self.optuna.tell(trial, value, skip_if_finished=True)

    def fail(self, number: int, error: str) -> None:
        """Tell that a trial has failed, and why."""
        if not self.trials()[number].state.is_finished():
            self._asked[number].set_user_attr(ERROR, error)
            self.optuna.tell(self._asked[number], state=TrialState.FAIL, skip_if_finished=True)

    def beat(self) -> None:
        """Give a heartbeat, and tell the running trials of silent machines as failed."""
        now = time.time()
        self.optuna.set_user_attr(f"{ALIVE}{self.machine}", now)
        heard = self.optuna.user_attrs
        for trial in self.trials():
            machine = trial.user_attrs.get(MACHINE)
            elsewhere = machine is not None and not self.is_own(trial)
            silent = now - heard.get(f"{ALIVE}{machine}", 0.0) > SILENCE
            if trial.state == TrialState.RUNNING and elsewhere and silent:
                self.optuna.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def is_complete(self) -> bool:
        """Return whether the study has all its trials, and all have ended. Trials that other programs have
        asked for count as they are, and are not waited for."""
        trials = self.trials()
        running = (TrialState.RUNNING, TrialState.WAITING)
        ours = [trial for trial in trials if MACHINE in trial.user_attrs or trial.state == TrialState.WAITING]
        given_up = sum(map(is_given_up, trials))
        return len(trials) - given_up >= self.total and not any(trial.state in running for trial in ours)

    def best(self, trials: Sequence[FrozenTrial] | None = None) -> list[FrozenTrial]:
        """Return the completed trials, the best first.

        trials: result of `trials()`, if it is known.
        """
        trials = self.trials() if trials is None else trials
        done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        return sorted(done, key=lambda trial: (-self._signed(trial), trial.number))

    def best_pruned(self) -> list[FrozenTrial]:
        """Return the pruned trials with a value, ordered by the frame that they reached (highest first), then
        by value (best first)."""
        pruned = [trial for trial in self.trials() if trial.state == TrialState.PRUNED and trial.values]
        return sorted(pruned, key=lambda trial: (-(trial.last_step or 0), -self._signed(trial), trial.number))

    def trial_seed(self, number: int) -> int:
        """Return the seed of a trial, which is the same on every machine and for every attempt."""
        return derived_seed(self.seed, "trial", number)

    def close(self) -> None:
        """Release the connections of the storage."""
        self._storage.remove_session()

    def is_own(self, trial: FrozenTrial) -> bool:
        """Return whether this machine runs or has run a trial. A storage in the experiment folder belongs to
        this machine, even if the folder was moved."""
        machine = trial.user_attrs.get(MACHINE)
        return machine == self.machine or (machine is not None and not self._shared)

    def _left(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Return the running trials of this machine that this command has not asked for."""
        running = (one for one in trials if one.state == TrialState.RUNNING and self.is_own(one))
        return [one for one in running if one.number not in self._asked]

    def _signed(self, trial: FrozenTrial) -> float:
        return (trial.value or 0.0) * (1 if self.maximizes else -1)


def is_given_up(trial: FrozenTrial) -> bool:
    """Return whether a trial failed because its machine was silent. Another trial takes its place."""
    attrs = trial.user_attrs
    return trial.state == TrialState.FAIL and MACHINE in attrs and ERROR not in attrs


def make_pruner(chosen: options.Pruner, first: int, budget: int) -> BasePruner:
    """Return Optuna's pruner.

    first: frame before which no trial is stopped; budget: budget of a session in frames.
    """
    match chosen:
        case options.MedianPruner():
            return MedianPruner(n_startup_trials=0, n_warmup_steps=first)
        case options.AshaPruner():
            return SuccessiveHalvingPruner(first, chosen.reduction_factor)
        case options.HyperbandPruner():
            return HyperbandPruner(first, budget, chosen.reduction_factor)
    return NopPruner()


def make_sampler(node: Mapping[str, Any], space: Space, seed: int) -> BaseSampler:
    """Return Optuna's sampler for `hydra.sweeper.sampler`, whose seed, if given, replaces `seed`.

    A sampler with random numbers of its own is seeded anew for each trial, because its state is not stored:
    after a restart it would repeat the values of the first trials, and several machines would propose the
    same values. Raises InputError if the sampler cannot be created, or is a grid over a continuous range.
    """
    seed = seed if node.get("seed") is None else int(node["seed"])

    def make(seed: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            made = instantiate({**node, "seed": seed}, _execution_whitelist_=TARGETS)
            return made(space.grid()) if isinstance(made, functools.partial) else made

    def before_trial(study: optuna.Study, trial: FrozenTrial) -> None:
        vars(sampler).update(vars(make(derived_seed(seed, "sampler", trial.number))))
        type(sampler).before_trial(sampler, study, trial)

    try:
        if node["_target_"] == TPESamplerConfig._target_:
            # labrl's option replaces this one, whose types Hydra would check.
            OmegaConf.merge(OmegaConf.structured(TPESamplerConfig), dict(node))
        sampler = make(seed)
    except LabrlError:
        raise
    except Exception as error:
        why = f"{node['_target_']} cannot be created: {first_line(error)}"
        fix = f"Type {install_command('search')}" if isinstance(error, ImportError) else ""
        raise InputError.about("hydra.sweeper.sampler", why, fix, code="target") from error
    if isinstance(sampler, GridSampler):
        # It would stop a loop of `Study.optimize`.
        sampler.after_trial = lambda *result: None  # type: ignore[method-assign]
    elif not isinstance(sampler, QMCSampler):
        sampler.before_trial = before_trial
    return sampler
