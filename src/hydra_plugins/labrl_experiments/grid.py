"""hydra/sweeper=grid: every combination of the values, in an experiment that can be gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class GridSweeper(Sweeper):
    """Plans the trials, lets the launcher run them, and records how they stand."""

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        """params: values to sweep over, by key, that need not be typed each time."""
        super().__init__()
        self.params = {str(key): str(value) for key, value in (params or {}).items()}
        self.hydra_context: HydraContext | None = None
        self.config: DictConfig | None = None
        self.launcher: Launcher | None = None
        self.job: Any = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take over what Hydra knows, and build the launcher."""
        self.hydra_context, self.config, self.job = hydra_context, config, task_function
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Run every combination of `params` and of the words of the job, which has `arguments` and those that
        concern trials alone."""
        from labrl.lab.sweep import sweep_grid

        assert self.hydra_context is not None
        assert self.config is not None
        assert self.launcher is not None
        params = [f"{key}={value}" for key, value in self.params.items()]
        sweep_grid(params, self.hydra_context, self.config, self.launcher, self.job)
