"""Run a composed trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labrl.config.compose import check_environment
from labrl.session.worker import workers_ready
from labrl.trial.composed import Again, Composed

if TYPE_CHECKING:
    from labrl.trial.result import TrialResult


def run_composed(composed: Composed, again: Again | None = None) -> TrialResult:
    """Run a new trial, or continue or repeat the earlier run `again`."""
    if again is None:
        check_environment(composed.plain["env"], composed.command.choices.get("env", ""))
    sessions = composed.plain["meta"]["max_session"]
    with workers_ready(sessions if sessions > 1 else 0):
        # Imported late: the processes load PyTorch meanwhile, and a misspelled key must not wait for it.
        from labrl.trial.trial import run_trial

        return run_trial(composed) if again is None else again.run(composed)
