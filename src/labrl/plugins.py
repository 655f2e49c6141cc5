"""Sweepers and launchers that Hydra finds through the entry points in pyproject.toml.

Hydra imports this module at every start. The implementation is in `labrl.experiment`, which is imported when
needed.
"""

from __future__ import annotations

import importlib.util
import shutil
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    from labrl.experiment.scheduler import Engine, RunTask


class TrialSweeper(Sweeper):
    """Base class of labrl's sweepers, which pass trials to an engine when there is room for them."""

    hydra_context: Any
    config: Any

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Build the launcher. Raises InputError if it cannot work on this machine."""
        self.hydra_context, self.config = hydra_context, config
        self.job: Any = task_function
        self.launcher: Any = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def engine(self, search: bool, limit: int | None = None, cores: int | None = None) -> Engine:
        """Make the engine that runs the trials.

        search: whether trials depend on earlier results, so that none should wait in a queue; limit: largest
        number of trials at the same time; cores: number of cores of this machine to use, None for all.
        """
        from labrl.experiment.hydra_trial import HydraTrial, launched
        from labrl.experiment.scheduler import Calls

        run = HydraTrial.of(self.hydra_context, self.config, self.job)
        if isinstance(self.launcher, TrialLauncher):
            return self.launcher.engine(run, search, limit, cores)
        if isinstance(self.launcher, BasicLauncher):
            return Calls(lambda tasks: [run(task) for task in tasks], limit=1)
        return Calls(lambda tasks: launched(self.launcher, tasks), limit=None)

    @property
    def elsewhere(self) -> bool:
        """Whether trials may run on other machines, whose cores and GPUs are unknown here."""
        return isinstance(self.launcher, TrialLauncher) and self.launcher.elsewhere


class GridSweeper(TrialSweeper):
    """`hydra/sweeper=grid`: run every combination of values, in an experiment that can be resumed."""

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        """params: values to sweep over by key, in addition to those of the command line."""
        self.params = {str(key): str(value) for key, value in (params or {}).items()}

    def sweep(self, arguments: list[str]) -> None:
        """Run every combination of `params` and of the job's overrides, which include `arguments`."""
        from labrl.experiment.sweep import sweep_grid

        params = [f"{key}={value}" for key, value in self.params.items()]
        sweep_grid(
            params, self.hydra_context, self.config, self.job, partial(self.engine, False), self.elsewhere
        )


class OptunaSweeper(TrialSweeper):
    """`hydra/sweeper=optuna`: run a search, with the keys of hydra-optuna-sweeper."""

    def __init__(self, **settings: Any) -> None:
        """settings: see `labrl.experiment.search.settings.Settings`."""
        self._settings = {
            key: OmegaConf.to_container(value, resolve=key == "sampler")
            if OmegaConf.is_config(value)
            else value
            for key, value in settings.items()
        }

    def sweep(self, arguments: list[str]) -> None:
        """Run the search, and set the exit code of the job."""
        from labrl.config.compose import check_values, to_plain
        from labrl.errors import InputError
        from labrl.experiment.search.settings import Settings, check_ready_keys

        try:
            plain = to_plain(self.config)
            check_values(self.config)
            check_ready_keys(plain, self.config.hydra.runtime.choices, arguments)
        except InputError as error:
            # The search space may add a missing key, as in ~agent.lr '+agent.lr=interval(1e-4, 1e-3)'.
            if wrong := [mistake for mistake in error.mistakes if mistake.code != "missing"]:
                raise InputError.of(wrong) from None
        settings = Settings.of(self._settings)
        # Imported late, so that wrong input is reported without waiting for Optuna and torch.
        from labrl.experiment.search.begin import search

        self.job.exit_code = search(
            self.config, settings, arguments, self.job, partial(self.engine, True), self.elsewhere
        )


class TrialLauncher(Launcher):
    """Base class of labrl's launchers, each of which makes an engine."""

    elsewhere = False
    """Whether trials run on other machines, whose cores and GPUs are unknown here."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Store Hydra's objects. Raises InputError if the launcher cannot work on this machine."""
        self.hydra_context, self.config, self.task_function = hydra_context, config, task_function
        self.check()

    def check(self) -> None:
        """Raise InputError if the launcher cannot work on this machine."""

    @abstractmethod
    def engine(self, run: RunTask, search: bool, limit: int | None, cores: int | None) -> Engine:
        """Make the engine that runs the trials; see `TrialSweeper.engine`."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run one trial for each list of overrides, for Hydra's own sweepers."""
        from labrl.experiment.hydra_trial import HydraTrial, LaunchedTasks

        run = HydraTrial.of(self.hydra_context, self.config, self.task_function)
        return LaunchedTasks(job_overrides, initial_job_idx).run(self.engine(run, False, None, None))


class WorkersLauncher(TrialLauncher):
    """`hydra/launcher=local`: run as many trials at once as this machine can, each in its own process."""

    def __init__(self, n_jobs: int = -1) -> None:
        """n_jobs: largest number of trials at once, >= 1; -1 for as many as the machine can run."""
        self.n_jobs = n_jobs

    def check(self) -> None:
        """Raise InputError if the number of trials at once is out of range."""
        from labrl.errors import InputError

        whole = isinstance(self.n_jobs, int) and not isinstance(self.n_jobs, bool)
        if not whole or self.n_jobs == 0 or self.n_jobs < -1:
            raise InputError(
                "hydra.launcher.n_jobs must be at least 1, or -1 for as many as the machine can run, "
                f"got {self.n_jobs}",
                code="range" if whole else "type",
                key="hydra.launcher.n_jobs",
            )

    def engine(self, run: RunTask, search: bool, limit: int | None, cores: int | None) -> Engine:
        """Make an engine of processes on this machine; see `labrl.experiment.local`."""
        from labrl.experiment.local import LocalProcesses
        from labrl.experiment.machine import Machine

        own = None if self.n_jobs == -1 else self.n_jobs
        return LocalProcesses(run, Machine(cores), limit or own)


class SubmititLocal(TrialLauncher):
    """`hydra/launcher=submitit_local`: run each trial as a submitit job on this machine, all at once."""

    cluster: Literal["local", "slurm"] = "local"

    def __init__(self, **params: Any) -> None:
        self.params = {
            key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            for key, value in params.items()
        }

    def check(self) -> None:
        """Raise InputError if submitit is not installed."""
        _require("submitit", f"submitit_{self.cluster}")

    def engine(self, run: RunTask, search: bool, limit: int | None, cores: int | None) -> Engine:
        """Make an engine of submitit jobs; see `labrl.experiment.clusters`."""
        from labrl.experiment.clusters import SubmititJobs

        return SubmititJobs(run, self.cluster, self.params, limit)


class SubmititSlurm(SubmititLocal):
    """`hydra/launcher=submitit_slurm`: run each trial as a SLURM job, which is requeued when preempted."""

    cluster = "slurm"
    elsewhere = True

    def check(self) -> None:
        """Raise InputError if submitit or SLURM is missing."""
        from labrl.errors import InputError

        super().check()
        if shutil.which("srun") is None:
            raise InputError(
                "hydra/launcher=submitit_slurm needs SLURM, but this machine has no command `srun`. Run this "
                "on a login node of the cluster, or set hydra/launcher=local to use this machine",
                code="not-installed",
                key="hydra/launcher",
            )


class RayTrials(TrialLauncher):
    """`hydra/launcher=ray`: run each trial as a task of a Ray cluster."""

    def __init__(self, ray: DictConfig) -> None:
        settings: Any = OmegaConf.to_container(ray, resolve=True)
        self.settings = settings
        # An existing cluster may have other machines.
        self.elsewhere = settings["init"].get("address") not in (None, "local")

    def check(self) -> None:
        """Raise InputError if Ray is not installed."""
        _require("ray", "ray")

    def engine(self, run: RunTask, search: bool, limit: int | None, cores: int | None) -> Engine:
        """Make an engine of Ray tasks; see `labrl.experiment.clusters`."""
        from labrl.experiment.clusters import RayTasks

        return RayTasks(run, self.settings, limit, queued=not search)


def _require(package: str, launcher: str) -> None:
    """Raise InputError if the extra `package`, which `launcher` needs, is not installed."""
    from labrl.errors import InputError

    if importlib.util.find_spec(package) is None:
        raise InputError(
            f"hydra/launcher={launcher} needs the package {package}, which is not installed. "
            f"Run pip install 'labrl[{package}]'",
            code="not-installed",
            key="hydra/launcher",
        )
