"""The trials of a grid: the combinations of values, numbered, each with its own folder."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict

from labrl.config.compose import (
    check_environment,
    check_no_search,
    naming_preset,
    resolve,
    to_plain,
)
from labrl.config.keys import (
    Change,
    changes,
    contradictions,
    is_hydras,
    key_of,
    override_of,
    traits,
    typed_override,
    unescaped,
    walk,
)
from labrl.errors import InputError, LabrlError
from labrl.experiment.again import ExperimentAgain, replaced, swept_keys
from labrl.experiment.machine import Machine, Need
from labrl.run.experiment import Experiment, TrialRecord
from labrl.run.run import Run
from labrl.trial.composed import check_fit, check_start_from, resolved
from labrl.trial.fork import Fork
from labrl.trial.past import check_past, row_of, table, unresolved, ways_out
from labrl.trial.summary import say

Compose = Callable[[list[str]], DictConfig]
"""Composes the configuration of a trial, including the node `hydra`, from its overrides."""


@dataclass(frozen=True)
class Plan:
    """The trials of an experiment, and those that remain to run."""

    records: list[TrialRecord]
    """All trials, including those of earlier commands."""
    left: list[tuple[TrialRecord, Need]]
    """The trials that remain to run, with the slots that they need."""
    selects: bool = False
    """Whether the edits select some of the existing trials, so that the others keep their values."""


@dataclass
class _Trial:
    """A requested trial."""

    record: TrialRecord
    cfg: DictConfig
    past: Run | None = None
    """The earlier run of the trial; None if it has not started."""
    edited: bool = True
    """Whether the edits of a resumed experiment apply to it."""

    @property
    def agent(self) -> str:
        """The option of the group `agent`."""
        return str(self.cfg.hydra.runtime.choices["agent"])

    @property
    def plain(self) -> dict[str, Any]:
        """The resolved configuration, with the drawn seed of the earlier run."""
        plain = to_plain(self.cfg)
        return {**plain, "seed": self.past.config["seed"]} if self.past and plain["seed"] is None else plain

    def changed(self) -> list[Change]:
        """Return the changes from its earlier run, if any."""
        return self.past.changes(self.plain) if self.past else []

    def is_done(self) -> bool:
        """Return whether the trial has finished with the requested budget and sessions."""
        try:
            finished = self.past is not None and self.past.recorded_status == "finished"
            return finished and not (self.edited and self.changed())
        except LabrlError:
            return False


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each trial, one for each combination of the swept values.

    Raises InputError for a continuous range.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    for one in parsed:
        if one.is_sweep_override() and not one.is_discrete_sweep():
            raise InputError(
                f"{one.input_line}: a continuous range is for a search (hydra/sweeper=optuna). A grid needs "
                f"values: {one.key_or_group}=1,2,3 or {one.key_or_group}=range(1,4)",
                code="range",
                key=one.key_or_group,
            )
    (trials,) = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    # Hydra turns ~key into ~key=null, which removes a key only if its value is null.
    taken_away = {f"{one.input_line}=null": str(one.input_line) for one in parsed if one.is_delete()}
    return [
        [taken_away.get(override) or unescaped(override) for override in overrides] for overrides in trials
    ]


def plan_grid(
    overrides: Sequence[str], compose: Compose, machine: Machine | None, fork: Fork | None = None
) -> Plan:
    """Number the trials of a new experiment.

    machine: the machine that runs them, None for other machines; fork: the run that they fork from, if any.
    Raises InputError for overrides that cannot be composed, for wrong values, if no agent fits its
    environment, for more trials than `meta.max_trial`, for two equal trials or two with the same folder,
    for values that contradict the checkpoint of the fork, and for more cores or GPUs than there are.
    """
    own = combinations(overrides)
    trials: list[_Trial] = []
    for number, one in enumerate(own):
        trials.append(_new(number, one, compose(one)))
        _check_count(trials[-1], overrides, len(own))
        if not trials[1:]:  # Errors of all trials are found before the others are composed.
            _misfit(_check_values, trials[0], own)
    _check_twice(trials)
    return Plan([trial.record for trial in trials], _left(trials, machine, fork))


def plan_again(
    again: ExperimentAgain,
    before: Experiment,
    overrides: Sequence[str],
    compose: Compose,
    machine: Machine | None,
) -> Plan:
    """Find the remaining trials of an experiment, and add new ones.

    Edits apply to all trials. If they set keys that identify trials, such as seed=0, they apply to the trials
    with these values, and the others continue unchanged. overrides: those of the whole experiment, including
    the edits. Raises InputError as `plan_grid` does, and if an edit contradicts the past of a trial.
    """
    records, wanted = before.trials(), combinations(overrides)
    swept = again.swept | swept_keys(overrides)
    choosing = [
        override
        for override in again.edits
        if key_of(override) in swept and not traits(key_of(override)).resume
    ]
    chosen = [_values(values) for values in combinations(choosing)]
    others = [override for override in again.edits if override not in choosing]
    several = swept_keys(others)
    (for_all,) = combinations([override for override in others if key_of(override) not in several])
    matched = _matched(wanted, records, swept)

    edited = [any(_agrees(record.overrides, values) for values in chosen) for record in records]
    drafts = [list(record.overrides) for record in records]
    for index, record in enumerate(records):
        if edited[index]:
            own = next((wanted[at] for at, found in enumerate(matched) if found is record), [])
            its = [*for_all, *(override for override in own if key_of(override) in several)]
            drafts[index] = replaced(record.overrides, its)
    trials = [
        _Trial(dataclasses.replace(record, overrides=own), cfg, _past_of(before, record), is_edited)
        for record, (own, cfg), is_edited in zip(records, _composed(drafts, compose), edited, strict=True)
    ]
    if again.pin:
        for trial, record in zip(trials, records, strict=True):
            if trial.edited:
                _pin(trial, record.overrides, again.edits, compose)

    added = [own for own, found in zip(wanted, matched, strict=True) if found is None]
    drafts = [_as_its_siblings(own, trials, swept, for_all) for own in added]
    new = _composed(drafts, compose, [trial.cfg for trial in trials])
    free = sorted(set(range(len(trials) + len(new))) - {record.number for record in records})
    new_trials = [_new(number, *one) for number, one in zip(free, new, strict=False)]
    _check_twice(new_trials, [trial.record.overrides for trial in trials])

    trials = sorted([*trials, *new_trials], key=lambda trial: trial.record.number)
    for trial in trials:
        if trial.edited:
            _check_count(trial, overrides, len(trials))
    needs = _left(trials, machine, again.fork, again)
    selects = bool(choosing) and all(
        any(_agrees(record.overrides, values) for record in records) for values in chosen
    )
    return Plan([trial.record for trial in trials], needs, selects)


def _new(number: int, overrides: list[str], cfg: DictConfig) -> _Trial:
    return _Trial(TrialRecord(number=number, overrides=overrides, folder=_folder(cfg, number)), cfg)


def _values(overrides: Sequence[str]) -> dict[str, str]:
    """Return values as text by key, with equal text for equal numbers, such as 1e-4 and 0.0001."""
    return dict(_value(override) for override in overrides if not is_hydras(override))


@functools.cache  # Many trials share most overrides, and parsing one takes 0.1 ms or more.
def _value(override: str) -> tuple[str, str]:
    parsed = OverridesParser.create().parse_override(override)
    return parsed.key_or_group, repr(parsed.value())


def _agrees(overrides: Sequence[str], values: Mapping[str, str]) -> bool:
    return values.items() <= _values(overrides).items()


def _matched(
    wanted: Sequence[list[str]], records: Sequence[TrialRecord], swept: set[str]
) -> list[TrialRecord | None]:
    """Return the record of each existing trial; None for a new one.

    A record matches by the values of the `swept` keys, or else of those that affect learning.
    """
    found: list[TrialRecord | None] = [None] * len(wanted)
    left = list(records)
    for keys in (swept, {key for key in swept if not traits(key).resume}):
        for index, overrides in enumerate(wanted):
            if found[index] is None:
                own = _part(overrides, keys)
                found[index] = next((one for one in left if _part(one.overrides, keys) == own), None)
                left = [one for one in left if one is not found[index]]
    return found


def _part(overrides: Sequence[str], keys: set[str]) -> dict[str, str]:
    """Return the values of `keys` in `overrides`."""
    return {key: value for key, value in _values(overrides).items() if key in keys}


def _as_its_siblings(
    overrides: list[str], trials: Sequence[_Trial], swept: set[str], edits: Sequence[str]
) -> list[str]:
    """Return the overrides of a new trial. If others differ from it only in the seed, they are taken from
    these, including pinned keys."""
    group = {key for key in swept if not traits(key).resume} - {"seed"}
    siblings = [
        trial.record.overrides
        for trial in trials
        if _part(trial.record.overrides, group) == _part(overrides, group)
    ]
    rest = _values(overrides).keys() - {"seed"}
    if not siblings or any(
        _part(sibling, _values(sibling).keys() - {"seed"}) == _part(overrides, rest) for sibling in siblings
    ):
        return overrides
    return replaced(siblings[0], [*edits, *(override for override in overrides if key_of(override) in swept)])


def _composed(
    trials: Sequence[list[str]], compose: Compose, others: Sequence[DictConfig] = ()
) -> list[tuple[list[str], DictConfig]]:
    """Return the overrides and the configuration of each trial, without values of keys that it does not have.

    Such keys must exist in other trials. others: configurations of further trials. Raises Hydra's errors.
    """
    composed: dict[int, tuple[list[str], DictConfig]] = {}
    failed: dict[int, tuple[HydraException, DictConfig]] = {}
    for index, overrides in enumerate(trials):
        try:
            composed[index] = list(overrides), compose(overrides)
        except HydraException as error:
            failed[index] = error, compose([override for override in overrides if not _is_value(override)])
    known = [*others, *(bare for _, bare in failed.values()), *(cfg for _, cfg in composed.values())]
    keys = {key for cfg in known for key in _keys(cfg)} if failed else set()
    for index, (refused, bare) in failed.items():
        lacking = {key_of(one) for one in trials[index] if _is_value(one)} - _keys(bare)
        if not lacking <= keys:
            raise refused
        left = [one for one in trials[index] if not (_is_value(one) and key_of(one) in lacking)]
        composed[index] = left, compose(left)
    return [composed[index] for index in range(len(trials))]


def _is_value(override: str) -> bool:
    """Return whether an override sets an existing key, rather than adding one or choosing an option."""
    return re.match(r"\w+(\.\w+)+=", override) is not None


def _keys(cfg: DictConfig) -> set[str]:
    return {key for key, _ in walk(unresolved(cfg))}


def _pin(trial: _Trial, overrides: list[str], edits: Sequence[str], compose: Compose) -> None:
    """Keep the old values of keys that were not typed and whose new values contradict the trial's past.

    overrides: the overrides of the trial before the `edits`.
    """
    changed = trial.changed() if trial.past else changes(to_plain(compose(overrides)), trial.plain)
    pins = [
        override_of(change.key, change.old)
        for change in contradictions(changed)
        if change.pinnable and not _typed(change.key, edits)
    ]
    if pins:
        trial.record.overrides = replaced(trial.record.overrides, pins)
        trial.cfg = compose(trial.record.overrides)


def _typed(key: str, edits: Sequence[str]) -> bool:
    """Return whether one of the `edits` sets `key`, or a group that contains it."""
    return any(f"{key}.".startswith(f"{key_of(override).replace('/', '.')}.") for override in edits)


def _check_twice(trials: Sequence[_Trial], others: Sequence[list[str]] = ()) -> None:
    """Raise InputError for two equal trials, which would count as two seeds."""
    seen = [_values(overrides) for overrides in others]
    for trial in trials:
        overrides = trial.record.overrides
        if _values(overrides) in seen and trial.cfg.seed is not None:
            raise InputError(
                f"two trials are equal, with seed={trial.cfg.seed} and all other values: "
                f"{' '.join(overrides)}. Type each value once. Without a seed, or with seed=null,null, each "
                "trial draws its own seed.",
                code="contradiction",
                key="seed",
            )
        seen.append(_values(overrides))


def _check_count(trial: _Trial, overrides: Sequence[str], count: int) -> None:
    """Raise InputError if the `overrides` of the command line allow fewer trials than the grid's `count`.

    Files such as meta=fast_atari set meta.max_trial for searches, so only a typed value counts.
    """
    typed = any(key_of(override) == "meta.max_trial" for override in overrides)
    limit = _meta(trial.cfg).get("max_trial") if typed else None
    if isinstance(limit, int | float) and 0 < limit < count:
        raise InputError(
            f"meta.max_trial={limit:g} and a grid of {count} trials contradict each other: every combination "
            f"of values is a trial. Set meta.max_trial={count} or null, or type fewer values.",
            code="contradiction",
            key="meta.max_trial",
        )


def _left(
    trials: Sequence[_Trial],
    machine: Machine | None,
    fork: Fork | None = None,
    again: ExperimentAgain | None = None,
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
    _check_all(left, every, fork, here=machine is not None)
    if again is not None:
        _check_pasts(left, trials, again)
    cores = machine.cores if machine else None
    needs = [(trial.record, Need.of(_meta(trial.cfg), len(trials), cores)) for trial in left]
    if machine:
        for _, need in needs:
            machine.check(need)
    _check_folders([trial.record for trial in trials])
    return needs


def _check_all(left: Sequence[_Trial], every: Sequence[list[str]], fork: Fork | None, here: bool) -> None:
    """Check the values of the remaining trials, and whether their agents fit their environments.

    An agent that does not fit ends its trial with an error. The others run nevertheless, since a grid has all
    combinations of its values, but this is said before they start. every: the overrides of all trials; here:
    whether the trials run on this machine. Raises InputError if no agent fits, and for anything else.
    """
    misfits: dict[int, InputError] = {}
    known: set[str] = set()
    for check in (_check_values, functools.partial(_check_fit, known=known, here=here)):
        for index, trial in enumerate(left):
            if index not in misfits and (error := _misfit(check, trial, every)) is not None:
                misfits[index] = error
    if misfits and len(misfits) == len(left):
        raise misfits[0]
    for index, trial in enumerate(left):
        if index in misfits:
            say(f"cannot run: {misfits[index]}")
        elif fork is not None and trial.past is None:
            with _named(trial, every):
                fork.check(trial.plain)


def _misfit(check: Callable[[_Trial], None], trial: _Trial, every: Sequence[list[str]]) -> InputError | None:
    """Return the error if the check finds that the agent of a trial does not fit its environment.

    every: the overrides of all trials. Raises InputError, with the name of the trial, for anything else.
    """
    try:
        with _named(trial, every):
            check(trial)
    except InputError as error:
        if (error.code, error.key) == ("unsupported", "agent"):
            return error
        raise
    return None


def _check_values(trial: _Trial) -> None:
    """Raise InputError for wrong values of the trial."""
    plain = resolved(trial.cfg, trial.agent)
    with naming_preset(trial.cfg.hydra.runtime.choices):
        resolve(trial.cfg, plain)
    check_start_from(plain["start_from"]["run"], trial.record.overrides)
    if trial.past is None:
        check_environment(plain["env"], trial.cfg.hydra.runtime.choices["env"])
    check_no_search(plain["search"]["space"])


def _check_fit(trial: _Trial, known: set[str], here: bool) -> None:
    """Raise InputError if the agent of the trial does not support the actions of its environment.

    known: pairs that fit, which gets that of the trial; here: whether it runs on this machine, and not on one
    with environments that perhaps cannot be made here. An environment that fails is left to the trial, which
    has a log for the error.
    """
    env: Any = OmegaConf.to_container(trial.cfg.env, resolve=True)
    pair = json.dumps([trial.agent, {**env, "max_frame": None}], default=str)
    if pair in known:  # Making an environment may take seconds.
        return
    try:
        check_fit(env, trial.agent)
    except LabrlError as error:
        if isinstance(error, InputError) and (here or error.key == "agent"):
            raise
    known.add(pair)


@contextmanager
def _named(trial: _Trial, trials: Sequence[list[str]]) -> Iterator[None]:
    """Context manager: let an InputError name the trial.

    trials: the overrides of each trial of the experiment; the name omits those that all trials have.
    """
    try:
        yield
    except InputError as error:
        shared = set.intersection(*map(set, trials))
        own = " ".join(override for override in trial.record.overrides if override not in shared)
        if not own:
            raise
        raise error.within(f"trial {own}") from error


def _check_pasts(left: Sequence[_Trial], trials: Sequence[_Trial], again: ExperimentAgain) -> None:
    """Raise InputError with a table if edits contradict the past of trials that are `left`, and for a budget
    that one of them has already used up."""
    found = {trial.record.number: contradictions(trial.changed()) for trial in left}
    if any(found.values()) and not again.force:
        refused = [one for one in left if found[one.record.number]]
        key = found[refused[0].record.number][0].key
        raise InputError(_refusal(refused, trials, again), code="changed-past", key=key)
    from labrl.trial.resume import check_budget, frames_reached

    for trial in left:
        if trial.past is not None:
            try:
                check_budget(trial.past, resolve(trial.cfg), functools.partial(frames_reached, trial.past))
            except LabrlError as error:
                raise error.within(f"trial {trial.record.number}, {trial.record.folder}") from error


def _refusal(refused: Sequence[_Trial], trials: Sequence[_Trial], again: ExperimentAgain) -> str:
    """Return a message about the contradicting keys, their trials, and what to type instead."""
    rows: dict[tuple[str, ...], list[str]] = {}
    found: list[Change] = []
    for trial in refused:
        for change in contradictions(trial.changed()):
            found.append(change)
            row = row_of(change, unresolved(trial.cfg))
            rows.setdefault(row, []).append(str(trial.record.number))
    cells = [
        (*row, f"trial{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}")
        for row, numbers in rows.items()
    ]
    lines = [
        f"+resume={again.path}: these values contradict the past of {len(refused)} of {len(trials)} trials:",
        *table([("key", "then", "now", "", ""), *cells]),
    ]
    pins = {change.key: typed_override(change.key, change.old) for change in found if change.pinnable}
    if all(_keeps(trial, pins) for trial in trials if trial.edited):
        return "\n".join([*lines, *ways_out(found, list(pins.values()))])
    typed = [override for override in again.edits if any(_typed(change.key, [override]) for change in found)]
    if typed:
        lines.append(f"Leave out {' '.join(typed)}, or use it only for new trials.")
    return "\n".join([*lines, *ways_out(found, ["+pin=true"])])


def _keeps(trial: _Trial, pins: Mapping[str, str]) -> bool:
    """Return whether the keys of `pins` had these values in the trial's past, or did not exist."""
    then = dict(walk(trial.past.config)) if trial.past else {}
    return all(typed_override(key, then[key]) == pin for key, pin in pins.items() if key in then)


def _folder(cfg: DictConfig, number: int) -> str:
    """Return the trial's folder in that of the experiment."""
    with open_dict(cfg.hydra.job):
        cfg.hydra.job.num, cfg.hydra.job.id = number, str(number)
    return str(OmegaConf.select(cfg, "hydra.sweep.subdir"))


def _meta(cfg: DictConfig) -> Mapping[str, Any]:
    try:
        plain = OmegaConf.to_container(cfg.meta, resolve=True)
    except Exception:  # The check of its values reports the error.
        return {}
    return {str(key): value for key, value in plain.items()} if isinstance(plain, dict) else {}


def _past_of(before: Experiment, record: TrialRecord) -> Run | None:
    """Return the earlier run of the trial, None if it has not started.

    Raises DamagedFileError if its folder is damaged.
    """
    path = before.trial_path(record)
    if not path.exists() or Run(path).unrecorded:
        return None
    return check_past(Run.open(path))


def _check_folders(records: Sequence[TrialRecord]) -> None:
    folders: dict[str, TrialRecord] = {}
    for record in records:
        other = folders.setdefault(record.folder, record)
        if other is not record:
            raise InputError(
                f"hydra.sweep.subdir gives trials {other.number} and {record.number} the same folder, "
                f"{record.folder}. Add ${{hydra.job.num}} to it",
                code="contradiction",
                key="hydra.sweep.subdir",
            )
