"""Sweepers that Hydra finds through the entry points in pyproject.toml; launchers are in `labrl.experiment`.

Hydra imports this module at every start, so the implementation of the sweepers is imported when needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from labrl.experiment.launcher import make_launcher


class TrialSweeper(Sweeper):
    """Base class of labrl's sweepers, which pass trials to a launcher when there is room for them."""

    hydra_context: Any
    config: Any
    launcher: Any

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Build the launcher. Raises InputError if it cannot work on this machine."""
        self.hydra_context, self.config = hydra_context, config
        self.job: Any = task_function
        self.launcher = make_launcher(hydra_context, task_function, config)


class GridSweeper(TrialSweeper):
    """`hydra/sweeper=grid`: run every combination of values, in an experiment that can be resumed."""

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        """params: for each key, the values to sweep over, in addition to those on the command line."""
        self.params = [f"{key}={value}" for key, value in (params or {}).items()]

    def sweep(self, arguments: list[str]) -> None:
        """Run every combination of `params` and of the job's overrides, which include `arguments`."""
        from labrl.experiment.sweep import sweep_grid

        sweep_grid(self.params, self.hydra_context, self.config, self.job, self.launcher)


class OptunaSweeper(TrialSweeper):
    """`hydra/sweeper=optuna`: run a search, with the keys of hydra-optuna-sweeper."""

    def __init__(self, **settings: Any) -> None:
        """settings: see `labrl.experiment.search.options.Settings`."""
        self._settings = {
            key: OmegaConf.to_container(value, resolve=key == "sampler")
            if OmegaConf.is_config(value)
            else value
            for key, value in settings.items()
        }

    def sweep(self, arguments: list[str]) -> None:
        """Run the search and set the job's exit code."""
        from labrl.config.validate import dataclass_of
        from labrl.experiment.search.checks import check_search
        from labrl.experiment.search.options import Settings

        check_search(self.config, self.job.overrides)
        settings = dataclass_of(Settings, self._settings, "hydra.sweeper")
        # Imported late, so that wrong input is reported without waiting for Optuna and torch.
        from labrl.experiment.search.begin import search

        self.job.exit_code = search(self.config, settings, self.job, self.launcher)
