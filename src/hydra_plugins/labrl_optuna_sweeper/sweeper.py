"""The plugin that Hydra finds. It is imported at every start of labrl, so it holds nothing but the door."""

from __future__ import annotations

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class LabrlOptunaSweeper(Sweeper):
    """`hydra.sweeper` with the keys that hydra-optuna-sweeper has; what it does is `labrl.lab.search`."""

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
        self._sampler, self._params = sampler, params
        self._direction = OmegaConf.to_container(direction) if OmegaConf.is_config(direction) else direction
        self._storage, self._study_name = storage, study_name
        self._n_trials, self._n_jobs = n_trials, n_jobs
        self._max_failure_rate = max_failure_rate

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Remember what was composed."""
        self.config = config
        self.job: Any = task_function

    def sweep(self, arguments: list[str]) -> None:
        """Run the search; an exit code other than 0 is raised as SystemExit."""
        from labrl.config.compose import check_values, to_plain
        from labrl.lab.search.settings import Settings

        assert self.config is not None
        check_values(to_plain(self.config), self.config, complete=False)
        settings = Settings(
            sampler=OmegaConf.to_container(self._sampler, resolve=True),  # type: ignore[arg-type]
            direction=self._direction,
            storage=self._storage,
            study_name=self._study_name,
            n_trials=self._n_trials,
            n_jobs=self._n_jobs,
            max_failure_rate=self._max_failure_rate,
            params=OmegaConf.to_container(self._params) if self._params is not None else {},  # type: ignore[arg-type]
        )
        # Imported late: a wrong value must not wait for Optuna and torch.
        from labrl.lab.search.begin import search

        code = search(self.config, settings, arguments, self.job)
        if code:
            raise SystemExit(code)
