"""A grid from its overrides to its end: plan, run, record."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hydra.types import HydraContext
from omegaconf import DictConfig

from labrl.config.keys import quoted
from labrl.experiment.again import replaced, swept_keys
from labrl.experiment.experiment import Grid, held
from labrl.experiment.grid import plan_again, plan_grid
from labrl.experiment.job import Job
from labrl.experiment.machine import Machine
from labrl.experiment.scheduler import Engine
from labrl.experiment.task import Task
from labrl.storage.experiment_folder import ExperimentFolder
from labrl.storage.folder import place
from labrl.trial.fork import Fork
from labrl.trial.summary import say


def sweep_grid(
    params: Sequence[str],
    hydra_context: HydraContext,
    config: DictConfig,
    job: Job,
    engine: Callable[[], Engine],
    elsewhere: bool,
) -> None:
    """Run every combination of the values that `job` was given; the exit code is left in it.

    params: overrides that need not be typed; config: of the experiment, with Hydra's node; engine: makes what
    runs the trials, on other machines if `elsewhere`. Raises InputError for wrong input before any trial
    starts, as far as it can be seen without building one.
    """
    again = job.experiment
    path = place(config.hydra.sweep.dir, "hydra.sweep.dir")
    overrides = replaced(params, job.overrides)
    compose = hydra_context.config_loader.load_sweep_config
    job.part_of, job.force = "grid", again is not None and again.force
    machine = None if elsewhere else Machine()
    if again is None:
        plan = plan_grid(overrides, lambda trial: compose(config, trial), machine)
    else:
        before = ExperimentFolder.open(path)
        plan = plan_again(again, before, overrides, lambda trial: compose(config, trial), machine)
    facts = {
        "overrides": again.own if again and plan.selects else job.overrides,
        "hydra_overrides": hydra_overrides(config),
        "swept": sorted(swept_keys(overrides) | (again.swept if again else set())),
        "config_dir": job.config_dir,
        "fork": job.again.as_json() if isinstance(job.again, Fork) else None,
    }
    tasks = [
        Task(
            number=record.number,
            overrides=[*record.overrides, f"hydra.sweep.subdir={quoted(record.folder)}"],
            folder=path / record.folder,
            need=plan.left[record.number],
        )
        for record in plan.records
        if record.number in plan.left
    ]
    with held(path, "grid", again is not None, plan.records, command=job.typed, **facts) as folder:
        if again is not None:
            folder.resumed(job.typed, again.edits, **facts)
            folder.replace_trials(plan.records)
        grid = Grid(folder, tasks)
        if done := len(grid.outcomes):
            say(f"Resuming {path}: {done} trials have finished, {len(tasks)} remain")
        else:
            say(f"{len(tasks)} trials in {path}")
        job.exit_code = grid.run(engine())


def hydra_overrides(config: DictConfig) -> list[str]:
    """Return the overrides for Hydra that the experiment was composed with."""
    given = config.hydra.overrides.hydra
    return [str(override) for override in given if not str(override).startswith("hydra.mode=")]
