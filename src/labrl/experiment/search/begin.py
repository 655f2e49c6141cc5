"""Start a search from its command line."""

from __future__ import annotations

import copy
import dataclasses
import re
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from labrl.config.compose import resolve, to_plain
from labrl.config.keys import ABSENT, changes, key_of, walk
from labrl.config.nodes import ConfigNode
from labrl.config.schema import TrialConfig
from labrl.config.validate import dataclass_of
from labrl.envs.games import check_environment
from labrl.envs.make import info_keys
from labrl.errors import InputError, LabrlError, install_command
from labrl.experiment.earlier import Earlier, swept_keys
from labrl.experiment.launcher import TrialLauncher
from labrl.experiment.machine import Machine, Need
from labrl.experiment.search.checks import check_pruner, not_its, settings_of
from labrl.experiment.search.options import Confirm, SearchConfig, Settings
from labrl.experiment.search.pruners import NoPruner
from labrl.experiment.search.search import Search, break_off, conclude
from labrl.experiment.search.space import OF_THE_SEARCH, Recipe, Space
from labrl.experiment.search.storage import StudyStorage, silence
from labrl.experiment.search.study import Plan, Study
from labrl.experiment.sweep import held
from labrl.experiment.trials import Trials, trial_folder
from labrl.mistakes.names import some
from labrl.processes.secrets import redact
from labrl.run.experiment import Experiment
from labrl.run.folder import place
from labrl.run.provenance import describe_code
from labrl.run.trust import check_experiment
from labrl.trial.configuration import check_fit, check_start_from, resolved
from labrl.trial.create import check
from labrl.trial.reporting import random_return
from labrl.trial.summary import say
from labrl.types import INFO

OF_A_TRIAL = ("meta.progress=false", "meta.report=false", "meta.videos=false")
"""Overrides of every trial of a search, unless the command line sets the key. Reports and videos of many
short trials would take more time than the trials."""

OWN_STUDY = "labrl"
"""Name of a study that has a storage of its own."""


def search(
    cfg: DictConfig, trials: Trials, launcher: TrialLauncher, earlier: Earlier | None
) -> tuple[Path, int]:
    """Run the search that `cfg` and the overrides of `trials` describe. Return the experiment folder and the
    exit code.

    cfg: the configuration with the first option of each searched group; earlier: the search that is resumed,
    if any. Raises InputError for wrong input before any trial starts.
    """
    silence()
    settings, overrides = settings_of(cfg), trials.overrides
    for override in overrides:
        if OF_THE_SEARCH.match(override) and swept_keys([override]):
            why = "it is of the whole search, which has one value of it"
            raise InputError.usage(override, why, "Run one search for each value")
    plain = resolved(cfg, cfg.hydra.runtime.choices["agent"])
    check_start_from(plain["start_from"]["run"], overrides)
    known = dataclass_of(SearchConfig, plain["search"], "search").space
    # A seed on the command line is that of the search, from which the seeds of its trials are derived.
    typed = [override for override in overrides if not re.fullmatch(r"\+*seed=(\d+|null)", override)]
    space = Space.of(known, settings.params or {}, typed)
    choices = {
        str(group): str(option)
        for group, option in cfg.hydra.runtime.choices.items()
        if not str(group).startswith(("hydra/", "search")) and option is not None
    }
    recipe = Recipe(space, choices, unwatched(typed), trials.config_dir)
    ready = cfg.hydra.runtime.choices["search"]
    base = check_space(recipe, ready, known)
    # `cfg` may lack a key that the space adds.
    asked = resolve({**plain, "agent": base.agent, "env": base.env})
    check_environment(plain["env"], cfg.hydra.runtime.choices["env"])
    _check_total(asked, settings, overrides)
    check_ready(ready, recipe)
    plan = _plan(asked, base, space, settings, plain["env"])
    need = _limit_launcher(launcher, base, settings, cfg.hydra.runtime.choices["hydra/launcher"])
    folder_of = partial(trial_folder, copy.deepcopy(cfg))
    path = place(cfg.hydra.sweep.dir, "hydra.sweep.dir")
    exists = Experiment(path).marker.exists()
    facts: dict[str, Any] = {
        "overrides": list(overrides),
        "hydra_overrides": trials.hydras,
        "config_dir": trials.config_dir,
    }
    if exists:
        before = Experiment.open(path)
        _check_same(before, plan.name)
        check_experiment(before)
    trials.repositories = describe_code()
    with held(path, "search", exists, (), command=trials.typed, **facts) as experiment:
        storage = StudyStorage(settings.storage, path)
        study = Study(storage, plan, settings.sampler, path)
        facts["search"] = _facts(storage, study)
        if exists:  # with its edits, so that the next resume knows them
            experiment.resumed(trials.typed, earlier.edits if earlier else [], **facts)
        else:
            experiment.set_status("running", **facts)
        one = Search(study, recipe, experiment, folder_of, need, settings.max_failure_rate)
        one.shows_progress = asked.meta.progress
        at_once = str(launcher.limit or "as many as there is room for")
        _announce(study, storage, at_once, experiment, asked.search.confirm)
        try:
            code, confirmation = one.run(launcher, asked.search.confirm)
            return path, conclude(one, storage, code, confirmation, report=asked.meta.report)
        except Exception as error:
            return path, break_off(experiment, storage, error)


def _check_total(asked: TrialConfig, settings: Settings, overrides: Sequence[str]) -> None:
    """Raise InputError if the command line sets two different numbers of trials. A value of `meta.max_trial`
    from a ready-made space may differ."""
    total = asked.meta.max_trial
    typed = any(key_of(override) == "meta.max_trial" for override in overrides)
    if typed and total not in (None, settings.n_trials):
        raise InputError.contradiction(
            f"meta.max_trial={total}",
            f"hydra.sweeper.n_trials={settings.n_trials}",
            "both are the number of trials of the search",
            "Leave one out, or set both to the same value",
        )


def _plan(
    asked: TrialConfig, base: TrialConfig, space: Space, settings: Settings, env: Mapping[str, Any]
) -> Plan:
    """Return the plan of the study. Raises InputError if the measure, the pruner or the storage cannot be
    used."""
    measure, pruner = asked.search.objective, asked.search.pruner
    columns = [f"{INFO}{name}" for name in info_keys(base.env)]
    if measure.startswith(INFO) and measure not in columns:
        why = f"the runs have no such column{', but only ' * bool(columns)}{', '.join(columns)}"
        name = measure.removeprefix(INFO)
        fix = f"'env.info_keys=[{name}]', or {{{name}: sum}} for another reduction"
        raise InputError.about(f"search.objective={measure}", why, fix, code="missing")
    check_pruner(pruner, base, settings.n_trials)
    if settings.storage is not None and settings.study_name is None:
        raise InputError.missing(
            "hydra.sweeper.study_name",
            f"hydra.sweeper.storage={redact(settings.storage)} can contain several studies, and other "
            "machines join this study by its name",
            "hydra.sweeper.study_name=<name>",
        )
    baseline = random_return(env, base.env) if measure == "strength" else None
    if measure == "strength" and baseline is None:
        raise InputError.unsupported(
            "search.objective=strength",
            "it needs the return of the random policy, which cannot be measured in this environment",
            "search.objective=auc, which ranks trials almost identically",
        )
    return Plan(
        name=settings.study_name or OWN_STUDY,
        space=space,
        measure=measure,
        direction=settings.direction or ("minimize" if measure == "wall" else "maximize"),
        pruner=pruner,
        total=settings.n_trials,
        budget=base.env.config.max_frame,
        num_sessions=base.meta.max_session,
        seed=asked.seed,
        random_return=0.0 if baseline is None else baseline.mean,
        retries=asked.search.retries,
    )


def _limit_launcher(launcher: TrialLauncher, config: TrialConfig, settings: Settings, name: str) -> Need:
    """Set in the launcher how many trials run at the same time, on how many cores. Return the slots of a
    trial.

    The number of trials is `hydra.sweeper.n_jobs`, but at most the limit of the launcher
    (`hydra.launcher.n_jobs`); if neither is set, it is as many as there is room for. name: option of the
    group `hydra/launcher`. Raises InputError if the launcher needs a number and none is set.
    """
    meta, total = dataclasses.asdict(config.meta), settings.n_trials
    given = [number for number in (settings.n_jobs, launcher.limit) if number is not None]
    launcher.waits_for_room, launcher.limit = True, min(given, default=None)
    if not (launcher.traits.knows_room or given):
        raise InputError.missing(
            "hydra.sweeper.n_jobs",
            f"with hydra/launcher={name}, a search needs the number of trials to submit at the same time, "
            "because each of its trials depends on those before it",
            "hydra.sweeper.n_jobs=8",
        )
    if launcher.traits.elsewhere:
        return Need.of(meta, total, None)
    machine = Machine()
    need = Need.of(meta, total, machine.cores)
    machine.check(need)
    if settings.n_jobs is None:
        room = sum(1 for _ in takewhile(bool, (machine.take(need) for _ in range(total))))
        launcher.limit = min([room, *given])
        return need
    launcher.limit = jobs = min([total, *given])
    need = Need(max(1, machine.cores // jobs), need.gpus)
    launcher.cores = max(machine.cores, jobs * need.cores)
    return need


def unwatched(typed: Sequence[str]) -> list[str]:
    """Return OF_A_TRIAL without the keys that the overrides `typed` set. With `meta.report=true`, for
    example, each trial gets a report."""
    given = set(map(key_of, typed))
    return [override for override in OF_A_TRIAL if key_of(override) not in given]


def _check_same(experiment: Experiment, study_name: str) -> None:
    """Raise InputError if a folder belongs to another experiment."""
    info = experiment.read_info()
    if info.get("kind") != "search":
        why = "this folder contains an experiment that is not a search"
        raise InputError.usage(f"hydra.sweep.dir={experiment.path}", why, "Set another folder")
    then = info.get("search", {}).get("study_name", study_name)
    if then != study_name:
        raise InputError.contradiction(
            f"hydra.sweeper.study_name={study_name}",
            f"{experiment.path}, which contains the trials of the study {then}",
            fix="Each study needs its own folder: leave out +resume and hydra.sweep.dir",
        )


def _facts(storage: StudyStorage, study: Study) -> dict[str, Any]:
    plan = study.plan
    return {
        "storage": storage.shown_url,
        "study_name": plan.name,
        "objective": [plan.measure],
        "directions": [plan.direction],
        "sampler": study.sampler.name,
        "pruner": {"kind": plan.pruner.kind, **vars(plan.pruner)},
        "space": plan.space.as_json(),
        "max_trial": study.total,
        "seed": study.seed,
    }


def _announce(
    study: Study, storage: StudyStorage, at_once: str, experiment: Experiment, confirm: Confirm | None
) -> None:
    plan = study.plan
    done = sum(trial.state.is_finished() for trial in study.trials())
    already = f", {done} of them done" if done else ""
    searched = len(plan.space.distributions)
    keys = "1 key" if searched == 1 else f"{searched} keys"
    say(
        f"searching {keys} for the best {plan.measure}: "
        f"{study.total} trials{already}, {at_once} at a time, {study.sampler.name}, pruner {plan.pruner.kind}"
    )
    if not isinstance(plan.pruner, NoPruner):
        trials, rows = plan.pruner.startup(study.total)
        none = "" if trials < study.total else f", so that none of these {study.total} can be pruned"
        say(
            f"pruning begins after {trials} finished trial{'' if trials == 1 else 's'} "
            "(search.pruner.n_startup_trials), and in each trial at its evaluation number "
            f"{rows} (search.pruner.n_startup_rows){none}"
        )
    searching = study.total * plan.num_sessions * plan.budget
    if confirm is None:
        say(f"frames: at most {searching:,}, without a confirmation on fresh seeds (search.confirm=null)")
    else:
        runs = (min(confirm.top, study.total) + confirm.default) * confirm.sessions
        share = runs * plan.budget / (runs * plan.budget + searching)
        say(
            f"frames: at most {searching:,} in the search, and {runs * plan.budget:,} in the confirmation "
            f"({runs} runs on fresh seeds): {share:.0%} of all frames, or more if trials are pruned"
        )
    if study.total == 1:
        say("meta.max_trial=1: a search needs several trials to compare. Set, for example, meta.max_trial=20")
    say(f"experiment folder: {experiment.path}")
    install = "" if shutil.which("optuna-dashboard") else f"   (after {install_command('search')})"
    say(f"to watch: optuna-dashboard {shlex.quote(storage.shown_url)}{install}")


def check_space(recipe: Recipe, ready: str = "none", keys: Collection[str] = ()) -> TrialConfig:
    """Check the space of a search by composing it. Return the configuration without searched values.

    ready: the option of `search`, whose space has the `keys`. Raises InputError for a key or an option that
    does not exist, and for a range with a value that its key does not allow.
    """
    corners = recipe.space.corners()
    first = {key: values[0] for key, values in corners.items()}
    default = to_plain(recipe.compose({}))
    firsts = _together(recipe, first, ready, keys)
    for key, values in corners.items():
        for value in values:
            if _is_key(default, key):
                _check_value(recipe, default, key, value)
                continue
            composed = _together(recipe, {**first, key: value}, ready, keys)
            if key.startswith("+"):
                _check_own(composed, key, recipe.space.written[key])
    filled = OmegaConf.create(default)
    for key in first:  # Keys that the space adds, such as `+agent.lr`.
        if key.startswith("+") and not _is_key(default, key[1:]):
            OmegaConf.update(filled, key[1:], OmegaConf.select(OmegaConf.create(firsts), key[1:]))
    config = resolve(filled)
    check(config)
    return config


def _together(recipe: Recipe, values: Mapping[str, Any], ready: str, keys: Collection[str]) -> dict[str, Any]:
    """Compose the trial with the given values of searched keys.

    Raises InputError if a searched key does not exist together with other values, such as `agent.epochs` with
    agent=dqn, and if a searched agent does not fit the environment.
    """
    agent = str(values.get("agent", recipe.choices["agent"]))
    try:
        plain = resolved(recipe.compose(values), agent)
        if {"agent", "env"} & set(values):
            check_fit(plain["env"], agent)
        return plain
    except LabrlError as error:
        groups = {key: value for key, value in values.items() if "/" in key or "." not in key}
        try:
            chosen = to_plain(recipe.compose(groups))
        except LabrlError as wrong:
            if wrong.code != "unknown-key":
                raise
            # A fixed key that one of the searched agents lacks.
            raise wrong.within(" ".join(f"{key}={value}" for key, value in groups.items())) from error
        lacking = [key for key in recipe.space.distributions if "." in key and not _is_key(chosen, key)]
        if of_ready := [key for key in lacking if key in keys]:
            raise not_its(ready, of_ready, agent) from error
        for key in lacking:
            _refuse_conditional(recipe, key, groups)
        raise error.within("the search space does not fit") from error


def _refuse_conditional(recipe: Recipe, key: str, groups: Mapping[str, Any]) -> None:
    """Raise InputError if some options of a searched group have the searched `key` and others do not.

    groups: an option of each searched group.
    """
    for group in groups:
        options = [f"{group}={option}" for option in recipe.space.corners()[group]]
        able = [
            typed
            for typed, option in zip(options, recipe.space.corners()[group], strict=True)
            if _is_key(to_plain(recipe.compose({**groups, group: option})), key)
        ]
        if 0 < len(able) < len(options):
            raise InputError.contradiction(
                recipe.space.written[key],
                recipe.space.written[group],
                f"{key} exists only with {some(able)}, but every trial of a search has all searched keys",
                f"Run one search for each option: one with {able[0]} and this range, and one with "
                f"{next(one for one in options if one not in able)} and without it",
            )


def check_ready(name: str, recipe: Recipe) -> None:
    """Raise InputError if the option `name` of `search` sets keys that trials do not get from it."""
    base, brought = to_plain(recipe.compose({})), to_plain(recipe.compose({}, f"search={name}"))
    lost = [
        change
        for change in changes(base, brought)
        if change.key not in ("seed", "meta.max_trial") and not change.key.startswith("search.")
    ]
    if lost:
        told = " ".join(f"{change.key}={change.new}" for change in lost[:5])
        raise InputError.unsupported(
            f"search={name}",
            f"it sets {told}{' ...' * (len(lost) > 5)}, which trials would not get, because they take only "
            "search.space and the agent from it",
            "Set these values on the command line, or put them into an option of the group experiment",
        )


def _is_key(plain: Mapping[str, Any], key: str) -> bool:
    """Return whether `key` is a value of the configuration, not a group or a new key."""
    node = dict(walk(plain)).get(key, ABSENT)
    is_group = "/" in key or (isinstance(node, Mapping) and "." not in key)
    return node is not ABSENT and not is_group


def _check_value(recipe: Recipe, default: Mapping[str, Any], key: str, value: Any) -> None:
    """Raise InputError if `key` does not allow `value`, whatever the other values are.

    The value is set directly in its top-level group, because composing with Hydra takes a hundred times as
    long.
    """
    (override,) = OverridesParser.create().parse_overrides(recipe.space.overrides({key: value})[-1:])
    group = re.split(r"[.\[]", key, maxsplit=1)[0]
    changed = ConfigNode({group: default[group]})
    try:
        OmegaConf.update(changed, key, override.value(), merge=True)
        plain = {**default, **to_plain(changed)}
    except (OmegaConfBaseException, LabrlError):
        to_plain(recipe.compose({key: value}))  # raises the right error, if there is one
        return
    _check_own(plain, key, recipe.space.written[key])


def _check_own(plain: Mapping[str, Any], key: str, written: str) -> None:
    """Raise InputError if the value of `key` is wrong by itself.

    Contradictions with other keys are left to the trial, because the other keys may have right values there.
    """
    try:
        dataclass_of(TrialConfig, plain)
    except InputError as error:
        own = re.compile(re.escape(key.lstrip("+")) + r"(?!\w)")
        wrong = [mistake for mistake in error.mistakes if own.match(mistake.key or "")]
        if wrong:
            whole = re.sub(r"(interval\([^)]*\))", r"int(\1)", written)
            hint = f" For whole numbers, write '{whole}'" if "whole number" in wrong[0].message else ""
            first = wrong[0]
            message = f"{written}: {first.message}{hint}"
            raise InputError(message, code=first.code, key=first.key) from error
