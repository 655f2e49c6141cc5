"""What a trial came to, as its experiment counts it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from labrl.errors import DONE, FAILED, INTERRUPTED, TERMINATED
from labrl.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from labrl.trial.result import TrialResult

Ending = Literal["finished", "failed", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a trial came to, for whoever started it: plain data, so that it crosses processes and machines."""

    status: Ending
    exit_code: int
    """0, 1 where it failed, 2 where it was refused, 130 or 143 where a signal ended it."""
    error: str | None = None
    """What ended a failed trial, in a line."""
    returns: tuple[float, ...] = ()
    """Mean return over the last episodes of each session that has one and did not fail."""

    @classmethod
    def of(cls, result: TrialResult) -> Outcome:
        """From a trial's own result."""
        code = result.exit_code
        status: Ending = "finished" if code == DONE else "interrupted" if code >= INTERRUPTED else "failed"
        return cls.from_sessions(status, code, [dataclasses.asdict(session) for session in result.sessions])

    @classmethod
    def from_sessions(cls, status: Ending, code: int, sessions: Sequence[Mapping[str, Any]]) -> Outcome:
        """sessions: their results as `run.json` has them."""
        errors = [
            f"session {session['index']}: {session['error']}" if len(sessions) > 1 else session["error"]
            for session in sessions
            if session["error"]
        ]
        returns = [session["return_mean"] for session in sessions if session["status"] != "failed"]
        return cls(
            status=status,
            exit_code=code,
            error="; ".join(errors) or None,
            returns=tuple(value for value in returns if value is not None),
        )


def recorded(run: RunFolder) -> Outcome | None:
    """What the run folder says that its trial came to; None where it does not know, or not yet."""
    codes: dict[str, int] = {"finished": DONE, "failed": FAILED, "interrupted": TERMINATED}
    info = run.info()
    status = info["status"]
    if status not in codes:
        return None
    return Outcome.from_sessions(status, codes[status], info.get("sessions", []))
