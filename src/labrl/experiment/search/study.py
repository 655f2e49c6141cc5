"""The study of a search: Optuna's study, which is asked for trials and told their values.

Several machines may share a study. Each trial that labrl asks for has the name of its machine as an
attribute, and each machine gives a heartbeat to the study. Optuna's own heartbeat works only inside
`Study.optimize` and on a database. The storage is an SQLite file, a journal file, or a database.
"""

from __future__ import annotations

import math
import os
import re
import socket
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna
from filelock import FileLock
from hydra.utils import instantiate
from hydra_plugins.hydra_optuna_sweeper.config import TPESamplerConfig
from omegaconf import OmegaConf
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, QMCSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from labrl.errors import InputError, first_line, install_command
from labrl.experiment.search import options
from labrl.experiment.search.objective import Objective
from labrl.experiment.search.space import Space
from labrl.processes.secrets import redact
from labrl.run.experiment import STUDY_FILE
from labrl.seeding import derived_seed, draw_seed
from labrl.trial.summary import say

OWN_STUDY = "labrl"
"""Name of a study that has a storage of its own."""

MACHINE = "labrl:machine"
"""Attribute of a trial that names the machine which runs it. Trials of other programs lack it."""

ERROR = "labrl:error"
"""Attribute of a trial with the error that ended it."""

SILENT = "its machine has been silent for too long"
"""Error of a failed trial without ERROR, which was given up."""

SEED = "labrl:seed"
"""Attribute of the study with the seed of the search."""

ALIVE = "labrl:alive:"
"""Prefix of the attributes of the study with the time of each machine's last heartbeat; 0 after its end."""

CONFIRMS = "labrl:confirms:"
"""Prefix of the attributes of the study with the machine that confirms it, by its number of trials."""

HEARTBEAT = 60.0
"""Seconds between two heartbeats of a machine."""

SILENCE = 5 * HEARTBEAT
"""Seconds without a heartbeat after which the running trials of a machine are given up."""

SECONDS_TO_CONNECT = 10
SECONDS_TO_WAIT = 120
"""Longest wait for another process that writes to the SQLite file, in seconds."""

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
        self.total, self.url = settings.n_trials, settings.storage or own_url(home)
        # The folder of a search with its own storage may be moved.
        self.machine = f"{socket.gethostname()}:{home}" if settings.storage else OWN_STUDY
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
        self.maximizes = self.optuna.direction == optuna.study.StudyDirection.MAXIMIZE
        self._left = [one for one in self.trials() if one.state == TrialState.RUNNING and self.is_own(one)]
        """The trials that an earlier command of this machine has left."""
        self._asked: dict[int, optuna.Trial] = {}
        """The trials that this command has asked for, by number."""
        self._pruned: set[int] = set()
        """Numbers of the trials of this command that must stop."""
        self.beat()

    def trials(self) -> list[FrozenTrial]:
        """Return all trials so far in the order of their numbers. The caller must not change them."""
        return self.optuna.get_trials(deepcopy=False)

    def ask(self, trials: Sequence[FrozenTrial] | None = None) -> optuna.Trial | None:
        """Return a trial to run: one that this machine has left, one that a user has enqueued, or a new one.

        trials: result of `trials()`, if it was read just before. Returns None if the study has all its
        trials.
        """
        if self._left:
            trial_id = self._left.pop(0)._trial_id
        else:
            trials = trials or self.trials()
            waiting = next((one for one in trials if one.state == TrialState.WAITING), None)
            if waiting is not None:
                # A trial names its machine from the start, so that a kill leaves none without one.
                self._storage.set_trial_user_attr(waiting._trial_id, MACHINE, self.machine)
                enqueued = self.optuna.ask()
                enqueued.set_user_attr(MACHINE, self.machine)
                trial_id = enqueued._trial_id
            elif self._has_all(trials):
                return None
            else:
                # `Study.ask` would create it without an attribute, or let two machines have it on SQLite.
                new = create_trial(state=TrialState.RUNNING, user_attrs={MACHINE: self.machine})
                trial_id = self._storage.create_new_trial(self.optuna._study_id, new)
        trial = optuna.trial.Trial(self.optuna, trial_id)
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
        if number in self._pruned:
            return True
        trial = self._asked[number]
        try:
            frames = self._report(number, folder)
            if not frames or frames[-1] >= self._budget or not trial.should_prune():
                return False
        except UpdateFinishedTrialError:  # another machine has given it up
            self._pruned.add(number)
            return True
        if sum(one.state == TrialState.COMPLETE for one in self.trials()) < self._n_startup_trials:
            return False
        self.optuna.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
        self._pruned.add(number)
        return True

    def finish(self, number: int, folder: Path) -> None:
        """Tell the value of a finished trial, or why it has none."""
        value = self.objective.value(folder)
        if value is None or math.isnan(value):
            self.fail(number, "no episode ended within the budget, so there is nothing to compare")
            return
        with suppress(UpdateFinishedTrialError):  # as pruned, or another machine has given it up
            # If all sessions have stopped early, their value counts to the end of the budget, for the pruner
            # too.
            trial = self._asked[number]
            if trial._cached_frozen_trial.intermediate_values and self._report(number, folder):
                trial.should_prune()
            self.optuna.tell(trial, value, skip_if_finished=True)

    def fail(self, number: int, error: str) -> None:
        """Tell that a trial has failed, and why."""
        with suppress(UpdateFinishedTrialError):
            self._asked[number].set_user_attr(ERROR, error)
            self.optuna.tell(self._asked[number], state=TrialState.FAIL, skip_if_finished=True)

    def beat(self) -> None:
        """Give a heartbeat, and tell the running trials of silent machines as failed."""
        self.optuna.set_user_attr(f"{ALIVE}{self.machine}", time.time())
        alive = self._alive()
        for trial in self.trials():
            machine = trial.user_attrs.get(MACHINE, self.machine)
            if trial.state == TrialState.RUNNING and machine not in alive:
                self.optuna.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def is_complete(self) -> bool:
        """Return whether the study has all its trials, and all have ended. Trials that other programs have
        asked for count as they are, and are not waited for."""
        trials = self.trials()
        ended = (
            one.state.is_finished() or (one.state == TrialState.RUNNING and MACHINE not in one.user_attrs)
            for one in trials
        )
        return self._has_all(trials) and all(ended)

    def confirming_machine(self) -> str:
        """Return the machine that confirms the best trials of a complete study, and no other does.

        This is the one that the study records for its number of trials, or else the first one by name of
        those that are alive, which all wait until the study is complete.
        """
        key = f"{CONFIRMS}{len(self.trials())}"
        machine = str(self.optuna.user_attrs.get(key) or min(self._alive()))
        if machine == self.machine:
            self.optuna.set_user_attr(key, machine)
        return machine

    def best(self, trials: Sequence[FrozenTrial] | None = None, pruned: bool = False) -> list[FrozenTrial]:
        """Return the completed trials, the best first. trials: result of `trials()`, if it is known.

        pruned: whether to return the pruned trials with a value instead, ordered by the frame that they
        reached (highest first), then by value.
        """
        sign, state = -1 if self.maximizes else 1, TrialState.PRUNED if pruned else TrialState.COMPLETE
        found = [one for one in trials or self.trials() if one.state == state and one.values]
        return sorted(
            found, key=lambda one: (-(one.last_step or 0) * pruned, sign * one.values[0], one.number)
        )

    def trial_seed(self, number: int) -> int:
        """Return the seed of a trial, which is the same on every machine and for every attempt."""
        return derived_seed(self.seed, "trial", number)

    def leave(self) -> None:
        """Tell the other machines that this one has ended, and release the connections of the storage."""
        self.optuna.set_user_attr(f"{ALIVE}{self.machine}", 0.0)
        self._storage.remove_session()

    def is_own(self, trial: FrozenTrial) -> bool:
        """Return whether this machine runs or has run a trial."""
        return bool(trial.user_attrs.get(MACHINE) == self.machine)

    def _has_all(self, trials: Sequence[FrozenTrial]) -> bool:
        return sum(error_of(one) != SILENT for one in trials) >= self.total

    def _alive(self) -> set[str]:
        """Return the names of the machines that have given a heartbeat lately."""
        silent = time.time() - SILENCE
        heard = self.optuna.user_attrs
        return {
            name.removeprefix(ALIVE) for name, at in heard.items() if name.startswith(ALIVE) and at >= silent
        }

    def _report(self, number: int, folder: Path) -> list[int]:
        """Report the evaluations of a trial that all its sessions have passed since the last call. Return
        their frames."""
        trial, reports = self._asked[number], self.objective.reports(folder, self._budget)
        new = sorted(reports.keys() - trial._cached_frozen_trial.intermediate_values.keys())
        for frame in new:
            trial.report(reports[frame], frame)
        return new


def error_of(trial: FrozenTrial) -> str | None:
    """Return why a trial has failed; SILENT if it was given up, so that another takes its place."""
    if trial.state != TrialState.FAIL or MACHINE not in trial.user_attrs:
        return None
    return str(trial.user_attrs.get(ERROR, SILENT))


def make_pruner(chosen: options.Pruner, first: int, budget: int) -> BasePruner:
    """Return Optuna's pruner.

    first: frame before which no trial is stopped; budget: budget of a session in frames.
    """
    match chosen:
        case options.MedianPruner():
            return MedianPruner(n_startup_trials=0, n_warmup_steps=first)
        case options.HalvingPruner(kind="asha"):
            return SuccessiveHalvingPruner(first, chosen.reduction_factor)
        case options.HalvingPruner():
            return HyperbandPruner(first, budget, chosen.reduction_factor)
    return NopPruner()


def make_sampler(node: Mapping[str, Any], space: Space, seed: int) -> BaseSampler:
    """Return Optuna's sampler for `hydra.sweeper.sampler`, whose seed, if given, replaces `seed`.

    A sampler with random numbers of its own is seeded anew for each trial, because its state is not stored:
    after a restart it would repeat the values of the first trials, and several machines would propose the
    same values. Raises InputError if the sampler cannot be created, or is a grid.
    """
    seed = seed if node.get("seed") is None else int(node["seed"])

    def make(seed: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return instantiate({**node, "seed": seed}, _execution_whitelist_=TARGETS)

    def before_trial(study: optuna.Study, trial: FrozenTrial) -> None:
        vars(sampler).update(vars(make(derived_seed(seed, "sampler", trial.number))))
        type(sampler).before_trial(sampler, study, trial)

    try:
        if node["_target_"] == TPESamplerConfig._target_:
            # labrl's option replaces this one, whose types Hydra would check.
            OmegaConf.merge(OmegaConf.structured(TPESamplerConfig), dict(node))
        sampler = make(seed)
        if not isinstance(sampler, BaseSampler):
            raise TypeError("a grid of values needs no sampler: leave out hydra/sweeper=optuna")
    except Exception as error:
        why = f"{node['_target_']} cannot be created: {first_line(error)}"
        fix = f"Type {install_command('search')}" if isinstance(error, ImportError) else ""
        raise InputError.about("hydra.sweeper.sampler", why, fix, code="target") from error
    if not isinstance(sampler, QMCSampler):
        sampler.before_trial = before_trial  # type: ignore[method-assign]
    return sampler


def own_url(folder: Path) -> str:
    """Return the URL of the SQLite file in an experiment folder."""
    # SQLAlchemy decodes percent signs and ends the path at a question mark, and Optuna replaces braces.
    return "sqlite:///" + re.sub(r"[%?{}]", lambda one: quote(one[0], safe=""), str(folder / STUDY_FILE))


def open_storage(url: str) -> BaseStorage:
    """Return Optuna's storage. Raises InputError with the reason if it cannot be opened."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a search prints its own messages
    seconds = {"connect_timeout": SECONDS_TO_CONNECT}
    if url.startswith("sqlite"):
        seconds = {"timeout": SECONDS_TO_WAIT}
    try:
        if url.startswith("journal:///"):
            return _open_journal(Path(url.removeprefix("journal:///")))
        try:
            storage = RDBStorage(url, engine_kwargs={"connect_args": seconds})
        except SQLAlchemyError:  # Another machine may have created the tables at the same moment.
            time.sleep(1)
            storage = RDBStorage(url, engine_kwargs={"connect_args": seconds})
        return get_storage(storage)  # with a cache of the trials that have ended
    except Exception as error:
        setting, why = f"hydra.sweeper.storage={redact(url)}", f"it cannot be opened: {first_line(error)}"
        fix = (
            "Write sqlite:///<file>, journal:///<file>, mysql://... or postgresql://<user>@<host>/<database> "
            f"with its driver ({install_command('search')})"
        )
        raise InputError.not_found(setting, why, fix) from error


def _open_journal(path: Path) -> JournalStorage:
    """Open a journal file. The incomplete last line of a process that was killed is cut off, because the next
    line would continue it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A killed process leaves the files behind that are Optuna's own locks.
    lock: Any = FileLock(f"{path}.lock", poll_interval=0.002, preserve_lock_file=True)
    with lock:
        content = path.read_bytes() if path.exists() else b""
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)
            say(f"{path}: cut off an incomplete last line of {len(content) - whole} bytes")
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
