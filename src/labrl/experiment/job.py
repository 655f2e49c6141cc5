"""The function that Hydra calls with the configuration of a run, and the planning of trials."""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from labrl.config.compose import explain, prepare
from labrl.config.keys import is_hydras, without_alias
from labrl.config.presets import choices_of
from labrl.errors import DONE, TRACEBACK, LabrlError
from labrl.experiment.again import ExperimentAgain
from labrl.experiment.scheduler import Answer, Outcome, Planned, Task, outcome_of, recorded
from labrl.processes.output import INDENT, labeled_output, print_error, print_traceback, printing_to
from labrl.processes.script import refuse_main
from labrl.processes.secrets import redact
from labrl.run.find import is_run
from labrl.run.folder import place
from labrl.run.provenance import Command
from labrl.run.run import Run
from labrl.run.session_log import print_without_modules
from labrl.run.signature import present_trust, trusting
from labrl.session.callbacks.display import SHOWN_ABOVE
from labrl.session.callbacks.search import SEARCH
from labrl.trial.again import Again
from labrl.trial.composed import Composed
from labrl.trial.fork import Fork
from labrl.trial.resume import FinishedError, Resume
from labrl.trial.start import plan_new, run_again, run_new

if TYPE_CHECKING:
    from labrl.experiment.launcher import LauncherTraits
    from labrl.run.provenance import Repositories, Typed

T = TypeVar("T")


class Job:
    """The function that Hydra calls with the configuration of a new run, and what its trials have in common.

    It raises no exceptions, so that a failed trial does not end other trials.
    """

    def __init__(
        self,
        config_dir: str | None,
        full_error: bool,
        typed: Typed,
        overrides: Sequence[str],
        again: Fork | ExperimentAgain | None = None,
        back: Again | None = None,
    ) -> None:
        """config_dir: folder with the user's own groups; full_error: whether to print tracebacks; typed: the
        command; overrides: overrides that compose trials; again: the run that trials fork from, or the
        experiment that is resumed, if any; back: the earlier run that a single run resumes, repeats or forks,
        if any."""
        self.typed, self.overrides = typed, list(overrides)
        self.config_dir = os.path.abspath(config_dir) if config_dir else None
        self.full_error = full_error
        self._started, self._back = time.time(), back
        self.fork = again.fork if isinstance(again, ExperimentAgain) else again
        self.experiment = again if isinstance(again, ExperimentAgain) else None
        """The experiment that is resumed, if any."""
        self.trust = present_trust()
        """Which recorded configurations the user trusts."""
        self.force = False
        """Whether new values may contradict the past of a resumed trial."""
        self.part_of: Literal["grid", "search"] | None = None
        """Kind of experiment that the trials belong to, if any. A run in the folder of a trial is then an
        earlier attempt."""
        self.repositories: Repositories | None = None
        """The state of the code, which is described once for all trials of an experiment."""
        self.folder = Path()
        """The experiment folder, once it is known."""
        self.exit_code = DONE
        """The exit code of the run or of the experiment."""

    def __call__(self, cfg: DictConfig) -> Outcome:
        """Run a single run in its folder. Hydra has created the folder, unless the run is resumed."""

        def run(folder: str) -> Outcome:
            if self._back is None:
                result = run_new(self._composed(cfg, folder))
            else:
                result = run_again(self._back, folder, self.typed)
            # Imported late: a misspelled key must not wait for it.
            from labrl.trial.summary import print_summary

            print_summary(result)
            return recorded(Run.open(result.folder), result.exit_code)

        _remove_detours(HydraConfig.get().run.dir, self._started)
        outcome = self._attempt(run)
        self.exit_code = outcome.exit_code
        return outcome

    def plan(self, cfg: DictConfig, launcher: LauncherTraits, logged: bool) -> Run | Outcome:
        """Write the folder of one trial, which a launcher with these traits will start.

        logged: whether the output goes to the log of the trial. Returns the outcome of a trial that is
        refused or has already ended.
        """
        return self._attempt(lambda folder: self._plan(cfg, folder, launcher), logged)

    def _attempt(self, act: Callable[[str], T], logged: bool = False) -> T | Outcome:
        """Return what `act` returns for the folder of the trial, or the outcome of a trial that failed with
        its error."""
        folder = HydraConfig.get().runtime.output_dir
        self.folder = Path(HydraConfig.get().sweep.dir).absolute()
        print_without_modules()
        try:
            with trusting(self.trust):
                prepare(self.config_dir)
                place(HydraConfig.get().run.dir, "hydra.run.dir")
                return act(folder)
        except LabrlError as error:
            if self._speaks(error, logged):
                print_error(error)
            return Outcome.failed(str(error), error.exit_code)
        except Exception as error:
            told = redact(f"{type(error).__name__}: {error}")
            if self._speaks(error, logged):
                print(f"labrl: the trial in {folder} failed: {told}", file=sys.stderr)
                print(f"labrl: {TRACEBACK}", file=sys.stderr)
            return Outcome.failed(told)
        finally:
            remove_unused_folder()

    def _speaks(self, error: Exception, logged: bool) -> bool:
        """Return whether to print an error here. In a grid, the experiment prints it.

        logged: whether the output goes to a log, which also receives the traceback of a failure of the user's
        own code.
        """
        own = not isinstance(error, LabrlError) or error.__cause__ is not None
        if self.full_error or (logged and own):
            print_traceback(error, INDENT if logged else "")
        return self.part_of != "grid"

    def _plan(self, cfg: DictConfig, folder: str, launcher: LauncherTraits) -> Run | Outcome:
        overrides = _task_overrides()
        if is_run(Path(folder)):
            run = Run.open(folder)
            run.wait_until_free()
            if not run.unrecorded:
                return self._resume(run, overrides, launcher.elsewhere)
        if self.fork is not None:
            fork = self.fork.of_trial(overrides)
            return fork.plan(folder, self.typed, self.repositories, launcher.elsewhere)
        composed = self._composed(cfg, folder, launcher.elsewhere)
        refuse_main(composed.plain["env"].get("id"), "an experiment")
        return plan_new(composed)

    def _resume(self, run: Run, overrides: Sequence[str], elsewhere: bool) -> Run | Outcome:
        """Plan the rest of an earlier attempt of a trial. overrides: the trial's present overrides.

        Returns the outcome of an attempt that has ended, even if it was killed before its status was
        recorded.
        """
        with trusting(replace(self.trust, everything=True)):  # This command has written or checked the run.
            again = Resume.on_trial(run, self.force, overrides)
            sessions = run.sessions
            all_ended = len(sessions) == again.past.config["meta"]["max_session"] and all(
                one.ended_well for one in sessions
            )
            if self.part_of == "search" and (run.recorded_status in ("finished", "pruned") or all_ended):
                return recorded(run)
            try:
                return again.plan(str(run.path), self.typed, self.repositories, elsewhere)
            except FinishedError:
                return recorded(run)

    def _composed(self, cfg: DictConfig, folder: str, elsewhere: bool = False) -> Composed:
        choices = choices_of(HydraConfig.get())
        command = Command(_task_overrides(), choices, self.config_dir, self.typed, self.repositories)
        return Composed.of(cfg, folder, command, elsewhere)


def _task_overrides() -> list[str]:
    """Return the overrides of the trial as they were given, with unresolved interpolations."""
    task: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return [str(override) for override in task]


_existing: Path | None = None
"""The deepest folder on the path of the run's folder that Hydra has not created."""


def note_existing(folder: str) -> None:
    """Note which folders exist, before Hydra creates the folder of a run. folder: its path, perhaps with
    interpolations."""
    global _existing
    path = Path(os.path.abspath(folder.partition("${")[0]))
    _existing = next(one for one in (path, *path.parents) if one.exists())


def _remove_detours(folder: str, since: float) -> None:
    """Delete the folder `a` if the folder of a run is `a/../b`, for which Hydra creates both."""
    parts = Path(folder).parts
    for end in (at for at, part in enumerate(parts) if part == ".."):
        with suppress(OSError):
            detour = Path(os.path.normpath(os.path.join(*parts[:end])))
            if detour.stat().st_mtime > since - 0.1:
                detour.rmdir()


def _folder_of(config: DictConfig, keys: Sequence[str]) -> Path:
    """Return the folder of a trial, whose parts are the values of `keys`, and normalize the parts."""
    parts = [str(OmegaConf.select(config, key)) for key in keys]
    parts = [os.path.normpath(part) if part else part for part in parts]
    with read_write(config.hydra):
        for key, part in zip(keys, parts, strict=True):
            OmegaConf.update(config, key, part)  # Of a/../b, Hydra would make the folder a as well.
    return Path(os.path.abspath(os.path.join(*parts)))


def remove_unused_folder() -> None:
    """Delete the folders that Hydra has created for a trial, if they are empty."""
    with suppress(OSError, OmegaConfBaseException):
        folder = Path(HydraConfig.get().runtime.output_dir if HydraConfig.initialized() else os.getcwd())
        existing = _existing if _existing in (folder, *folder.parents) else folder.parent
        for path in (folder, *folder.parents):
            if path == existing:
                break
            path.rmdir()


def compose_trial(context: HydraContext, config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Compose the configuration of a trial of an experiment. Raises Hydra's errors.

    config: configuration of the experiment with the node `hydra`; overrides: overrides of the trial.
    """
    composed: DictConfig = context.config_loader.load_sweep_config(config, without_alias(overrides))
    return composed


def trial_folder(config: DictConfig, number: int) -> str:
    """Return the folder of a trial, relative to that of its experiment. Sets the number of the trial in
    `config`, which has the node `hydra`."""
    with open_dict(config.hydra.job), read_write(config.hydra):
        config.hydra.job.num, config.hydra.job.id = number, str(number)
    return str(OmegaConf.select(config, "hydra.sweep.subdir"))


@dataclass
class Planner:
    """Plans the trials of an experiment: composes each trial as Hydra does, and has the job write its
    folder."""

    hydra_context: HydraContext
    config: DictConfig
    """The configuration of the experiment."""
    job: Any
    """The `Job`."""
    launcher: LauncherTraits
    """What the launcher of the trials can do."""

    def plan(self, task: Task) -> Planned | Outcome:
        """Write the folder of the trial, which another process will train.

        Returns the outcome of a trial that has already ended or is refused, for instance for an error in its
        overrides.
        """
        try:
            log = task.folder / task.log if task.log else None
            with printing_to(log), labeled_output("" if log else f"[{task.number}] "):
                return self._plan(task)
        except HydraException as error:
            return Outcome.failed(str(explain(error, task.overrides, self.job.config_dir)))
        except OSError as error:
            return Outcome.failed(f"{task.folder} cannot be written ({error.strerror or error})")

    def conclude(self, planned: Planned, answer: Answer) -> Outcome:
        """Call Hydra's end-of-job callbacks, and return the outcome of a planned trial."""
        outcome = outcome_of(planned.folder, answer)
        returned = JobReturn(overrides=planned.config.hydra.overrides.task, status=JobStatus.COMPLETED)
        returned.return_value = outcome
        self.hydra_context.callbacks.on_job_end(config=planned.config, job_return=returned)
        return outcome

    def _plan(self, task: Task) -> Planned | Outcome:
        experiment = HydraConfig.instance().cfg
        config = self._recorded(task)
        if config is None:
            config = compose_trial(self.hydra_context, self.config, task.overrides)
        try:
            with open_dict(config), read_write(config):
                config.hydra.job.id = f"{config.hydra.job.name}_{task.number}"
                config.hydra.job.num = task.number
                folder = _folder_of(config, ("hydra.sweep.dir", "hydra.sweep.subdir"))
                config.hydra.runtime.output_dir = str(folder)
            HydraConfig.instance().set_config(config)
            self.hydra_context.callbacks.on_job_start(config=config, task_function=self.job)
            own = copy.deepcopy(config)
            with open_dict(own), read_write(own):
                del own["hydra"]
            variables: Any = OmegaConf.to_container(config.hydra.job.env_set, resolve=True)
            environment = {str(name): str(value) for name, value in variables.items()}
            with changed_environment(environment):
                run = self.job.plan(own, self.launcher, task.log is not None)
            order = {
                "folder": str(folder),
                "environment": environment
                | ({SEARCH: str(task.reports_to)} if task.reports_to else {})
                | ({SHOWN_ABOVE: "1"} if task.shown else {}),
                "cwd": str(folder if config.hydra.job.chdir else Path.cwd()),
                "label": f"[{task.number}] ",
                "log": task.log,
                "full_error": self.job.full_error,
                "logging": OmegaConf.to_container(config.hydra.job_logging, resolve=True),
            }
            planned = Planned(folder=folder, order=order, config=config)
            return self.conclude(planned, run) if isinstance(run, Outcome) else planned
        finally:
            HydraConfig.instance().cfg = experiment

    def _recorded(self, task: Task) -> DictConfig | None:
        """Return the recorded configuration of a trial that has started, with the node `hydra` of the
        experiment; None for a new trial. Nothing is composed."""
        if not is_run(task.folder):
            return None
        try:
            run = Run.open(task.folder)
            if run.unrecorded:
                return None
            plain = run.read_config()
        except LabrlError:  # The folder is damaged, which the job reports.
            return None
        config = OmegaConf.create({**plain, "hydra": copy.deepcopy(self.config.hydra)})
        OmegaConf.set_readonly(config.hydra, None)
        with open_dict(config):
            config.hydra.overrides.task = [one for one in task.overrides if not is_hydras(one)]
            config.hydra.runtime.choices.update(run.choices)
            config.hydra.sweep.subdir = os.path.relpath(task.folder, str(config.hydra.sweep.dir))
        return config


@contextmanager
def changed_environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Context manager: set environment variables; the value None removes a variable."""
    before = dict(os.environ)
    try:
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
