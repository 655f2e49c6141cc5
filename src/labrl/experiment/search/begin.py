"""Turn the command line of a search into a `Search`, and run it."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from omegaconf import DictConfig

from labrl.config.compose import resolve, to_plain
from labrl.config.schema import TrialConfig
from labrl.config.validate import dataclass_of
from labrl.errors import InputError, LabrlError
from labrl.experiment.experiment import recording_end
from labrl.experiment.job import Job
from labrl.experiment.search.checks import check_pruner, check_ready, check_space
from labrl.experiment.search.objective import Direction, direction_of
from labrl.experiment.search.options import Measure, NoPruner, SearchConfig
from labrl.experiment.search.outcome import break_off, conclude
from labrl.experiment.search.recipe import Recipe
from labrl.experiment.search.search import Search
from labrl.experiment.search.settings import Settings
from labrl.experiment.search.space import Space
from labrl.experiment.search.storage import StudyStorage, silence
from labrl.experiment.search.study import Plan, Study
from labrl.experiment.sweep import hydra_words
from labrl.storage.experiment_folder import ExperimentFolder, names_in, take_away
from labrl.storage.marker import place
from labrl.trial.baseline import random_return
from labrl.trial.overrides import split_word
from labrl.trial.shares import Machine, Need, Share
from labrl.trial.summary import say

OF_A_TRIAL = ("meta.progress=false", "meta.report=false", "meta.videos=false")
"""Overrides of every trial of a search, unless the user types the key: nobody watches single trials, and many
reports and videos would cost more time than short trials do."""

OWN_STUDY = "labrl"
"""Name of the study in a storage that holds no other."""


def search(cfg: DictConfig, settings: Settings, words: Sequence[str], job: Job) -> int:
    """Run the search that `cfg` and the `words` of the command line describe. Returns an exit code.

    job: what Hydra would run for each trial, which knows what was typed.

    Raises InputError for wrong input, before any trial starts.
    """
    silence()
    plain = to_plain(cfg)
    known = dataclass_of(SearchConfig, plain["search"], "search").space
    _check_launcher(cfg)
    config_dir = _config_dir(cfg)
    typed = _without_seed(words)
    space = Space.of(known, settings.params, typed)
    recipe = Recipe(space, _choices(cfg), unwatched(typed))
    ready = cfg.hydra.runtime.choices["search"]
    base = check_space(recipe, config_dir, ready, known)
    # `cfg` may lack a key that the space adds.
    asked = resolve({**plain, "agent": base.agent, "env": base.env})
    _check_total(asked, settings, words)
    check_ready(ready, recipe, config_dir)
    plan = _plan(asked, base, space, settings, cfg)
    shares = _shares(base, settings)
    with _experiment(cfg, words, plan.name, job) as (experiment, existed):
        storage = StudyStorage(settings.storage, experiment.path)
        study = Study(storage, plan, settings.sampler, experiment.path)
        subfolder = f"{{number}}_{recipe.choices['agent']}_{_slug(base.env.config.name)}"
        allowed = settings.max_failure_rate
        one = Search(
            study, asked.search.confirm, allowed, recipe, experiment, config_dir, shares, subfolder, job.typed
        )
        facts = {**_typed(cfg, words), "search": _facts(storage, study)}
        if existed:  # with its edits, so that the next resume knows them
            experiment.resumed(job.typed, job.experiment.edits if job.experiment else [], **facts)
        else:
            experiment.set_status("running", **facts)
        _announce(study, storage, len(shares), experiment)
        try:
            code, confirmation = one.run()
            return conclude(one, storage, code, confirmation, report=asked.meta.report)
        except Exception as error:
            return break_off(experiment, storage, error)


def _check_total(asked: TrialConfig, settings: Settings, words: Sequence[str]) -> None:
    """Raises InputError where two numbers of trials were asked for. A ready space may bring another one."""
    total = asked.meta.max_trial
    typed = any(split_word(word)[0] == "meta.max_trial" for word in words)
    if typed and total not in (None, settings.n_trials):
        raise InputError(
            f"hydra.sweeper.n_trials={settings.n_trials} and meta.max_trial={total} contradict each other: "
            "both are the number of trials of the search. Leave one out, or give both the same value.",
            code="contradiction",
            key="meta.max_trial",
        )


def _check_launcher(cfg: DictConfig) -> None:
    launcher = cfg.hydra.runtime.choices.get("hydra/launcher")
    if launcher not in (None, "joblib", "basic"):
        raise InputError(
            f"hydra/launcher={launcher} cannot run a search, which has its own workers on this machine "
            "(hydra.sweeper.n_jobs=<trials at once>). To use several machines, leave hydra/launcher out and "
            "start the same command on each, for instance in jobs of a cluster, with "
            "hydra.sweeper.storage=postgresql://... and hydra.sweeper.study_name=<name>",
            code="unsupported",
            key="hydra/launcher",
        )


def _plan(asked: TrialConfig, base: TrialConfig, space: Space, settings: Settings, cfg: DictConfig) -> Plan:
    search_config = asked.search
    objective = search_config.objective
    measures: list[Measure] = list(objective) if isinstance(objective, list) else [objective]
    directions = _directions(settings.direction, measures)
    pruner = search_config.pruner
    if len(measures) > 1 and not isinstance(pruner, NoPruner):
        say(f"search.pruner={pruner.kind} is off, because it cannot compare trials by several objectives")
        pruner = NoPruner(kind="none")
    check_pruner(pruner, base)
    if settings.storage is not None and settings.study_name is None:
        raise InputError(
            f"hydra.sweeper.storage={settings.storage} can hold several studies, so the study needs a name, "
            "by which other machines join it: set hydra.sweeper.study_name=<name>",
            code="missing",
            key="hydra.sweeper.study_name",
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
        random_return=_random_return(base, cfg) if "strength" in measures else 0.0,
        retries=search_config.retries,
    )


def _random_return(config: TrialConfig, cfg: DictConfig) -> float:
    known = random_return(to_plain(cfg)["env"], config.env)
    if known is None:
        raise InputError(
            "search.objective=strength needs the return of the random policy, which could not be measured in "
            "this environment. Set search.objective=auc, which ranks trials in nearly the same way",
            code="unsupported",
            key="search.objective",
        )
    return known


def _directions(given: Any, measures: Sequence[Measure]) -> list[Direction]:
    if given is None:
        return [direction_of(measure) for measure in measures]
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


def _shares(config: TrialConfig, settings: Settings) -> list[Share]:
    """A share of the machine for each trial that runs at once: as many as were asked for, or as have room."""
    machine = Machine()
    need = Need.of(dataclasses.asdict(config.meta), settings.n_trials, machine.cores)
    machine.check(need)
    if settings.n_jobs is None:
        taken = (machine.take(need) for _ in range(settings.n_trials))
        return [share for share in taken if share is not None]
    workers = min(settings.n_jobs, settings.n_trials)
    each = Need(max(1, machine.cores // workers), need.gpus)
    return [machine.take(each) or Share(each.cores) for _ in range(workers)]


def unwatched(typed: Sequence[str]) -> list[str]:
    """OF_A_TRIAL without the keys in `typed`: `meta.report=true` gives each trial a report."""
    given = {word.partition("=")[0].lstrip("+") for word in typed}
    return [word for word in OF_A_TRIAL if word.partition("=")[0] not in given]


def _without_seed(words: Sequence[str]) -> list[str]:
    """A number given as seed is that of the search; its trials have seeds that follow from it."""
    return [word for word in words if not re.fullmatch(r"\+*seed=(\d+|null)", word)]


def _choices(cfg: DictConfig) -> dict[str, str]:
    options = cfg.hydra.runtime.choices.items()
    return {
        str(group): str(option)
        for group, option in options
        if not str(group).startswith(("hydra/", "search")) and option is not None
    }


def _config_dir(cfg: DictConfig) -> str | None:
    sources = [one for one in cfg.hydra.runtime.config_sources if one.provider == "command-line"]
    return str(sources[0].path) if sources else None


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "run"


@contextmanager
def _experiment(
    cfg: DictConfig, words: Sequence[str], study_name: str, job: Job
) -> Iterator[tuple[ExperimentFolder, bool]]:
    """The folder of the experiment, kept from others for as long as this lasts, and whether it is an old one.

    One that was made for a search which turns out to be wrong is taken away again.
    """
    folder = place(cfg.hydra.sweep.dir, "hydra.sweep.dir")
    existed = ExperimentFolder(folder).marker.exists()
    before = names_in(folder)
    if existed:
        experiment = ExperimentFolder.open(folder)
        _check_same(experiment, study_name)
    else:
        experiment = ExperimentFolder.create(folder, "search", [], command=job.typed, **_typed(cfg, words))
    with experiment.lock():
        try:
            with recording_end(experiment):
                yield experiment, existed
        except LabrlError:
            if not existed:
                take_away(folder, before)
            raise


def _check_same(experiment: ExperimentFolder, study_name: str) -> None:
    """Raises InputError for a folder whose trials are those of something else."""
    info = experiment.info()
    if info.get("kind") != "search":
        raise InputError(
            f"{experiment.path} holds an experiment that is not a search. Set hydra.sweep.dir to another "
            "folder",
            code="usage",
            key="hydra.sweep.dir",
        )
    then = info.get("search", {}).get("study_name", study_name)
    if then != study_name:
        raise InputError(
            f"hydra.sweeper.study_name={study_name}: {experiment.path} holds the trials of the study {then}. "
            "A study needs a folder of its own: leave out +resume and hydra.sweep.dir",
            code="contradiction",
            key="hydra.sweeper.study_name",
        )


def _typed(cfg: DictConfig, words: Sequence[str]) -> dict[str, Any]:
    """What `experiment.json` keeps of the command line."""
    return {
        "overrides": list(words),
        "hydra_overrides": hydra_words(cfg),
        "config_dir": _config_dir(cfg),
    }


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


def _announce(study: Study, storage: StudyStorage, workers: int, experiment: ExperimentFolder) -> None:
    plan = study.plan
    done = sum(trial.state.is_finished() for trial in study.trials())
    already = f", {done} of them done" if done else ""
    searched = len(plan.space.distributions)
    keys = "1 key" if searched == 1 else f"{searched} keys"
    say(
        f"searching {keys} for the best {' and '.join(plan.measures)}: "
        f"{study.total} trials{already}, {workers} at a time, {study.sampler.name}, pruner {plan.pruner.kind}"
    )
    if study.total == 1:
        say("meta.max_trial=1: a single trial has nothing to be compared with. Set meta.max_trial=20 or so")
    say(f"experiment folder: {experiment.path}")
    say(f"to watch: optuna-dashboard {shlex.quote(storage.told)}")
