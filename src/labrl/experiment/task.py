"""A trial that is to be run, and what it came to: plain data, which crosses processes and machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from labrl.errors import DONE, FAILED, INTERRUPTED, TERMINATED
from labrl.experiment.machine import Need
from labrl.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from labrl.trial.result import TrialResult


@dataclass(frozen=True, kw_only=True)
class Task:
    """A trial to run, or to continue where an earlier attempt left it in its folder."""

    number: int
    """Number of the trial in its experiment."""
    overrides: list[str]
    """All overrides that compose it, including those for Hydra."""
    folder: Path
    """Its run folder, which the overrides name too."""
    need: Need
    """Cores and GPUs that it takes."""
    channel: str | None = None
    """Address to which its sessions report evaluations (`labrl.experiment.search.channel`); None: nowhere."""
    log: str | None = None
    """File of the folder that takes what the trial prints; None: the terminal."""
    attempts: int = 0
    """Number of times that its process has died."""
    label: str = ""
    """Name of the trial in messages, where that is not its number."""

    @property
    def named(self) -> str:
        """How messages call the trial."""
        return self.label or f"trial {self.number}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a trial."""

    status: Literal["finished", "pruned", "failed", "interrupted"]
    exit_code: int
    """0, 1 where it failed, 2 where it was refused, 130 or 143 where a signal ended it."""
    error: str | None = None
    """The error of a failed trial, in one line."""
    returns: tuple[float, ...] = ()
    """Mean return over the last episodes of each session that has one and did not fail."""
    died: bool = False
    """Whether its process ended without a result, so that another attempt can go on from a checkpoint."""

    @classmethod
    def of(cls, result: TrialResult) -> Outcome:
        """Return the outcome that the result of a trial means."""
        code, sessions = result.exit_code, [dataclasses.asdict(session) for session in result.sessions]
        if code == DONE:
            pruned = any(session["status"] == "pruned" for session in sessions)
            return cls.from_sessions("pruned" if pruned else "finished", code, sessions)
        return cls.from_sessions("interrupted" if code >= INTERRUPTED else "failed", code, sessions)

    @classmethod
    def from_sessions(
        cls,
        status: Literal["finished", "pruned", "failed", "interrupted"],
        code: int,
        sessions: Sequence[Mapping[str, Any]],
    ) -> Outcome:
        """Return the outcome of a trial whose sessions came to `sessions`, as `run.json` has them."""
        errors = [
            f"session {session['index']}: {session['error']}" if len(sessions) > 1 else session["error"]
            for session in sessions
            if session["error"]
        ]
        returns = [session.get("final_return") for session in sessions if session["status"] != "failed"]
        return cls(
            status=status,
            exit_code=code,
            error="; ".join(errors) or None,
            returns=tuple(value for value in returns if value is not None),
        )

    @classmethod
    def failed(cls, error: str, code: int = FAILED) -> Outcome:
        """Return the outcome of a trial that `error` ended before it had a result."""
        return cls(status="failed", exit_code=code, error=error)

    @classmethod
    def lost(cls, error: str, interrupted: bool) -> Outcome:
        """Return the outcome of a trial whose process or machine is gone.

        interrupted: whether the process was asked to end.
        """
        if interrupted:
            return cls(status="interrupted", exit_code=TERMINATED, error=error, died=True)
        return cls(status="failed", exit_code=FAILED, error=error, died=True)


def recorded(run: RunFolder) -> Outcome | None:
    """Return what the run folder says that its trial came to; None where it does not know, or not yet."""
    info = run.info()
    match info["status"]:
        case "finished" | "pruned" as status:
            code = DONE
        case "failed" as status:
            code = FAILED
        case "interrupted" as status:
            code = TERMINATED
        case _:
            return None
    return Outcome.from_sessions(status, code, info.get("sessions", []))
