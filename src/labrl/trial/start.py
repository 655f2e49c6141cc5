"""Plan and run a trial: a new trial, or a resume, repetition or fork of an earlier run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labrl.envs.games import check_environment
from labrl.errors import DONE, FAILED, INTERRUPTED, LabrlError
from labrl.processes.output import INDENT, doing, labeled_output, print_traceback, printing_to
from labrl.processes.secrets import redact
from labrl.processes.signals import Stopped
from labrl.run.run import Run
from labrl.run.session_log import print_warnings
from labrl.run.signature import Trust, trusting
from labrl.session.worker import start_server
from labrl.trial.again import Again
from labrl.trial.composed import Composed
from labrl.trial.resume import FinishedError, Resume

if TYPE_CHECKING:
    from labrl.run.provenance import Typed
    from labrl.trial.result import TrialResult

# Functions import labrl.trial.trial late: a misspelled key must not wait for PyTorch.


def plan_new(composed: Composed) -> Run:
    """Write the folder of a new run, and return the run. Raises InputError for wrong input, before anything
    is written."""
    check_environment(composed.plain["env"], composed.command.choices.get("env", ""))
    from labrl.trial.trial import plan_trial

    return plan_trial(composed)


def run_new(composed: Composed) -> TrialResult:
    """Plan a new run, and train it in this process."""
    return _run(lambda: plan_new(composed), composed.plain["meta"]["max_session"])


def run_again(again: Again, folder: str, typed: Typed) -> TrialResult:
    """Plan a run in `folder` that resumes, repeats or forks an earlier run, and train it in this process."""
    sessions = again.past.config["meta"]["max_session"]
    return again.conclude(_run(lambda: again.plan(folder, typed), sessions))


def _run(plan: Callable[[], Run], sessions: int) -> TrialResult:
    if sessions > 1:
        start_server()
    run = plan()
    from labrl.trial.trial import train

    doing("restoring the run" if run.resumes.exists() else "making environments")
    return train(run)


def carry_out(order: Mapping[str, Any]) -> tuple[int, str | None]:
    """Train the planned run that `order` names, in a process that does nothing else.

    order: `folder`, the run folder; `cwd`, the working directory; `label`, a prefix for lines of the trial's
    output; `log`, a file in the run folder that receives the output instead, or None; and `full_error`,
    whether to print the traceback of any error. A run that was cut off, for example by the preemption of a
    job, is resumed. Returns the exit code, and the error message if
    the trial as a whole failed.
    """
    from labrl.trial.trial import train

    os.chdir(order["cwd"])
    log = None if order["log"] is None else Path(order["folder"], order["log"])
    with printing_to(log), labeled_output("" if log else order["label"]):
        print_warnings()
        try:
            run = Run.open(order["folder"])
            if run.recorded_status != "waiting":
                run.wait_until_free()
                # A planned run has been checked, perhaps on another machine.
                with trusting(Trust(everything=True)):
                    run = Resume.on_trial(run).plan(str(run.path), run.first_provenance["command"])
            return train(run).exit_code, None
        except FinishedError:
            return DONE, None
        except KeyboardInterrupt as stop:  # while the run was restored, or its videos were made
            over = Run.open(order["folder"]).recorded_status in ("finished", "pruned")
            return DONE if over else stop.exit_code if isinstance(stop, Stopped) else INTERRUPTED, None
        except Exception as error:
            own = not isinstance(error, LabrlError) or error.__cause__ is not None
            if order["full_error"] or (log and own):
                print_traceback(error, INDENT if log else "")
            if isinstance(error, LabrlError):
                return error.exit_code, str(error)
            return FAILED, redact(f"{type(error).__name__}: {error}")
