"""The sweepers and launchers that Hydra finds through the entry points in pyproject.toml.

Hydra imports this module at every start, so the work itself is in `labrl.experiment`, imported when it is
needed.
"""

from __future__ import annotations

import importlib.util
import shutil
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    from labrl.experiment.outcome import Outcome
    from labrl.experiment.workers import Order

    OnStart = Callable[[int], None]
    OnEnd = Callable[[int, Outcome], None]


class GridSweeper(Sweeper):
    """`hydra/sweeper=grid`: every combination of the values, in an experiment that can be resumed."""

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        """Keep the settings.

        params: values to sweep over, by key, that need not be typed each time.
        """
        self.params = {str(key): str(value) for key, value in (params or {}).items()}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Build the launcher."""
        self.hydra_context, self.config, self.job = hydra_context, config, task_function
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Run every combination of `params` and of the job's overrides, which are `arguments` and more."""
        from labrl.experiment.sweep import sweep_grid

        assert self.hydra_context is not None
        assert self.config is not None
        assert self.launcher is not None
        job: Any = self.job
        sweep_grid(
            [f"{key}={value}" for key, value in self.params.items()],
            self.hydra_context,
            self.config,
            self.launcher,
            job,
        )


class OptunaSweeper(Sweeper):
    """`hydra/sweeper=optuna`: a search, with the keys of hydra-optuna-sweeper."""

    def __init__(
        self,
        sampler: DictConfig,
        direction: Any,
        storage: str | None,
        study_name: str | None,
        n_trials: int,
        n_jobs: int | None,
        max_failure_rate: float,
        params: DictConfig | None,
    ) -> None:
        self._settings = {
            "sampler": OmegaConf.to_container(sampler, resolve=True),
            "direction": OmegaConf.to_container(direction) if OmegaConf.is_config(direction) else direction,
            "storage": storage,
            "study_name": study_name,
            "n_trials": n_trials,
            "n_jobs": n_jobs,
            "max_failure_rate": max_failure_rate,
            "params": {} if params is None else OmegaConf.to_container(params),
        }

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep the composed configuration."""
        self.config = config
        self.job: Any = task_function

    def sweep(self, arguments: list[str]) -> None:
        """Run the search. Raises SystemExit with an exit code other than 0."""
        from labrl.config.compose import check_values, to_plain
        from labrl.errors import InputError
        from labrl.experiment.search.settings import Settings, check_ready_keys

        assert self.config is not None
        try:
            plain = to_plain(self.config)
            check_values(plain, self.config)
            check_ready_keys(plain, self.config.hydra.runtime.choices, arguments)
        except InputError as error:
            # The space may add what is missing, as in ~agent.lr '+agent.lr=interval(1e-4, 1e-3)'.
            if wrong := [mistake for mistake in error.mistakes if mistake.code != "missing"]:
                raise InputError.of(wrong) from None
        values: Any = self._settings
        settings = Settings(**values)
        # Imported late: a wrong value must not wait for Optuna and torch.
        from labrl.experiment.search.begin import search

        code = search(self.config, settings, arguments, self.job)
        if code:
            raise SystemExit(code)


class OrdersLauncher(Launcher):
    """Base of labrl's launchers, which run `Order`s of trials and report each end as it comes."""

    elsewhere = False
    """Whether trials run on other machines, about whose cores and GPUs this one knows nothing."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra knows. Raises InputError where the launcher cannot work here."""
        self.hydra_context, self.config, self.task_function = hydra_context, config, task_function
        self.check()

    def check(self) -> None:
        """Raise InputError where the launcher cannot work here."""

    @abstractmethod
    def launch_orders(self, orders: Sequence[Order], on_start: OnStart, on_end: OnEnd) -> int | None:
        """Run the trials and report each start and end by its number.

        Returns None, or the exit code where a signal ended them.
        """

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run one trial for each list of overrides: Hydra's interface, for its own sweepers."""
        from labrl.experiment.workers import Order
        from labrl.trial.shares import Machine, Need

        need = Need.of({}, len(job_overrides), Machine().cores)
        orders = [
            Order(initial_job_idx + index, list(words), need) for index, words in enumerate(job_overrides)
        ]
        returns = {order.number: JobReturn(overrides=order.words) for order in orders}

        def ended(number: int, outcome: Outcome) -> None:
            returns[number].return_value = outcome
            returns[number].status = JobStatus.COMPLETED

        stopped = self.launch_orders(orders, lambda number: None, ended)
        if stopped is not None:
            raise SystemExit(stopped)
        return [returns[order.number] for order in orders]


class WorkersLauncher(OrdersLauncher):
    """`hydra/launcher=joblib`: as many trials at once as this machine carries, each in its own process."""

    def __init__(self, n_jobs: int = -1) -> None:
        """Keep the settings.

        n_jobs: most trials at once, >= 1; -1: as many as the machine carries.
        """
        self.n_jobs = n_jobs

    def check(self) -> None:
        """Raise InputError where the number of trials at once is no such number."""
        from labrl.errors import InputError

        if self.n_jobs == 0 or self.n_jobs < -1:
            raise InputError(
                "hydra.launcher.n_jobs must be at least 1, or -1 for as many as the machine has room for, "
                f"got {self.n_jobs}",
                code="range",
                key="hydra.launcher.n_jobs",
            )

    def launch_orders(self, orders: Sequence[Order], on_start: OnStart, on_end: OnEnd) -> int | None:
        """Run the trials with `labrl.experiment.workers.Workers`."""
        from hydra.core.utils import setup_globals

        from labrl.experiment.hydra_trial import HydraTrial
        from labrl.experiment.workers import Workers
        from labrl.trial.shares import Machine

        setup_globals()
        run_trial = HydraTrial.of(self.hydra_context, self.config, self.task_function)
        limit = None if self.n_jobs == -1 else self.n_jobs
        return Workers(run_trial, Machine(), limit).run_all(orders, on_start, on_end)


class SubmititLocal(OrdersLauncher):
    """`hydra/launcher=submitit_local`: each trial a job on this machine, all at once."""

    cluster: Literal["local", "slurm"] = "local"

    def __init__(self, **params: Any) -> None:
        self.params = {
            key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            for key, value in params.items()
        }

    def check(self) -> None:
        """Raise InputError where submitit is not installed."""
        _require("submitit", f"submitit_{self.cluster}")

    def launch_orders(self, orders: Sequence[Order], on_start: OnStart, on_end: OnEnd) -> int | None:
        """Submit the trials and look after them; see `labrl.experiment.submitted`."""
        from labrl.experiment.submitted import run_jobs

        return run_jobs(self, self.cluster, orders, on_end)


class SubmititSlurm(SubmititLocal):
    """`hydra/launcher=submitit_slurm`: each trial a job of a SLURM array, requeued when it is preempted."""

    cluster = "slurm"
    elsewhere = True

    def check(self) -> None:
        """Raise InputError where submitit or SLURM is missing."""
        from labrl.errors import InputError

        super().check()
        if shutil.which("srun") is None:
            raise InputError(
                "hydra/launcher=submitit_slurm needs SLURM, and there is no command `srun` on this machine. "
                "Start the command on a login node of the cluster, or use this machine: "
                "hydra/launcher=joblib",
                code="not-installed",
                key="hydra/launcher",
            )


class RayTrials(OrdersLauncher):
    """`hydra/launcher=ray`: each trial a task of a Ray cluster."""

    def __init__(self, ray: DictConfig) -> None:
        self.ray_cfg = ray
        # A cluster that was there before may have other machines.
        self.elsewhere = ray.init.get("address") not in (None, "local")

    def check(self) -> None:
        """Raise InputError where Ray is not installed."""
        _require("ray", "ray")

    def launch_orders(self, orders: Sequence[Order], on_start: OnStart, on_end: OnEnd) -> int | None:
        """Hand the trials to Ray and look after them; see `labrl.experiment.on_ray`."""
        from labrl.experiment.on_ray import run_tasks

        return run_tasks(self, orders, on_end)


def _require(package: str, launcher: str) -> None:
    """Raise InputError where the extra `package`, which `launcher` needs, is not installed."""
    from labrl.errors import InputError

    if importlib.util.find_spec(package) is None:
        raise InputError(
            f"hydra/launcher={launcher} needs the package {package}, which is not installed. "
            f"Type pip install 'labrl[{package}]'",
            code="not-installed",
            key="hydra/launcher",
        )
