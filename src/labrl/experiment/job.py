"""The planning of the trials of an experiment."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydra.types import HydraContext
from omegaconf import DictConfig

from labrl.config.compose import explained, prepare
from labrl.config.extensions import slug
from labrl.config.keys import without_alias
from labrl.config.presets import choices_of
from labrl.errors import DONE, LabrlError
from labrl.experiment.again import ExperimentAgain
from labrl.experiment.scheduler import Outcome, Planned, Task, recorded
from labrl.processes.output import (
    INDENT,
    labeled_output,
    print_error,
    print_traceback,
    print_unexpected,
    printing_to,
)
from labrl.processes.script import refuse_main
from labrl.processes.secrets import redact
from labrl.run.find import is_run
from labrl.run.provenance import Command
from labrl.run.run import Run
from labrl.run.session_log import print_warnings
from labrl.run.signature import present_trust, trusting
from labrl.session.callbacks.display import SHOWN_ABOVE
from labrl.session.callbacks.search import SEARCH
from labrl.trial.composed import Composed
from labrl.trial.fork import Fork
from labrl.trial.resume import FinishedError, Resume
from labrl.trial.start import plan_new

if TYPE_CHECKING:
    from labrl.experiment.launcher import LauncherTraits
    from labrl.run.provenance import Repositories, Typed


class Job:
    """What the trials of an experiment have in common, and the planning of one of them.

    `plan` raises no exceptions, so that a failed trial does not end other trials.
    """

    def __init__(
        self,
        config_dir: str | None,
        full_error: bool,
        typed: Typed,
        overrides: Sequence[str],
        again: Fork | ExperimentAgain | None = None,
    ) -> None:
        """config_dir: folder with the user's own groups; full_error: whether to print tracebacks; typed: the
        command; overrides: overrides that compose trials; again: the run that trials fork from, or the
        experiment that is resumed, if any."""
        self.typed, self.overrides = typed, list(overrides)
        self.config_dir = os.path.abspath(config_dir) if config_dir else None
        self.full_error = full_error
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
        """The exit code of the experiment."""

    def plan(self, task: Task, compose: Callable[[], DictConfig], launcher: LauncherTraits) -> Run | Outcome:
        """Write the folder of one trial, which a launcher with these traits will start.

        compose: function that returns the configuration of a new trial. Returns the outcome of a trial that
        is refused or has already ended.
        """
        logged = task.log is not None
        print_warnings()
        try:
            with trusting(self.trust):
                prepare(self.config_dir)
                return self._plan(task, compose, launcher)
        except LabrlError as error:
            if self._speaks(error, logged):
                print_error(error)
            return Outcome.failed(str(error), error.exit_code)
        except Exception as error:
            if self._speaks(error, logged):
                print_unexpected(error, f"the trial in {task.folder}")
            return Outcome.failed(redact(f"{type(error).__name__}: {error}"))

    def _speaks(self, error: Exception, logged: bool) -> bool:
        """Return whether to print an error here. In a grid, the experiment prints it.

        logged: whether the output goes to a log, which also receives the traceback of a failure of the user's
        own code.
        """
        own = not isinstance(error, LabrlError) or error.__cause__ is not None
        if self.full_error or (logged and own):
            print_traceback(error, INDENT if logged else "")
        return self.part_of != "grid"

    def _plan(self, task: Task, compose: Callable[[], DictConfig], launcher: LauncherTraits) -> Run | Outcome:
        folder, overrides = str(task.folder), without_alias(task.overrides)
        if is_run(task.folder):
            run = Run.open(folder)
            run.wait_until_free()
            if not run.unrecorded:
                return self._resume(run, overrides, launcher.elsewhere)
        if self.fork is not None:
            fork = self.fork.of_trial(overrides)
            return fork.plan(folder, self.typed, self.repositories, launcher.elsewhere)
        cfg = compose()
        choices = choices_of(cfg.hydra)
        command = Command(overrides, choices, self.config_dir, self.typed, self.repositories)
        composed = Composed.of(cfg, folder, command, launcher.elsewhere)
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


def compose_trial(
    context: HydraContext, config: DictConfig, config_dir: str | None, overrides: Sequence[str]
) -> DictConfig:
    """Compose the configuration of a trial of an experiment. Raises InputError.

    config: configuration of the experiment with the node `hydra`; config_dir: folder with the user's own
    groups; overrides: overrides of the trial.
    """
    with explained(overrides, config_dir):
        composed: DictConfig = context.config_loader.load_sweep_config(config, without_alias(overrides))
    return composed


def trial_folder(config: DictConfig, number: int) -> str:
    """Return the folder of a trial, relative to that of its experiment. config: its configuration with the
    node `hydra`."""
    return f"{number}_{choices_of(config.hydra)['agent']}_{slug(config.env.name)}"


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
        compose = partial(compose_trial, self.hydra_context, self.config, self.job.config_dir, task.overrides)
        try:
            log = task.folder / task.log if task.log else None
            with printing_to(log), labeled_output("" if log else f"[{task.number}] "):
                run = self.job.plan(task, compose, self.launcher)
        except OSError as error:
            return Outcome.failed(f"{task.folder} cannot be written ({error.strerror or error})")
        if isinstance(run, Outcome):
            return run
        order = {
            "folder": str(task.folder),
            "environment": ({SEARCH: str(task.reports_to)} if task.reports_to else {})
            | ({SHOWN_ABOVE: "1"} if task.shown else {}),
            "cwd": os.getcwd(),
            "label": f"[{task.number}] ",
            "log": task.log,
            "full_error": self.job.full_error,
        }
        return Planned(folder=task.folder, order=order)
