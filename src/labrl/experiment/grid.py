"""The trials of a grid: the combinations of values, numbered, each with its own folder."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType
from omegaconf import DictConfig, OmegaConf

from labrl.analysis.adastop import Stages
from labrl.config.compose import check_no_search, naming_file, resolve
from labrl.config.keys import is_hydras, key_of, unescaped, values_of
from labrl.config.presets import choices_of
from labrl.envs.games import check_environment
from labrl.errors import InputError, LabrlError
from labrl.experiment.earlier import Earlier, replaced, swept_keys
from labrl.experiment.machine import Machine, Need
from labrl.experiment.stages import check_groups
from labrl.experiment.trials import Trials, edits_of, trial_folder
from labrl.run.experiment import Experiment, TrialRecord
from labrl.run.provenance import Origin
from labrl.run.run import Run
from labrl.trial.configuration import check_fit, check_start_from, edit_run, resolved
from labrl.trial.contradictions import check_keys
from labrl.trial.fork import ForkPoint, check_fork
from labrl.trial.past import check_past
from labrl.trial.resume import continue_config, frames_reached, lacks_files
from labrl.trial.summary import say

Planned = tuple[list[TrialRecord], list[tuple[TrialRecord, Need]]]
"""All trials of an experiment, including those of earlier commands; and those that remain to run, with the
slots that they need."""


@dataclass
class _Trial:
    """A requested trial."""

    record: TrialRecord
    cfg: DictConfig | None = None
    """The composed configuration of a new trial; None for a trial that goes back to an earlier run."""
    past: Run | None = None
    """The run of a trial that has started."""
    fork: ForkPoint | None = None
    """The checkpoint from which a new trial forks, if it does."""
    fits: bool = True
    """Whether the trial's agent fits its environment, as far as this has been checked."""

    @cached_property
    def _edited(self) -> tuple[dict[str, Any], Origin]:
        """The configuration of the earlier run with the trial's edits, and what it comes from."""
        if self.past is not None:
            return edit_run(self.past, edits_of(self.past, self.record.overrides))
        assert self.fork is not None
        return edit_run(self.fork.past, self.fork.edits, self.fork.config_dir)

    @property
    def choices(self) -> Mapping[str, str]:
        """The option of each group."""
        return self._edited[1].choices if self.cfg is None else choices_of(self.cfg.hydra)

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The resolved configuration. Raises InputError."""
        return self._edited[0] if self.cfg is None else resolved(self.cfg, self.choices["agent"])

    @property
    def meta(self) -> Mapping[str, Any]:
        """The group `meta`; empty if it cannot be resolved. The check of its values reports that error."""
        with suppress(Exception):
            plain: Any = (
                OmegaConf.to_container(self.cfg.meta, resolve=True) if self.cfg else self.plain["meta"]
            )
            return {str(key): value for key, value in plain.items()}
        return {}

    def is_done(self) -> bool:
        """Return whether the trial has finished with the requested budget and sessions, and lacks no file."""
        try:
            if self.past is None or self.past.recorded_status != "finished":
                return False
            lacks = lacks_files(self.past, self.past.config["meta"].get("report", True))
            return not (lacks or self.past.changes(self.plain))
        except LabrlError:
            return False


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each trial. There is one trial for each combination of the swept values.

    Hydra must be initialized, because `env=glob(pong*)` means options that exist. Raises InputError for a
    continuous range, and for a pattern that no option matches.
    """
    loader = GlobalHydra.instance().config_loader()
    parsed = OverridesParser.create(loader).parse_overrides(list(overrides))
    for one in parsed:
        if one.is_sweep_override() and not one.is_discrete_sweep():
            key = one.key_or_group
            why = "a continuous range is for a search (hydra/sweeper=optuna)"
            fix = f"A grid needs values: {key}=1,2,3 or {key}=range(1,4)"
            raise InputError.about(str(one.input_line), why, fix, code="range", key=key)
    # Of several overrides of a key, the last one counts.
    choices: dict[str, list[str]] = {}
    for one in parsed:
        values = [*map(unescaped, values_of(one))] if one.is_sweep_override() else [str(one.input_line)]
        if not values:
            allowed = "be values separated by commas, or a single range that is not empty"
            if one.value_type is ValueType.GLOB_CHOICE_SWEEP:
                allowed = "be a pattern that matches an option of a group"
            raise InputError.value(one.key_or_group, str(one.input_line).partition("=")[2], allowed)
        choices[one.get_key_element()] = values
    return [list(overrides) for overrides in itertools.product(*choices.values())]


def plan_grid(
    overrides: Sequence[str],
    common: Trials,
    machine: Machine | None,
    stages: Stages | None = None,
) -> Planned:
    """Number the trials of a new experiment.

    common: what the trials have in common; machine: the machine that runs the trials, None for other
    machines; stages: stages of a comparison, if the trials are its first stage. Raises InputError if
    overrides cannot be composed or have wrong values, if no agent fits its environment, if there are more
    trials than `meta.max_trial`, if two trials are equal or have the same folder, if values contradict the
    checkpoint of the fork, if groups cannot be compared in stages, or if a trial needs more cores or GPUs
    than there are.
    """
    own = combinations(overrides)
    trials: list[_Trial] = []
    for number, one in enumerate(own):
        trials.append(_new(number, one, common))
        _check_count(trials[-1], overrides, len(own) * (stages.count if stages else 1))
        if not trials[1:]:  # Errors of all trials are found before the others are composed.
            _misfit(partial(_check_values, config_dir=common.config_dir), trials[0], own)
    _check_twice(trials)
    left = _left(trials, machine, common)
    if stages:
        check_groups([trial.plain for trial in trials if trial.fits])
    return [trial.record for trial in trials], left


def plan_more(
    records: Sequence[TrialRecord], added: Sequence[list[str]], common: Trials, machine: Machine | None
) -> Planned:
    """Number further trials of an experiment with the trials `records`.

    added: overrides of each further trial; machine: see `plan_grid`. Raises InputError like `plan_grid`.
    """
    first = 1 + max(record.number for record in records)
    new = [_new(number, own, common) for number, own in enumerate(added, first)]
    return [*records, *(trial.record for trial in new)], _left(new, machine, common) if new else []


def plan_again(
    earlier: Earlier,
    before: Experiment,
    overrides: Sequence[str],
    common: Trials,
    machine: Machine | None,
) -> Planned:
    """Find the remaining trials of an experiment, and add new ones.

    A requested combination whose values of the swept keys no earlier trial has is a new trial; the edits of
    all other keys apply to every earlier trial. overrides: overrides of the experiment, including the edits.
    Raises InputError like `plan_grid`, and if an edit contradicts the past of a trial.
    """
    records, swept = before.trials(), earlier.swept | swept_keys(overrides)
    edits = [one for one in earlier.edits if key_of(one) not in swept]
    trials = [
        _earlier(before, dataclasses.replace(one, overrides=replaced(one.overrides, edits)), common)
        for one in records
    ]
    known, added = [_part(one.overrides, swept) for one in records], []
    for own in combinations(overrides):
        if (part := _part(own, swept)) in known:
            known.remove(part)
        else:
            added.append(own)
    first = 1 + max((one.number for one in records), default=-1)
    new = [_new(number, own, common) for number, own in enumerate(added, first)]
    _check_twice(new, [trial.record.overrides for trial in trials])
    trials += new
    for trial in trials:
        _check_count(trial, overrides, len(trials))
    return [trial.record for trial in trials], _left(trials, machine, common)


def _new(number: int, overrides: list[str], common: Trials) -> _Trial:
    cfg = common.compose(overrides)
    record = TrialRecord(number=number, overrides=overrides, folder=trial_folder(cfg, number))
    fork = common.fork
    return _Trial(record, cfg) if fork is None else _Trial(record, fork=fork.of_trial(overrides))


def _earlier(before: Experiment, record: TrialRecord, common: Trials) -> _Trial:
    """Return an earlier trial. Raises DamagedFileError if its folder is damaged."""
    path = before.trial_path(record)
    if path.exists() and not (run := Run.open(path)).unrecorded:
        return _Trial(record, past=check_past(run))
    if common.fork is not None:  # It has not started.
        return _Trial(record, fork=common.fork.of_trial(record.overrides))
    return _Trial(record, common.compose(record.overrides))


def _values(overrides: Sequence[str]) -> dict[str, str]:
    """Return the values of overrides as text by key, with equal text for equal numbers, such as 1e-4 and
    0.0001."""
    return dict(_value(override) for override in overrides if not is_hydras(override))


@cache  # Many trials share most overrides, and parsing one takes 0.1 ms or more.
def _value(override: str) -> tuple[str, str]:
    parsed = OverridesParser.create().parse_override(override)
    return parsed.key_or_group, repr(parsed.value())


def _part(overrides: Sequence[str], keys: set[str]) -> dict[str, str]:
    """Return the values of `keys` in `overrides`."""
    return {key: value for key, value in _values(overrides).items() if key in keys}


def _check_twice(trials: Sequence[_Trial], others: Sequence[list[str]] = ()) -> None:
    """Raise InputError for two equal trials, which would count as two seeds."""
    seen = [_values(overrides) for overrides in others]
    for trial in trials:
        overrides = trial.record.overrides
        seed = trial.cfg.seed if trial.cfg else None
        if _values(overrides) in seen and seed is not None:
            raise InputError.about(
                f"seed={seed}",
                f"two trials are equal in this and all other values: {' '.join(overrides)}",
                "Give each value once; without a seed, or with seed=null,null, each trial draws its own seed",
                code="contradiction",
            )
        seen.append(_values(overrides))


def _check_count(trial: _Trial, overrides: Sequence[str], count: int) -> None:
    """Raise InputError if the `overrides` of the command line allow fewer trials than the grid's `count`.

    Files such as meta=fast_atari set meta.max_trial for searches, so only a value on the command line counts.
    """
    typed = any(key_of(override) == "meta.max_trial" for override in overrides)
    limit = trial.meta.get("max_trial") if typed else None
    if isinstance(limit, int | float) and 0 < limit < count:
        raise InputError.contradiction(
            f"meta.max_trial={limit:g}",
            f"a grid of {count} trials",
            "every combination of values is a trial",
            f"meta.max_trial={count} or null, or give fewer values",
        )


def _left(
    trials: Sequence[_Trial],
    machine: Machine | None,
    common: Trials,
) -> list[tuple[TrialRecord, Need]]:
    """Return the remaining trials with their needs, and record the status of each trial."""
    left, every = [], [one.record.overrides for one in trials]
    for trial in trials:
        if trial.is_done():
            # Its record may be older, if the command was killed while the report was made.
            trial.record.status, trial.record.error = "finished", None
        else:
            trial.record.status, trial.record.error = "waiting", None
            left.append(trial)
    _check_all(left, every, common, here=machine is not None)
    cores = machine.cores if machine else None
    needs = [(trial.record, Need.of(trial.meta, len(trials), cores)) for trial in left]
    if machine:
        for _, need in needs:
            machine.check(need)
    return needs


def _check_all(left: Sequence[_Trial], every: Sequence[list[str]], common: Trials, here: bool) -> None:
    """Check the values of the remaining trials, and whether their agents fit their environments.

    An agent that does not fit ends its trial with an error, which is reported before the trials start. The
    other trials run nevertheless, since a grid has all combinations of its values. every: overrides of all
    trials; here: whether the trials run on this machine. Raises InputError if no agent fits, and for any
    other error.
    """
    misfits: dict[int, InputError] = {}
    known: set[str] = set()
    values = partial(_check_values, config_dir=common.config_dir)
    for check in (values, partial(_check_fit, known=known, here=here)):
        for index, trial in enumerate(left):
            if index not in misfits and (error := _misfit(check, trial, every)) is not None:
                misfits[index] = error
    if misfits and len(misfits) == len(left):
        raise misfits[0]
    for index, trial in enumerate(left):
        trial.fits = index not in misfits
        if not trial.fits:
            say(f"cannot run: {misfits[index]}")
            continue
        with _named(trial, every):
            if trial.fork is not None:
                check_fork(trial.fork, trial.plain)
            elif trial.past is not None:
                plain, origin = trial.plain, trial._edited[1]
                continue_config(trial.past, plain, origin, frames_reached(trial.past), common.force)


def _misfit(check: Callable[[_Trial], None], trial: _Trial, every: Sequence[list[str]]) -> InputError | None:
    """Return the error if the check finds that the agent of a trial does not fit its environment.

    every: overrides of all trials. Raises InputError, with the name of the trial, for any other error.
    """
    try:
        with _named(trial, every):
            check(trial)
    except InputError as error:
        if (error.code, error.key) == ("unsupported", "agent"):
            return error
        raise
    return None


def _check_values(trial: _Trial, config_dir: str | None) -> None:
    """Raise InputError for wrong values of the trial. config_dir: folder with the user's own groups."""
    plain = trial.plain
    # Those of a trial that goes back to a run were recorded from a valid configuration.
    overrides = [] if trial.cfg is None else trial.record.overrides
    with naming_file(overrides, config_dir):
        check_keys(resolve(trial.cfg or plain, plain))
    check_start_from(plain["start_from"]["run"], trial.record.overrides)
    if trial.cfg is not None:
        check_environment(plain["env"], trial.choices["env"])
    check_no_search(plain["search"]["space"])


def _check_fit(trial: _Trial, known: set[str], here: bool) -> None:
    """Raise InputError if the agent of the trial does not support the actions of its environment.

    known: pairs of agent and environment that fit, to which the pair of the trial is added; here: whether the
    trial runs on this machine, because environments of other machines perhaps cannot be made here. An
    environment that fails is left to the trial, which has a log for the error.
    """
    env, agent = trial.plain["env"], trial.choices["agent"]
    pair = json.dumps([agent, {**env, "max_frame": None}], default=str)
    if pair in known:  # Making an environment may take seconds.
        return
    try:
        check_fit(env, agent)
    except LabrlError as error:
        if isinstance(error, InputError) and (here or error.key == "agent"):
            raise
    known.add(pair)


@contextmanager
def _named(trial: _Trial, trials: Sequence[list[str]]) -> Iterator[None]:
    """Context manager: add the trial's name to an InputError.

    trials: overrides of every trial of the experiment; the name omits those that all trials share.
    """
    try:
        yield
    except InputError as error:
        shared = set.intersection(*map(set, trials))
        own = " ".join(override for override in trial.record.overrides if override not in shared)
        if not own:
            raise
        raise error.within(f"trial {own}") from error
