"""One trial of an experiment in a process that Hydra was not started in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra._internal.hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from labrl.config.kinds import kinds_replace
from labrl.experiment.outcome import Outcome
from labrl.processes import before_leaving

_existing: Path | None = None
"""The last folder on the way to that of the running trial which was there before; the others are Hydra's."""


def _run_job(*, config: DictConfig, job_dir_key: str, job_subdir_key: str | None, **rest: Any) -> JobReturn:
    """Hydra's `run_job`, which makes the folder of the trial before it calls the job."""
    global _existing
    parts = [OmegaConf.select(config, key) for key in (job_dir_key, job_subdir_key) if key is not None]
    folder = Path(os.path.abspath(os.path.join(*map(str, parts))))
    _existing = next(path for path in (folder, *folder.parents) if path.exists())
    return run_job(config=config, job_dir_key=job_dir_key, job_subdir_key=job_subdir_key, **rest)


@contextmanager
def folders_remembered() -> Iterator[None]:
    """Let Hydra's single runs go by `_run_job`. Hydra calls nobody else before it makes the folder."""
    hydra._internal.hydra.run_job = _run_job  # type: ignore[assignment]
    try:
        yield
    finally:
        hydra._internal.hydra.run_job = run_job


def remove_unused_folder() -> None:
    """Delete the folders that Hydra has made for a trial in which the trial has written nothing."""
    with suppress(OSError, OmegaConfBaseException):
        folder = Path(HydraConfig.get().runtime.output_dir if HydraConfig.initialized() else os.getcwd())
        # Hydra's own launchers don't go by `_run_job`, and make their trials' folders in one that is there.
        existing = _existing if _existing in (folder, *folder.parents) else folder.parent
        for path in (folder, *folder.parents):
            if path == existing:
                break
            path.rmdir()


@dataclass
class HydraTrial:
    """Composes the words of a trial as Hydra does, and runs the job in the folder that they name.

    This is `labrl.experiment.workers.RunTrial`: picklable by cloudpickle, with all that Hydra knows.
    """

    hydra_context: HydraContext
    config: DictConfig
    """Of the experiment."""
    job: Callable[[DictConfig], Outcome]
    state: Any
    """Of Hydra's singletons and OmegaConf's resolvers in the process that Hydra was started in."""
    ready: bool = False
    """Whether this process has taken over `state`."""

    @classmethod
    def of(cls, hydra_context: HydraContext, config: DictConfig, job: Any) -> HydraTrial:
        """With the state of this process."""
        return cls(hydra_context, config, job, Singleton.get_state())

    def __call__(self, number: int, words: list[str]) -> Outcome:
        """Run it here. number: of the trial; words: all that compose it, those for Hydra included."""
        if not self.ready:
            setup_globals()
            Singleton.set_state(self.state)
            before_leaving.append(remove_unused_folder)
            self.ready = True
        with kinds_replace():
            config = self.hydra_context.config_loader.load_sweep_config(self.config, list(words))
        with open_dict(config):
            config.hydra.job.id = f"{config.hydra.job.name}_{number}"
            config.hydra.job.num = number
        HydraConfig.instance().set_config(config)
        ended = _run_job(
            hydra_context=self.hydra_context,
            config=config,
            task_function=self.job,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        return ended.return_value
