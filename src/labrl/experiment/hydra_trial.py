"""One trial of an experiment in a process without Hydra's command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra._internal.hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from labrl.config.compose import explain
from labrl.config.extensions import kinds_replace
from labrl.experiment.machine import Machine, Need
from labrl.experiment.scheduler import Engine, Queue, run_queue
from labrl.experiment.task import Outcome, Task
from labrl.processes import before_leaving
from labrl.session.callbacks.search import CHANNEL
from labrl.session.interruption import Interruption

if TYPE_CHECKING:
    from labrl.experiment.job import Job

_existing: Path | None = None
"""The deepest folder above the running trial's that existed before; the others are Hydra's."""


def _run_job(*, config: DictConfig, job_dir_key: str, job_subdir_key: str | None, **rest: Any) -> JobReturn:
    """Run Hydra's `run_job`, which makes the folder of the trial before it calls the job."""
    global _existing
    parts = [OmegaConf.select(config, key) for key in (job_dir_key, job_subdir_key) if key is not None]
    folder = Path(os.path.abspath(os.path.join(*map(str, parts))))
    _existing = next(path for path in (folder, *folder.parents) if path.exists())
    return run_job(config=config, job_dir_key=job_dir_key, job_subdir_key=job_subdir_key, **rest)


@contextmanager
def folders_remembered() -> Iterator[None]:
    """Let Hydra's single runs use `_run_job`: there is no other hook before it makes the folder."""
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
    """Composes the overrides of a trial as Hydra does, and runs the job in their folder.

    It is a `labrl.experiment.scheduler.RunTask`: picklable by cloudpickle, with the state of Hydra.
    """

    hydra_context: HydraContext
    config: DictConfig
    """The configuration of the experiment."""
    job: Job
    state: Any
    """Hydra's singletons and OmegaConf's resolvers in the process that Hydra was started in."""
    ready: bool = False
    """Whether this process has taken over `state`."""

    @classmethod
    def of(cls, hydra_context: HydraContext, config: DictConfig, job: Any) -> HydraTrial:
        """Build one with the state of this process."""
        setup_globals()
        return cls(hydra_context, config, job, Singleton.get_state())

    def __call__(self, task: Task) -> Outcome:
        """Run the trial in this process. What is wrong with its overrides is in the outcome."""
        if not self.ready:
            setup_globals()
            Singleton.set_state(self.state)
            before_leaving.append(remove_unused_folder)
            self.ready = True
        os.environ.pop(CHANNEL, None)
        if task.channel:
            os.environ[CHANNEL] = task.channel
        try:
            with _printing_to(task.folder / task.log if task.log else None):
                try:
                    return self._run(task)
                except HydraException as error:
                    return Outcome.failed(str(explain(error, task.overrides, self.job.config_dir)))
        except OSError as error:
            return Outcome.failed(f"{task.folder} cannot be written ({error.strerror or error})")
        finally:
            os.environ.pop(CHANNEL, None)

    def _run(self, task: Task) -> Outcome:
        with kinds_replace():
            config = self.hydra_context.config_loader.load_sweep_config(self.config, list(task.overrides))
        with open_dict(config):
            config.hydra.job.id = f"{config.hydra.job.name}_{task.number}"
            config.hydra.job.num = task.number
        HydraConfig.instance().set_config(config)
        ended = _run_job(
            hydra_context=self.hydra_context,
            config=config,
            task_function=self.job,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        outcome: Outcome = ended.return_value
        return outcome


def launched(launcher: Launcher, tasks: Sequence[Task]) -> list[Outcome]:
    """Run trials with a launcher that is not labrl's."""
    returns = launcher.launch([task.overrides for task in tasks], initial_job_idx=tasks[0].number)
    return [_returned(one) for one in returns]


def _returned(returned: JobReturn) -> Outcome:
    try:
        outcome: Outcome = returned.return_value
    except Exception as error:  # whatever the trial, or its process, has raised
        return Outcome.failed(f"{type(error).__name__}: {error}")
    return outcome


class LaunchedTasks(Queue):
    """The trials of a sweeper that is not labrl's, for one of labrl's launchers."""

    def __init__(self, overrides: Sequence[Sequence[str]], first: int) -> None:
        """first: number of the first trial."""
        need = Need.of({}, len(overrides), Machine().cores)
        super().__init__(
            [
                Task(number=number, overrides=list(own), folder=Path(), need=need)
                for number, own in enumerate(overrides, start=first)
            ]
        )
        self.returns = {
            task.number: JobReturn(overrides=task.overrides, status=JobStatus.COMPLETED) for task in self.left
        }

    def ended(self, task: Task, outcome: Outcome) -> None:
        """Keep the outcome of a trial."""
        self.returns[task.number].return_value = outcome

    def run(self, engine: Engine) -> list[JobReturn]:
        """Run the trials. Raises SystemExit where a signal has ended them."""
        with Interruption() as interruption, engine:
            run_queue(self, engine, interruption)
        if interruption.requested:
            raise SystemExit(interruption.exit_code)
        return list(self.returns.values())


@contextmanager
def _printing_to(path: Path | None) -> Iterator[None]:
    """Append what this process and its children print in this context to a file, if there is one."""
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(1), os.dup(2)]
    with open(path, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(before, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
