"""Plan and run a composed trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labrl.config.compose import check_environment
from labrl.run.run import Run
from labrl.session.worker import workers_ready
from labrl.steady_output import doing
from labrl.trial.composed import Again, Composed

if TYPE_CHECKING:
    from labrl.trial.result import TrialResult

# Functions import labrl.trial.trial late: a misspelled key must not wait for PyTorch.


def plan_composed(composed: Composed, again: Again | None = None) -> Run:
    """Write the folder of a new trial, or prepare that of the earlier run `again`. Return the run.

    Raises InputError for wrong input, before anything is written.
    """
    if again is not None:
        return again.plan(composed)
    check_environment(composed.plain["env"], composed.command.choices.get("env", ""))
    from labrl.trial.trial import plan_trial

    return plan_trial(composed)


def run_composed(composed: Composed, again: Again | None = None) -> TrialResult:
    """Plan a trial, and run it in this process."""
    sessions = composed.plain["meta"]["max_session"]
    with workers_ready(sessions if sessions > 1 else 0):  # They load PyTorch meanwhile.
        from labrl.envs.sample import kept_for_the_run

        with kept_for_the_run():
            run = plan_composed(composed, again)
            from labrl.trial.trial import train

            doing("restoring the run" if run.resumes.exists() else "making environments")
            result = train(run)
    return result if again is None else again.conclude(result)
