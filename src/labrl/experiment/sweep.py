"""A grid from its words to its end: plan, run, record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig

from labrl.errors import FAILED, INTERRUPTED
from labrl.experiment.experiment import Experiment
from labrl.experiment.experiment_again import replaced, swept_keys
from labrl.experiment.grid import plan_again, plan_grid
from labrl.experiment.job import Job
from labrl.experiment.outcome import Outcome
from labrl.experiment.workers import Order
from labrl.storage.experiment_folder import ExperimentFolder
from labrl.storage.marker import place
from labrl.trial.shares import Machine
from labrl.trial.summary import say


def sweep_grid(
    params: Sequence[str], hydra_context: HydraContext, config: DictConfig, launcher: Launcher, job: Job
) -> None:
    """Run every combination of the values that `job` was given; the exit code is left in it.

    params: words that need not be typed; config: of the experiment, with Hydra's node. Raises InputError for
    wrong input before any trial starts, as far as it can be seen without building one.
    """
    again = job.experiment
    path = place(config.hydra.sweep.dir, "hydra.sweep.dir")
    words = replaced(params, job.words)
    compose = hydra_context.config_loader.load_sweep_config
    own: Any = launcher if hasattr(launcher, "launch_orders") else None  # one of labrl.plugins
    machine = None if own is not None and own.elsewhere else Machine()
    job.in_experiment, job.force = True, again is not None and again.force
    if again is None:
        plan = plan_grid(words, lambda trial: compose(config, trial), machine)
    else:
        before = ExperimentFolder.open(path)
        plan = plan_again(again, before, words, lambda trial: compose(config, trial), machine)
    job.raises_interruption = isinstance(launcher, BasicLauncher)
    facts = {
        "overrides": again.own if again and plan.selects else job.words,
        "hydra_overrides": hydra_words(config),
        "swept": sorted(swept_keys(words) | (again.swept if again else set())),
        "config_dir": job.config_dir,
    }
    with Experiment.at_work(path, "grid", plan.records, job.typed, again, **facts) as experiment:
        left = {order.number for order in plan.orders}
        for record in plan.records:
            if record.number not in left and record.status == "finished":
                experiment.skipped(record.number)
        _announce(plan.orders, experiment)
        interrupted = _run(launcher, own, plan.orders, experiment) if plan.orders else None
        job.exit_code = experiment.close(interrupted)


def hydra_words(config: DictConfig) -> list[str]:
    """The words for Hydra that the experiment was composed with."""
    given = config.hydra.overrides.hydra
    return [str(word) for word in given if not str(word).startswith("hydra.mode=")]


def _announce(orders: Sequence[Order], experiment: Experiment) -> None:
    done = len(experiment.outcomes)
    if done:
        say(f"Resuming {experiment.folder.path}: {done} trials have finished, {len(orders)} are left")
    else:
        say(f"{len(orders)} trials in {experiment.folder.path}")


def _run(launcher: Launcher, own: Any, orders: Sequence[Order], experiment: Experiment) -> int | None:
    """Let `launcher` run the trials. Returns the exit code where a signal ended it, else None.

    own: the launcher where it is one of labrl's, else None.
    """
    if own is not None:
        with experiment.watched(ends=False):
            stopped: int | None = own.launch_orders(orders, experiment.started, experiment.ended)
        return stopped
    try:
        with experiment.watched(ends=True):
            returns = launcher.launch([order.words for order in orders], initial_job_idx=orders[0].number)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:  # a trial in this process was interrupted
        return end.code if isinstance(end.code, int) else FAILED
    for order, returned in zip(orders, returns, strict=True):
        try:
            outcome = returned.return_value
        except Exception as error:
            outcome = Outcome(status="failed", exit_code=FAILED, error=f"{type(error).__name__}: {error}")
        experiment.ended(order.number, outcome)
    return None
