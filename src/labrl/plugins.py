"""Sweepers that Hydra finds through the entry points in pyproject.toml; launchers are in `labrl.experiment`.

Hydra imports this module at every start, so the implementation of the sweepers is imported when needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from labrl.errors import InputError
from labrl.experiment.launcher import InThisProcess, TrialLauncher

_HYDRAS_BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


class TrialSweeper(Sweeper):
    """Base class of labrl's sweepers, which pass trials to a launcher when there is room for them."""

    hydra_context: Any
    config: Any

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Build the launcher. Raises InputError if it cannot work on this machine."""
        self.hydra_context, self.config = hydra_context, config
        self.job: Any = task_function
        known: Any = {"hydra_context": hydra_context, "task_function": task_function, "config": config}
        if config.hydra.launcher._target_ == _HYDRAS_BASIC:
            launcher: Any = InThisProcess()
            launcher.setup(**known)
        else:
            launcher = Plugins.instance().instantiate_launcher(**known)
        if not isinstance(launcher, TrialLauncher):
            chosen = config.hydra.runtime.choices["hydra/launcher"]
            allowed = "be local, submitit_local, submitit_slurm, ray or basic"
            raise InputError.value("hydra/launcher", chosen, allowed, code="unknown-option")
        self.launcher: TrialLauncher = launcher


class GridSweeper(TrialSweeper):
    """`hydra/sweeper=grid`: run every combination of values, in an experiment that can be resumed."""

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        """params: values to sweep over by key, in addition to those of the command line."""
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
        """Run the search, and set the exit code of the job."""
        from labrl.config.compose import resolve, to_plain
        from labrl.config.validate import dataclass_of
        from labrl.experiment.search.checks import check_ready_keys
        from labrl.experiment.search.options import Settings

        try:
            plain = to_plain(self.config)
            resolve(self.config, plain)
            check_ready_keys(plain, self.config.hydra.runtime.choices, arguments)
        except InputError as error:
            # The search space may add a missing key, as in ~agent.lr '+agent.lr=interval(1e-4, 1e-3)'.
            if wrong := [mistake for mistake in error.mistakes if mistake.code != "missing"]:
                raise InputError.of(wrong) from None
        settings = dataclass_of(Settings, self._settings, "hydra.sweeper")
        # Imported late, so that wrong input is reported without waiting for Optuna and torch.
        from labrl.experiment.search.begin import search

        self.job.exit_code = search(self.config, settings, arguments, self.job, self.launcher)
