"""Start a search from its command line."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import takewhile
from typing import Any

from omegaconf import DictConfig

from labrl.config.compose import resolve, to_plain
from labrl.config.keys import key_of
from labrl.config.schema import TrialConfig
from labrl.config.validate import dataclass_of
from labrl.errors import InputError
from labrl.experiment.experiment import held
from labrl.experiment.job import Job
from labrl.experiment.launcher import TrialLauncher
from labrl.experiment.machine import Machine, Need
from labrl.experiment.search.checks import check_pruner, check_ready, check_space
from labrl.experiment.search.objective import Direction
from labrl.experiment.search.options import Measure, NoPruner, SearchConfig
from labrl.experiment.search.recipe import Recipe
from labrl.experiment.search.search import Search, break_off, conclude
from labrl.experiment.search.settings import Settings
from labrl.experiment.search.space import Space
from labrl.experiment.search.storage import StudyStorage, silence
from labrl.experiment.search.study import Plan, Study
from labrl.experiment.sweep import hydra_overrides
from labrl.session.options import check_start_from
from labrl.storage.experiment_folder import ExperimentFolder
from labrl.storage.folder import place
from labrl.trial.baseline import random_return
from labrl.trial.composed import misfit
from labrl.trial.summary import say

OF_A_TRIAL = ("meta.progress=false", "meta.report=false", "meta.videos=false")
"""Overrides of every trial of a search, unless the user types the key: many reports and videos would cost
more time than short trials do."""

OWN_STUDY = "labrl"
"""Name of the study in its own storage."""


def search(
    cfg: DictConfig,
    settings: Settings,
    overrides: Sequence[str],
    job: Job,
    launcher: TrialLauncher,
) -> int:
    """Run the search that `cfg` and the `overrides` of the command line describe. Return the exit code.

    job: the function that runs each trial. Raises InputError for wrong input before any trial starts.
    """
    silence()
    try:
        plain = to_plain(cfg)
    except InputError as error:
        raise misfit(cfg, cfg.hydra.runtime.choices["agent"], error) or error from None
    check_start_from(plain["start_from"]["run"], overrides)
    known = dataclass_of(SearchConfig, plain["search"], "search").space
    # A typed seed is that of the search, from which those of its trials are derived.
    typed = [override for override in overrides if not re.fullmatch(r"\+*seed=(\d+|null)", override)]
    space = Space.of(known, settings.params or {}, typed)
    recipe = Recipe(space, _choices(cfg), unwatched(typed), job.config_dir)
    ready = cfg.hydra.runtime.choices["search"]
    base = check_space(recipe, ready, known)
    # `cfg` may lack a key that the space adds.
    asked = resolve({**plain, "agent": base.agent, "env": base.env})
    _check_total(asked, settings, overrides)
    check_ready(ready, recipe)
    plan = _plan(asked, base, space, settings, plain["env"])
    need, limit = _give_slots(launcher, base, settings, cfg.hydra.runtime.choices["hydra/launcher"])
    path = place(cfg.hydra.sweep.dir, "hydra.sweep.dir")
    exists = ExperimentFolder(path).marker.exists()
    facts: dict[str, Any] = {
        "overrides": list(overrides),
        "hydra_overrides": hydra_overrides(cfg),
        "config_dir": job.config_dir,
    }
    job.part_of = "search"
    if exists:
        _check_same(ExperimentFolder.open(path), plan.name)
    with held(path, "search", exists, (), command=job.typed, **facts) as experiment:
        storage = StudyStorage(settings.storage, path)
        study = Study(storage, plan, settings.sampler, path)
        facts["search"] = _facts(storage, study)
        if exists:  # with its edits, so that the next resume knows them
            experiment.resumed(job.typed, job.experiment.edits if job.experiment else [], **facts)
        else:
            experiment.set_status("running", **facts)
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", base.env.config.name).strip("-.") or "run"
        subfolder = f"{{number}}_{recipe.choices['agent']}_{name}"
        one = Search(study, recipe, experiment, subfolder, need, settings.max_failure_rate)
        at_once = "as many as there is room for" if limit is None else str(limit)
        _announce(study, storage, at_once, experiment)
        try:
            code, confirmation = one.run(launcher, asked.search.confirm)
            return conclude(one, storage, code, confirmation, report=asked.meta.report)
        except Exception as error:
            return break_off(experiment, storage, error)


def _check_total(asked: TrialConfig, settings: Settings, overrides: Sequence[str]) -> None:
    """Raise InputError if two numbers of trials were typed. A ready-made space may set another one."""
    total = asked.meta.max_trial
    typed = any(key_of(override) == "meta.max_trial" for override in overrides)
    if typed and total not in (None, settings.n_trials):
        raise InputError(
            f"hydra.sweeper.n_trials={settings.n_trials} and meta.max_trial={total} contradict each other: "
            "both are the number of trials of the search. Leave one out, or set both to the same value.",
            code="contradiction",
            key="meta.max_trial",
        )


def _plan(
    asked: TrialConfig, base: TrialConfig, space: Space, settings: Settings, env: Mapping[str, Any]
) -> Plan:
    """Return the plan of the study. Raises InputError if measures, pruner and storage do not fit."""
    objective, pruner = asked.search.objective, asked.search.pruner
    measures: list[Measure] = list(objective) if isinstance(objective, list) else [objective]
    if len(measures) > 1 and not isinstance(pruner, NoPruner):
        say(f"search.pruner={pruner.kind} is off, because it cannot compare trials by several objectives")
        pruner = NoPruner(kind="none")
    directions = _directions(settings.direction, measures)
    check_pruner(pruner, base)
    if settings.storage is not None and settings.study_name is None:
        raise InputError(
            f"hydra.sweeper.storage={settings.storage} can contain several studies, so the study needs a "
            "name, with which other machines join it. Set hydra.sweeper.study_name=<name>",
            code="missing",
            key="hydra.sweeper.study_name",
        )
    baseline = random_return(env, base.env) if "strength" in measures else 0.0
    if baseline is None:
        raise InputError(
            "search.objective=strength needs the return of the random policy, which cannot be measured in "
            "this environment. Set search.objective=auc, which ranks trials almost identically",
            code="unsupported",
            key="search.objective",
        )
    return Plan(
        name=settings.study_name or OWN_STUDY,
        space=space,
        measures=measures,
        directions=directions,
        pruner=pruner,
        total=settings.n_trials,
        budget=base.env.config.max_frame,
        num_sessions=base.meta.max_session,
        seed=asked.seed,
        random_return=baseline,
        retries=asked.search.retries,
    )


def _directions(given: Any, measures: Sequence[Measure]) -> list[Direction]:
    if given is None:
        return ["minimize" if measure == "wall" else "maximize" for measure in measures]
    listed = given if isinstance(given, list) else [given]
    names = [one.name if isinstance(one, Enum) else str(one) for one in listed]
    if len(names) != len(measures) or any(name not in ("minimize", "maximize") for name in names):
        raise InputError(
            f"hydra.sweeper.direction={given}: must be minimize or maximize, one for each of "
            f"search.objective={list(measures)}, or null for the usual direction of each",
            code="range",
            key="hydra.sweeper.direction",
        )
    return ["maximize" if name == "maximize" else "minimize" for name in names]


def _give_slots(
    launcher: TrialLauncher, config: TrialConfig, settings: Settings, name: str
) -> tuple[Need, int | None]:
    """Set the number of trials at the same time and their cores in the launcher.

    Returns the slots of a trial and that number, which is the requested one or as many as there is room for;
    None if the launcher decides.
    """
    meta, jobs, total = dataclasses.asdict(config.meta), settings.n_jobs, settings.n_trials
    launcher.queues = False
    if launcher.elsewhere:
        if name == "submitit_slurm" and jobs is None:
            raise InputError(
                "hydra.sweeper.n_jobs must be given with hydra/launcher=submitit_slurm: the number of jobs "
                "at the same time, because each trial of a search depends on those before it",
                code="missing",
                key="hydra.sweeper.n_jobs",
            )
        need = Need.of(meta, total, None)
    else:
        machine = Machine()
        need = Need.of(meta, total, machine.cores)
        machine.check(need)
        if name == "basic":
            jobs = 1
        elif jobs is None:
            jobs = sum(1 for _ in takewhile(bool, (machine.take(need) for _ in range(total))))
        else:
            jobs = min(jobs, total)
            need = Need(max(1, machine.cores // jobs), need.gpus)
            launcher.cores = max(machine.cores, jobs * need.cores)
    launcher.limit = jobs or launcher.limit
    return need, jobs


def unwatched(typed: Sequence[str]) -> list[str]:
    """Return OF_A_TRIAL without the keys in `typed`: `meta.report=true` gives each trial a report."""
    given = set(map(key_of, typed))
    return [override for override in OF_A_TRIAL if key_of(override) not in given]


def _choices(cfg: DictConfig) -> dict[str, str]:
    options = cfg.hydra.runtime.choices.items()
    return {
        str(group): str(option)
        for group, option in options
        if not str(group).startswith(("hydra/", "search")) and option is not None
    }


def _check_same(experiment: ExperimentFolder, study_name: str) -> None:
    """Raise InputError if a folder belongs to another experiment."""
    info = experiment.info()
    if info.get("kind") != "search":
        raise InputError(
            f"{experiment.path} contains an experiment that is not a search. Set hydra.sweep.dir to another "
            "folder",
            code="usage",
            key="hydra.sweep.dir",
        )
    then = info.get("search", {}).get("study_name", study_name)
    if then != study_name:
        raise InputError(
            f"hydra.sweeper.study_name={study_name}: {experiment.path} contains the trials of the study "
            f"{then}. Each study needs its own folder: leave out +resume and hydra.sweep.dir",
            code="contradiction",
            key="hydra.sweeper.study_name",
        )


def _facts(storage: StudyStorage, study: Study) -> dict[str, Any]:
    plan = study.plan
    return {
        "storage": storage.told,
        "study_name": plan.name,
        "objective": list(plan.measures),
        "directions": list(plan.directions),
        "sampler": study.sampler.name,
        "pruner": {"kind": plan.pruner.kind, **vars(plan.pruner)},
        "space": plan.space.as_json(),
        "max_trial": study.total,
        "seed": study.seed,
    }


def _announce(study: Study, storage: StudyStorage, at_once: str, experiment: ExperimentFolder) -> None:
    plan = study.plan
    done = sum(trial.state.is_finished() for trial in study.trials())
    already = f", {done} of them done" if done else ""
    searched = len(plan.space.distributions)
    keys = "1 key" if searched == 1 else f"{searched} keys"
    say(
        f"searching {keys} for the best {' and '.join(plan.measures)}: "
        f"{study.total} trials{already}, {at_once} at a time, {study.sampler.name}, pruner {plan.pruner.kind}"
    )
    if study.total == 1:
        say("meta.max_trial=1: a search needs several trials to compare. Set, for example, meta.max_trial=20")
    say(f"experiment folder: {experiment.path}")
    say(f"to watch: optuna-dashboard {shlex.quote(storage.told)}")
