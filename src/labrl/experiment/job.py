"""Run a trial as a job of Hydra, alone or in an experiment, in any process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import hydra._internal.hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.errors import HydraException
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from labrl.config.compose import explain, prepare
from labrl.config.extensions import kinds_replace
from labrl.config.presets import choices_of
from labrl.errors import DONE, LabrlError
from labrl.experiment.again import ExperimentAgain
from labrl.experiment.scheduler import Outcome, Task, recorded
from labrl.processes import before_leaving
from labrl.run.find import is_run
from labrl.run.folder import place
from labrl.run.provenance import Command
from labrl.run.run import Run
from labrl.run.session_log import print_without_modules
from labrl.run.signature import present_trust, trusting
from labrl.secrets import redact
from labrl.session.callbacks.search import CHANNEL
from labrl.steady_output import print_traceback, refused
from labrl.trial.composed import Again, Composed
from labrl.trial.resume import FinishedError, Resume

if TYPE_CHECKING:
    from labrl.run.provenance import Repositories, Typed

PATIENCE = 60.0
"""Seconds that processes of a killed experiment have to save and end before their trial is resumed."""


class Job:
    """The function that Hydra calls with the configuration of each trial, also in other processes.

    It raises no exceptions, so that a failed trial does not end others.
    """

    def __init__(
        self,
        config_dir: str | None,
        full_error: bool,
        typed: Typed,
        overrides: Sequence[str],
        again: Again | ExperimentAgain | None = None,
    ) -> None:
        """config_dir: folder with the user's own groups; full_error: whether to print tracebacks; typed: the
        command; overrides: overrides that compose trials; again: the earlier run or experiment, if any."""
        self.typed, self.overrides = typed, list(overrides)
        self.config_dir = os.path.abspath(config_dir) if config_dir else None
        self.full_error = full_error
        self.again = again.fork if isinstance(again, ExperimentAgain) else again
        self.experiment = again if isinstance(again, ExperimentAgain) else None
        """The experiment that is resumed, if any."""
        self.trust = present_trust()
        """What the user says about recorded configurations, also in other processes."""
        self.force = False
        """Whether new values may contradict the past of a resumed trial."""
        self.part_of: Literal["grid", "search"] | None = None
        """Kind of experiment that the trials belong to, if any. A run in the folder of a trial is then an
        earlier attempt."""
        self.repositories: Repositories | None = None
        """The state of the code, described once for all trials of an experiment."""
        self.exit_code = DONE
        """The largest exit code of the trials in this process, or that of the experiment."""

    def __call__(self, cfg: DictConfig) -> Outcome:
        """Run one trial in the folder that Hydra has made for it."""
        with trusting(self.trust):
            outcome = self._outcome(cfg)
        self.exit_code = max(self.exit_code, outcome.exit_code)
        return outcome

    def _outcome(self, cfg: DictConfig) -> Outcome:
        job = HydraConfig.get()
        folder = job.runtime.output_dir
        print_without_modules()
        try:
            prepare(self.config_dir)
            return self._run(cfg, job, folder)
        except LabrlError as error:
            if self._speaks(error):
                refused(error, full_error=False)
            return Outcome.failed(str(error), error.exit_code)
        except Exception as error:
            told = redact(f"{type(error).__name__}: {error}")
            if self._speaks(error):
                print(f"labrl: the trial in {folder} failed: {told}", file=sys.stderr)
                print("labrl: for a traceback, put HYDRA_FULL_ERROR=1 before the command", file=sys.stderr)
            return Outcome.failed(told)
        finally:
            remove_unused_folder()

    def _speaks(self, error: Exception) -> bool:
        """Return whether to print an error here. In a grid, the experiment prints it."""
        if self.full_error or (self.part_of == "search" and not isinstance(error, LabrlError)):
            print_traceback(error)
        return self.part_of != "grid"

    def _run(self, cfg: DictConfig, job: Any, folder: str) -> Outcome:
        place(job.run.dir, "hydra.run.dir")
        # As typed, because interpolations in overrides are resolved in the configuration.
        task: Any = OmegaConf.to_container(job.overrides.task, resolve=False)
        broken_off = self._broken_off(folder, task) if self.part_of else None
        if isinstance(broken_off, Outcome):
            return broken_off
        if broken_off is not None and cfg.seed is None:
            cfg.seed = broken_off.past.config["seed"]
        command = Command.of(task, choices_of(job), self.config_dir, self.typed, self.repositories)
        composed = Composed.of(cfg, folder, command)
        try:
            result = composed.run(broken_off or self.again)
        except FinishedError:
            if broken_off is None:
                raise
            # A cluster has restarted it after its end.
            return recorded(Run.open(folder))
        if not self.part_of:
            # Imported late: a misspelled key must not wait for it.
            from labrl.trial.summary import print_summary

            print_summary(result)
        return recorded(Run.open(result.folder), result.exit_code)

    def _broken_off(self, folder: str, overrides: list[str]) -> Resume | Outcome | None:
        """Return the resume of an earlier attempt in the folder of the trial, or None without one.

        overrides: the present overrides of the trial. Returns the outcome of a search's trial if it has
        ended, even if it was killed before its status was recorded.
        """
        if not is_run(Path(folder)):
            return None
        run = Run.open(folder)
        _wait_for(run)
        if run.unrecorded:
            with run.lock():
                run.discard_unrecorded()
            return None
        with trusting(replace(self.trust, everything=True)):  # This command has written or checked it.
            again = Resume.on_trial(run, self.force, overrides)
        sessions = run.sessions
        all_ended = len(sessions) == again.past.config["meta"]["max_session"] and all(
            one.ended_well for one in sessions
        )
        if self.part_of == "search" and (run.recorded_status in ("finished", "pruned") or all_ended):
            return recorded(run)
        return again


def _wait_for(run: Run) -> None:
    """Wait until the last process of an earlier attempt has saved the trial.

    Raises BusyFolderError if it has not after PATIENCE.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with run.lock():
                return
        except LabrlError:
            if time.monotonic() > until:
                raise
        time.sleep(0.2)


_existing: Path | None = None
"""The deepest folder on the path of the running trial's folder that Hydra has not created."""


def _run_job(*, config: DictConfig, job_dir_key: str, job_subdir_key: str | None, **rest: Any) -> JobReturn:
    """Run Hydra's `run_job`, which creates the folder of the trial before it calls the job."""
    global _existing
    keys = [key for key in (job_dir_key, job_subdir_key) if key is not None]
    parts = [str(OmegaConf.select(config, key)) for key in keys]
    parts = [os.path.normpath(part) if part else part for part in parts]
    with read_write(config.hydra):
        for key, part in zip(keys, parts, strict=True):
            OmegaConf.update(config, key, part)  # Of a/../b, Hydra would make the folder a as well.
    folder = Path(os.path.abspath(os.path.join(*parts)))
    _existing = next(path for path in (folder, *folder.parents) if path.exists())
    return run_job(config=config, job_dir_key=job_dir_key, job_subdir_key=job_subdir_key, **rest)


@contextmanager
def folders_remembered() -> Iterator[None]:
    """Let Hydra's single runs use `_run_job`, because Hydra has no hook before it creates the folder."""
    hydra._internal.hydra.run_job = _run_job  # type: ignore[assignment]
    try:
        yield
    finally:
        hydra._internal.hydra.run_job = run_job


def remove_unused_folder() -> None:
    """Delete the folders that Hydra has created for a trial, if they are empty."""
    with suppress(OSError, OmegaConfBaseException):
        folder = Path(HydraConfig.get().runtime.output_dir if HydraConfig.initialized() else os.getcwd())
        # Other launchers do not use `_run_job`. They create the folders of trials in an existing one.
        existing = _existing if _existing in (folder, *folder.parents) else folder.parent
        for path in (folder, *folder.parents):
            if path == existing:
                break
            path.rmdir()


@dataclass
class HydraTrial:
    """A function that composes a trial as Hydra does, and runs the job in its folder.

    cloudpickle can pickle it, with the state of Hydra.
    """

    hydra_context: HydraContext
    config: DictConfig
    """The configuration of the experiment."""
    job: Job
    state: Any = field(default_factory=Singleton.get_state)
    """Hydra's singletons and OmegaConf's resolvers of the main process."""
    ready: bool = False
    """Whether this process has set `state`."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for another process, such as the next attempt of a preempted job."""
        return {**vars(self), "ready": False}

    def __call__(self, task: Task) -> Outcome:
        """Run the trial in this process. The outcome contains errors in its overrides."""
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


@contextmanager
def _printing_to(path: Path | None) -> Iterator[None]:
    """Context manager: append the output of this process and its children to a file; None: do nothing."""
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
