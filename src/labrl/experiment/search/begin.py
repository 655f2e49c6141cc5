"""Start a search from its command line."""

from __future__ import annotations

import copy
import dataclasses
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import SQLAlchemyError

from labrl.config import config_folder
from labrl.config.compose import resolve, to_plain
from labrl.config.keys import changes, key_of
from labrl.config.presets import read
from labrl.config.schema import TrialConfig
from labrl.config.validate import dataclass_of
from labrl.envs.games import check_environment
from labrl.envs.make import info_keys
from labrl.errors import InputError, LabrlError, first_line, install_command
from labrl.experiment.earlier import Earlier, swept_keys
from labrl.experiment.launcher import TrialLauncher
from labrl.experiment.machine import Machine, Need
from labrl.experiment.search.checks import check_pruner, settings_of
from labrl.experiment.search.objective import Objective
from labrl.experiment.search.options import SearchConfig, Settings, start_of
from labrl.experiment.search.queue import Search, conclude
from labrl.experiment.search.space import OF_THE_SEARCH, Recipe, Space
from labrl.experiment.search.study import MACHINE, OWN_STUDY, Study
from labrl.experiment.summary import how_to_resume_experiment
from labrl.experiment.sweep import held
from labrl.experiment.trials import Trials, trial_folder
from labrl.processes.secrets import redact
from labrl.run.experiment import Experiment
from labrl.run.folder import place
from labrl.run.provenance import describe_code
from labrl.run.trust import check_experiment
from labrl.trial.configuration import check_start_from, resolved
from labrl.trial.create import check
from labrl.trial.reporting import random_return
from labrl.trial.summary import say
from labrl.types import INFO

OF_A_TRIAL = ("meta.progress=false", "meta.report=false", "meta.videos=false")
"""Overrides of every trial of a search, unless the command line sets the key. Reports and videos of many
short trials would take more time than the trials."""


def search(
    cfg: DictConfig, trials: Trials, launcher: TrialLauncher, earlier: Earlier | None
) -> tuple[Path, int]:
    """Run the search that `cfg` and the overrides of `trials` describe. Return the experiment folder and the
    exit code.

    cfg: the configuration with the first option of each searched group; earlier: the search that is resumed,
    if any. Raises InputError for wrong input before any trial starts, and LabrlError if the storage fails.
    """
    settings, overrides, choices = settings_of(cfg), trials.overrides, cfg.hydra.runtime.choices
    for override in overrides:
        if OF_THE_SEARCH.match(override) and swept_keys([override]):
            why = "it is of the whole search, which has one value of it"
            raise InputError.usage(override, why, "Run one search for each value")
    plain = resolved(cfg, choices["agent"])
    asked = dataclass_of(SearchConfig, plain["search"], "search")
    check_start_from(plain["start_from"]["run"], overrides)
    check_environment(plain["env"], choices["env"])
    # A seed on the command line is that of the search, from which the seeds of its trials are derived.
    typed = [override for override in overrides if not re.fullmatch(r"\+*seed=(\d+|null)", override)]
    typed += evaluated_in_time(plain, typed)
    space = Space.of(asked.space, settings.params or {}, typed)
    recipe = Recipe(space, dict(choices), unwatched(typed), trials.config_dir)
    base = check_space(recipe)
    check_ready(choices["search"], recipe)
    _check_total(plain["meta"]["max_trial"], settings, overrides)
    check_pruner(asked.pruner, base, settings.n_trials)
    objective = _objective(asked.objective, base, plain["env"])
    if settings.storage is not None and settings.study_name is None:
        why = "the storage can contain several studies, and other machines join this one by its name"
        raise InputError.missing("hydra.sweeper.study_name", why)
    need = _limit_launcher(launcher, base, settings, choices["hydra/launcher"])
    path = place(cfg.hydra.sweep.dir, "hydra.sweep.dir")
    exists = Experiment(path).marker.exists()
    if exists:
        _check_same(Experiment.open(path), settings.study_name or OWN_STUDY, asked.objective)
    trials.home, trials.repositories = path, describe_code()
    facts: dict[str, Any] = {
        "overrides": list(overrides),
        "hydra_overrides": trials.hydras,
        "config_dir": trials.config_dir,
    }
    with held(path, "search", exists, (), command=trials.typed, **facts) as experiment:
        budget, every, seed = base.env.config.max_frame, base.eval_frames, plain["seed"]
        study = Study(path, settings, asked.pruner, space, objective, budget, every, seed)
        facts["search"] = {
            "storage": redact(study.url),
            "study_name": study.optuna.study_name,
            "objective": [asked.objective],
            "directions": [study.optuna.direction.name.lower()],
            "sampler": type(study.optuna.sampler).__name__,
            "pruner": vars(asked.pruner),
            "space": space.as_json(),
            "max_trial": study.total,
            "seed": study.seed,
        }
        folder_of = partial(trial_folder, copy.deepcopy(cfg))
        one = Search(study, recipe, experiment, folder_of, need, asked, settings.max_failure_rate)
        one.check_first()
        if exists:  # with its edits, so that the next resume knows them
            experiment.resumed(trials.typed, earlier.edits if earlier else [], **facts)
        else:
            experiment.set_status("running", **facts)
        one.shows_progress = plain["meta"]["progress"]
        _announce(one, launcher.limit, base)
        try:
            code, confirmation = one.run(launcher)
            return path, conclude(one, code, confirmation, report=plain["meta"]["report"])
        except (StorageInternalError, SQLAlchemyError, OSError) as error:
            resume = f"To resume when the problem is solved: {how_to_resume_experiment(path)}"
            why = f"the search cannot continue: {first_line(error.__cause__ or error)}"
            told = f"{why} (storage: {redact(study.url)}). All trials have been saved. {resume}"
            raise LabrlError(told, code="resources", key="hydra.sweeper.storage") from error


def unwatched(typed: Sequence[str]) -> list[str]:
    """Return OF_A_TRIAL without the keys that the overrides `typed` set. With `meta.report=true`, for
    example, each trial gets a report."""
    given = set(map(key_of, typed))
    return [override for override in OF_A_TRIAL if key_of(override) not in given]


def evaluated_in_time(plain: Mapping[str, Any], typed: Sequence[str]) -> list[str]:
    """Return an override with ten evaluations for trials whose budget the default frequency exceeds, because
    a pruner needs them. A frequency that the user has set is kept. plain: the resolved configuration."""
    default = read(config_folder() / "meta" / "default.yaml")["eval_frequency"]
    frames, every = plain["env"]["max_frame"], plain["meta"]["eval_frequency"]
    if "meta.eval_frequency" in map(key_of, typed) or every != default or frames > every:
        return []
    return ["meta.eval_frequency=1/10"]


def check_space(recipe: Recipe) -> TrialConfig:
    """Return the configuration without searched values. Raises InputError if it is wrong, and for a searched
    key or option that does not exist."""
    first = recipe.space.first()
    recipe.compose(first)
    config = resolve(recipe.compose({key: value for key, value in first.items() if key.startswith("+")}))
    check(config)
    return config


def check_ready(name: str, recipe: Recipe) -> None:
    """Raise InputError if the option `name` of `search` sets keys that trials do not get from it."""
    base, brought = to_plain(recipe.compose({})), to_plain(recipe.compose({}, f"search={name}"))
    found = [one for one in changes(base, brought) if not one.key.startswith("search.")]
    lost = [one for one in found if one.key not in ("seed", "meta.max_trial")]
    if lost:
        told = " ".join(f"{one.key}={one.new}" for one in lost)
        why = f"it sets {told}, but trials take only search.space and the agent from it"
        fix = "Set these values on the command line, or put them into an option of the group experiment"
        raise InputError.unsupported(f"search={name}", why, fix)


def _check_total(total: int | None, settings: Settings, overrides: Sequence[str]) -> None:
    """Raise InputError if the command line sets two different numbers of trials. A value of `meta.max_trial`
    from a ready-made space may differ."""
    if "meta.max_trial" in map(key_of, overrides) and total not in (None, settings.n_trials):
        other, why = f"hydra.sweeper.n_trials={settings.n_trials}", "both are the number of trials"
        raise InputError.contradiction(f"meta.max_trial={total}", other, why, "Leave one out")


def _objective(measure: str, base: TrialConfig, env: Mapping[str, Any]) -> Objective:
    """Return the objective. Raises InputError if the runs do not have the measure.

    base: the configuration without searched values; env: its resolved group `env`.
    """
    columns = [f"{INFO}{name}" for name in info_keys(base.env)]
    setting, baseline = f"search.objective={measure}", None
    if measure.startswith(INFO) and measure not in columns:
        why = f"the runs have no such column{', but only ' * bool(columns)}{', '.join(columns)}"
        fix = f"'env.info_keys=[{measure.removeprefix(INFO)}]'"
        raise InputError.about(setting, why, fix, code="missing")
    if measure == "strength" and (baseline := random_return(env, base.env)) is None:
        why = "the return of the random policy cannot be measured in this environment"
        fix = "search.objective=auc, which ranks trials almost identically"
        raise InputError.unsupported(setting, why, fix)
    return Objective(measure, base.meta.max_session, 0.0 if baseline is None else baseline.mean)


def _limit_launcher(launcher: TrialLauncher, config: TrialConfig, settings: Settings, name: str) -> Need:
    """Set in the launcher how many trials run at the same time: `hydra.sweeper.n_jobs`, but at most
    `hydra.launcher.n_jobs`, and as many as there is room for. Return the slots of a trial.

    name: option of the group `hydra/launcher`. Raises InputError if the launcher needs a number and none is
    set, and if this machine has no room for a trial.
    """
    given = [number for number in (settings.n_jobs, launcher.limit) if number is not None]
    launcher.waits_for_room, launcher.limit = True, min(given, default=None)
    if not (launcher.traits.knows_room or given):
        raise InputError.missing(
            "hydra.sweeper.n_jobs",
            f"with hydra/launcher={name}, a search needs the number of trials to submit at the same time, "
            "because each of its trials depends on those before it",
            "hydra.sweeper.n_jobs=8",
        )
    machine = None if launcher.traits.elsewhere else Machine()
    trials = min([settings.n_trials, *given])
    need = Need.of(dataclasses.asdict(config.meta), trials, machine.cores if machine else None)
    if machine is not None:
        machine.check(need)
    return need


def _check_same(experiment: Experiment, study_name: str, objective: str) -> None:
    """Raise InputError if a folder is of another experiment or of a search for another objective, and for the
    reasons of `check_experiment`."""
    info = experiment.read_info()
    if info.get("kind") != "search":
        why = "this folder contains an experiment that is not a search"
        raise InputError.usage(f"hydra.sweep.dir={experiment.path}", why, "Set another folder")
    then = {"study_name": study_name, "objective": [objective], **info.get("search", {})}
    fix = "Leave out +resume and hydra.sweep.dir"
    if study_name != then["study_name"]:
        setting, where = f"hydra.sweeper.study_name={study_name}", f"the study {then['study_name']} in it"
        raise InputError.contradiction(setting, where, fix=fix)
    if [objective] != then["objective"]:
        where = f"the objective of this search, {then['objective'][0]}"
        raise InputError.contradiction(f"search.objective={objective}", where, fix=fix)
    check_experiment(experiment)


def _announce(one: Search, limit: int | None, base: TrialConfig) -> None:
    """Print what the search will do. limit: number of trials at a time."""
    study, asked, config = one.study, one.options, one.options.confirm
    trials, total, budget = study.trials(), study.total, base.env.config.max_frame
    done = sum(trial.state.is_finished() for trial in trials)
    say(
        f"searching {', '.join(study.space.distributions)} for the best {asked.objective}: {total} trials "
        f"({done} done), {limit or 'as many as there is room for'} at a time, "
        f"{type(study.optuna.sampler).__name__}, pruner {asked.pruner.kind}"
    )
    if others := [trial for trial in trials if MACHINE not in trial.user_attrs]:
        told = ", ".join(f"{trial.number} ({trial.state.name.lower()})" for trial in others)
        say(f"trials that other programs have added or asked for: {told}")
    first, frame = start_of(asked.pruner, total, budget, base.eval_frames)
    none = "" if first < total else f", so that none of these {total} can be pruned"
    if frame < budget:
        say(f"pruning begins after {first} finished trials, and in each trial at frame {frame:,}{none}")
    searching, runs = total * base.meta.max_session * budget, 0
    if config is not None:
        runs = (min(config.top, total) + config.default) * config.sessions
    share = runs * budget / (runs * budget + searching)
    say(
        f"frames: at most {searching:,} in the search, and {runs * budget:,} in the confirmation on fresh "
        f"seeds ({runs} runs): {share:.0%} of all frames, or more if trials are pruned"
    )
    if total == 1:
        say("meta.max_trial=1: a search needs several trials to compare. Set, for example, meta.max_trial=20")
    say(f"experiment folder: {one.experiment.path}")
    install = "" if shutil.which("optuna-dashboard") else f"   (after {install_command('search')})"
    say(f"to watch: optuna-dashboard {shlex.quote(redact(study.url))}{install}")
