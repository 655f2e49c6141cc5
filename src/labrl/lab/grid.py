"""The trials of a grid: every combination of the values, numbered, each with a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from labrl.config.compose import check_values, to_plain
from labrl.config.consistency import changes, only_watches, quoted
from labrl.config.errors import ConfigError
from labrl.lab.past import Past
from labrl.lab.shares import Machine, Need
from labrl.lab.workers import Order
from labrl.storage.experiment_folder import ExperimentFolder, TrialRecord
from labrl.storage.run_folder import RunFolder

Compose = Callable[[list[str]], DictConfig]
"""From the words of a trial to its configuration with Hydra's node."""

Identity = frozenset[tuple[str, str]]
"""Keys and values of a trial's words."""


@dataclass(frozen=True)
class Plan:
    """The trials of an experiment, and which of them are still to be run."""

    records: list[TrialRecord]
    """All, those of an earlier command included."""
    orders: list[Order]
    """What is left to do."""


def combinations(words: Sequence[str]) -> list[list[str]]:
    """The words of each trial: one for each combination of the values that are swept over.

    Raises ConfigError for a range, which has no values to go through.
    """
    parsed = OverridesParser.create().parse_overrides(list(words))
    for one in parsed:
        if one.is_sweep_override() and not one.is_discrete_sweep():
            raise ConfigError(
                f"{one.input_line}: a range is for a search (hydra/sweeper=optuna); a grid goes through "
                f"values: {one.key_or_group}=1,2,3 or {one.key_or_group}=range(1,4)"
            )
    (trials,) = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    # Hydra turns ~key into ~key=null, which takes away a key of that value alone.
    taken_away = {f"{one.input_line}=null": str(one.input_line) for one in parsed if one.is_delete()}
    return [[taken_away.get(word, word) for word in words] for words in trials]


def plan_grid(
    trials: Sequence[list[str]],
    compose: Compose,
    machine: Machine | None,
    before: ExperimentFolder | None = None,
    force: bool = False,
) -> Plan:
    """Number the trials and find out what is left of them.

    trials: the words of each; machine: that runs them, None where others do; before: the experiment that is
    resumed, whose trials keep number and folder and, where they have finished, are not run again; force:
    also where their past would have been another one. Raises ConfigError for that, for what cannot be
    composed, for a wrong value, for two trials that are the same or have one folder, and for more GPUs than
    there are.
    """
    old = before.trials() if before else []
    kept = [record for record in old if before and before.trial_path(record).exists()]
    taken = {record.number for record in kept}
    records = {record.number: record for record in kept}
    orders: list[Order] = []
    seen: set[Identity] = set()
    for words, record in zip(trials, _matched(trials, old), strict=True):
        cfg = compose(words)
        _check_seed(words, cfg, seen)
        if record is None or (record.number in records and record not in kept):
            number = next(free for free in range(len(taken) + 1) if free not in taken)
            record = TrialRecord(number=number, overrides=list(words), folder=_folder(cfg, number))
        taken.add(record.number)
        records[record.number] = record
        record.overrides = list(words)
        past = _past_of(before, record) if before else None
        if past and _is_done(past, cfg):
            # its run folder knows, where whoever was to record it was killed while the report was made
            record.status, record.error = "finished", None
            continue
        _check_values(cfg, words, trials)
        if past and not force:
            past.check(cfg, _as_then(past, cfg), f"trial {record.number}, {record.folder}")
        record.status, record.error = "waiting", None
        need = Need.of(_meta(cfg), len(trials), machine.cores if machine else None)
        if machine:
            machine.check(need)
        orders.append(Order(record.number, [*words, f"hydra.sweep.subdir={quoted(record.folder)}"], need))
    _check_folders(list(records.values()))
    return Plan([records[number] for number in sorted(records)], orders)


def _matched(trials: Sequence[list[str]], old: Sequence[TrialRecord]) -> list[TrialRecord | None]:
    """The record that each trial had in the experiment before: one with the same words, or else with the
    same but for those that only watch it. None for a new trial.
    """
    found: list[TrialRecord | None] = [None] * len(trials)
    left = list(old)
    for watching in (True, False):
        known: dict[Identity, list[TrialRecord]] = {}
        for record in left:
            known.setdefault(_identity(record.overrides, watching), []).append(record)
        for index, words in enumerate(trials):
            same = known.get(_identity(words, watching))
            if found[index] is None and same:
                found[index] = same.pop(0)
        left = [record for records in known.values() for record in records]
    return found


def _identity(words: Sequence[str], watching: bool) -> Identity:
    """What tells one trial of an experiment from another: its words. A number counts by its value: 1e-4 and
    0.0001 are the same.

    watching: whether words count that only watch a trial.
    """
    found = set()
    for one in OverridesParser.create().parse_overrides(list(words)):
        key = one.key_or_group
        # what else is below meta has a message of its own where it changes
        watches = only_watches(key) or f"{key}.".startswith("meta.")
        if not key.startswith(("hydra.", "hydra/")) and (watching or not watches):
            found.add((one.get_key_element(), repr(one.value())))
    return frozenset(found)


def _check_seed(words: Sequence[str], cfg: DictConfig, seen: set[Identity]) -> None:
    """Raises ConfigError where a trial like it was `seen`: it would run twice, and count as two seeds."""
    identity = _identity(words, watching=True)
    if identity in seen and cfg.seed is not None:
        raise ConfigError(
            f"two trials are the same, with seed={cfg.seed} and all other values: {' '.join(words)}. Give "
            "each value once. Without a seed, or with seed=null,null, each trial draws one of its own."
        )
    seen.add(identity)


def _check_values(cfg: DictConfig, words: Sequence[str], trials: Sequence[list[str]]) -> None:
    """Raises ConfigError for what is wrong with the trial of these `words`, as far as its values tell.

    Whether agent and environment fit each other the trial finds out itself: of a grid over several, those
    that do are wanted all the same.
    """
    try:
        check_values(to_plain(cfg), cfg)
    except ConfigError as error:
        shared = set.intersection(*map(set, trials))
        own = " ".join(word for word in words if word not in shared)
        raise ConfigError(f"trial {own}: {error}" if own else str(error)) from error


def _folder(cfg: DictConfig, number: int) -> str:
    """The trial's folder in that of the experiment."""
    with open_dict(cfg.hydra.job):
        cfg.hydra.job.num, cfg.hydra.job.id = number, str(number)
    return str(OmegaConf.select(cfg, "hydra.sweep.subdir"))


def _meta(cfg: DictConfig) -> Mapping[str, Any]:
    try:
        plain = OmegaConf.to_container(cfg.meta, resolve=True)
    except Exception:  # whatever is wrong with it, the check of its values says
        return {}
    return {str(key): value for key, value in plain.items()} if isinstance(plain, dict) else {}


def _past_of(before: ExperimentFolder, record: TrialRecord) -> Past | None:
    """What was asked of the trial so far; None where it has not begun."""
    try:
        return Past.of(RunFolder.open(before.trial_path(record)))
    except ConfigError:
        return None


def _as_then(past: Past, cfg: DictConfig) -> dict[str, Any]:
    """The configuration that is wanted now; a seed that is to be drawn is the one that was."""
    plain = to_plain(cfg)
    return plain if plain["seed"] is not None else {**plain, "seed": past.config["seed"]}


def _is_done(past: Past, cfg: DictConfig) -> bool:
    """Whether the trial has finished, with as long a budget and as many sessions as are wanted now."""
    try:
        return past.folder.status == "finished" and not changes(past.config, _as_then(past, cfg))
    except ConfigError:
        return False


def _check_folders(records: Sequence[TrialRecord]) -> None:
    folders: dict[str, TrialRecord] = {}
    for record in records:
        other = folders.setdefault(record.folder, record)
        if other is not record:
            raise ConfigError(
                f"hydra.sweep.subdir gives trials {other.number} and {record.number} the same folder, "
                f"{record.folder}: put ${{hydra.job.num}} into it"
            )
