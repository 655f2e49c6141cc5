"""hydra/launcher=joblib: trials side by side on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class WorkersLauncher(Launcher):
    """As many trials at once as the machine's cores and GPUs carry, each in a process that may die."""

    def __init__(self, n_jobs: int = -1) -> None:
        """n_jobs: most trials at once, >= 1; -1: as many as the machine carries."""
        super().__init__()
        self.n_jobs = n_jobs
        self.hydra_context: HydraContext | None = None
        self.config: DictConfig | None = None
        self.task_function: TaskFunction | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take over what Hydra knows."""
        self.hydra_context, self.config, self.task_function = hydra_context, config, task_function

    def check(self) -> None:
        """Raises ConfigError for a number of trials at once that is none."""
        from labrl.config.errors import ConfigError

        if self.n_jobs == 0 or self.n_jobs < -1:
            raise ConfigError(
                "hydra.launcher.n_jobs must be at least 1, or -1 for as many as the machine carries, "
                f"got {self.n_jobs}"
            )

    def launch_orders(
        self, orders: Sequence[Any], on_start: Callable[[int], None], on_end: Callable[[int, Any], None]
    ) -> int | None:
        """Run the `labrl.lab.workers.Order`s; see `labrl.lab.workers.Workers`."""
        from labrl.lab.hydra_trial import HydraTrial
        from labrl.lab.shares import Machine
        from labrl.lab.workers import Workers

        assert self.hydra_context is not None
        assert self.config is not None
        assert self.task_function is not None
        setup_globals()
        run_trial = HydraTrial.of(self.hydra_context, self.config, self.task_function)
        limit = None if self.n_jobs == -1 else self.n_jobs
        return Workers(run_trial, Machine(), limit).run_all(orders, on_start, on_end)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Hydra's own entry, for sweepers that know no orders."""
        from labrl.lab.shares import Machine, Need
        from labrl.lab.workers import Order

        cores = Machine().cores
        need = Need.of({}, len(job_overrides), cores)
        orders = [
            Order(initial_job_idx + index, list(words), need) for index, words in enumerate(job_overrides)
        ]
        returns = {order.number: JobReturn(overrides=order.words) for order in orders}

        def ended(number: int, outcome: Any) -> None:
            returns[number].return_value = outcome
            returns[number].status = JobStatus.COMPLETED

        stopped = self.launch_orders(orders, lambda number: None, ended)
        if stopped is not None:
            raise SystemExit(stopped)
        return [returns[order.number] for order in orders]
