"""Start a search from its command line."""

from __future__ import annotations

import copy
import dataclasses
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import SQLAlchemyError

from labrl.config.compose import resolve, to_plain
from labrl.config.keys import changes
from labrl.config.schema import TrialConfig
from labrl.config.validate import dataclass_of
from labrl.envs.games import check_environment
from labrl.envs.make import info_keys
from labrl.errors import InputError, LabrlError, first_line
from labrl.experiment.earlier import Earlier
from labrl.experiment.launcher import TrialLauncher
from labrl.experiment.machine import Machine, Need
from labrl.experiment.search.confirmation import conclude, confirm
from labrl.experiment.search.objective import Objective
from labrl.experiment.search.options import SearchConfig, Settings, start_of
from labrl.experiment.search.queue import SearchQueue
from labrl.experiment.search.space import Space
from labrl.experiment.search.study import MACHINE, OWN_STUDY, Study
from labrl.experiment.summary import how_to_resume_experiment
from labrl.experiment.trials import Trials, held, trial_folder
from labrl.processes.secrets import redact
from labrl.run.experiment import Experiment
from labrl.run.folder import place
from labrl.run.provenance import describe_code
from labrl.run.trust import check_experiment
from labrl.trial.configuration import check_start_from, resolved
from labrl.trial.create import check
from labrl.trial.summary import say
from labrl.types import INFO


def search(
    cfg: DictConfig, trials: Trials, launcher: TrialLauncher, earlier: Earlier | None
) -> tuple[Path, int]:
    """Run the search that `cfg` and the overrides of `trials` describe. Return the experiment folder and the
    exit code.

    cfg: the configuration with the first option of each searched group; earlier: the search that is resumed,
    if any. Raises InputError for wrong input before any trial starts, and LabrlError if the storage fails.
    """
    settings, overrides, choices = settings_of(cfg), trials.overrides, dict(cfg.hydra.runtime.choices)
    plain = resolved(cfg, choices["agent"])
    asked = dataclass_of(SearchConfig, plain["search"], "search")
    asked.max_failure_rate = settings.max_failure_rate
    check_start_from(plain["start_from"]["run"], overrides)
    check_environment(plain["env"], choices["env"])
    # A seed on the command line is that of the search, from which the seeds of its trials are derived.
    typed = [override for override in overrides if not re.fullmatch(r"\+*seed=(\d+|null)", override)]
    if plain["env"]["max_frame"] <= plain["meta"]["eval_frequency"]:  # A pruner needs evaluations.
        typed.insert(0, "meta.eval_frequency=1/10")  # unless the user sets another frequency
    space = Space.of({**asked.space, **(settings.params or {})}, typed, choices, trials.config_dir)
    base = check_space(space)
    check_ready(space)
    objective = _objective(asked.objective, base)
    if settings.storage is not None and settings.study_name is None:
        why = "the storage can contain several studies, and other machines join this one by its name"
        raise InputError.missing("hydra.sweeper.study_name", why)
    need = _limit_launcher(launcher, base, settings)
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
        queue = SearchQueue(study, experiment, folder_of, need, asked)
        _check_first(queue)
        if exists:  # with its edits, so that the next resume knows them
            experiment.resumed(trials.typed, earlier.edits if earlier else [], **facts)
        else:
            experiment.set_status("running", **facts)
        queue.shows_progress = plain["meta"]["progress"]
        _announce(queue, launcher.limit, base)
        try:
            with launcher, queue.interruption:
                queue.run(launcher)
                confirmation = confirm(queue, launcher)
            return path, conclude(queue, confirmation, report=plain["meta"]["report"])
        except (StorageInternalError, SQLAlchemyError, OSError) as error:
            why = f"the search has saved all trials and ended: {first_line(error.__cause__ or error)}"
            told = f"{redact(study.url)}: {why}. To resume: {how_to_resume_experiment(path)}"
            raise LabrlError(told, code="resources", key="hydra.sweeper.storage") from error


def settings_of(config: DictConfig) -> Settings:
    """Return the settings of `hydra.sweeper`. Raises InputError for wrong values."""
    plain: Any = OmegaConf.to_container(config.hydra.sweeper, resolve=True)
    return dataclass_of(Settings, plain, "hydra.sweeper")


def check_space(space: Space) -> TrialConfig:
    """Return the configuration without searched values. Raises InputError if it is wrong, and for a searched
    key or option that does not exist."""
    first = space.first()
    space.compose(first)
    config = resolve(space.compose({key: value for key, value in first.items() if key.startswith("+")}))
    check(config)
    return config


def _check_first(queue: SearchQueue) -> None:
    """Ask for the first trial of a new study. Raises InputError if one of its values is wrong by itself. A
    contradiction of several values is left to the trial."""
    if queue.study.trials() or not queue.ask():
        return
    trial, _ = queue.left[0]
    try:
        resolve(queue.study.space.compose(trial.facts["params"]))
    except InputError as error:
        if error.code != "contradiction":
            queue.study.fail(trial.number, str(error))
            raise


def check_ready(space: Space) -> None:
    """Raise InputError if the option of `search` sets keys that trials do not get from it."""
    setting = f"search={space.choices['search']}"
    base, brought = to_plain(space.compose({})), to_plain(space.compose({}, setting))
    lost = [
        f"{one.key}={one.new}"
        for one in changes(base, brought)
        if not one.key.startswith("search.") and one.key not in ("seed", "meta.max_trial")
    ]
    if lost:
        why = f"it sets {' '.join(lost)}, but trials take only search.space and the agent from it"
        fix = "Set these values on the command line, or put them into an option of the group experiment"
        raise InputError.unsupported(setting, why, fix)


def _objective(measure: str, base: TrialConfig) -> Objective:
    """Return the objective. Raises InputError if the runs do not have the measure. base: the configuration
    without searched values."""
    columns = [f"{INFO}{name}" for name in info_keys(base.env)]
    if measure.startswith(INFO) and measure not in columns:
        fix = f"'env.info_keys=[{measure.removeprefix(INFO)}]'"
        allowed = f"be a column of the runs ({', '.join(columns) or 'there is none'})"
        raise InputError.value("search.objective", measure, allowed, fix=fix, code="missing")
    return Objective(measure, base.meta.max_session)


def _limit_launcher(launcher: TrialLauncher, config: TrialConfig, settings: Settings) -> Need:
    """Set in the launcher how many trials run at the same time: `hydra.sweeper.n_jobs`, but at most
    `hydra.launcher.n_jobs`, and as many as there is room for. Return the slots of a trial.

    Raises InputError if the launcher needs a number and none is set, and if this machine has no room for a
    trial.
    """
    given = [number for number in (settings.n_jobs, launcher.limit) if number is not None]
    launcher.waits_for_room, launcher.limit = True, min(given, default=None)
    if not (launcher.traits.knows_room or given):
        why = "each trial of a search depends on those before it, and a cluster does not tell its room"
        raise InputError.missing("hydra.sweeper.n_jobs", why, "hydra.sweeper.n_jobs=8")
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
    now = {"hydra.sweeper.study_name": study_name, "search.objective": [objective]}
    for key, value in now.items():
        then = info.get("search", {}).get(key.rpartition(".")[2], value)
        if value != then:
            where, fix = f"the {then} of this search", "Leave out +resume and hydra.sweep.dir"
            raise InputError.contradiction(f"{key}={value}", where, fix=fix)
    check_experiment(experiment)


def _announce(queue: SearchQueue, limit: int | None, base: TrialConfig) -> None:
    """Print what the search will do. limit: number of trials at a time."""
    study, asked, budget = queue.study, queue.options, base.env.config.max_frame
    trials, total = study.trials(), study.total
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
    none = f", so none of these {total} can be pruned" * (first >= total or frame >= budget)
    say(f"pruning begins after {first} finished trials, and in each trial at frame {frame:,}{none}")
    searching, confirm = total * base.meta.max_session * budget, asked.confirm
    runs = (min(confirm.top, total) + confirm.default) * confirm.sessions if confirm else 0
    say(f"frames: at most {searching:,} in the search, and {runs * budget:,} in the confirmation")
    say(f"experiment folder: {queue.home}")
    say(f"to watch: optuna-dashboard {shlex.quote(redact(study.url))}")
