"""The result of a trial."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labrl.analysis.formats import number, score
from labrl.errors import DONE, FAILED, INTERRUPTED, TERMINATED
from labrl.run.session import SessionResult


@dataclass(kw_only=True, repr=False)
class TrialResult:
    """The result of one trial, as `labrl.train` returns it. Its `repr` is a short summary."""

    folder: Path
    """The run folder, which contains everything that the trial wrote."""
    seed: int
    """The seed of the trial, either given or drawn."""
    sessions: list[SessionResult] = field(default_factory=list)
    """The results of the sessions, in the order of their indices."""
    exit_code: int = DONE
    """0: all sessions finished; 1: a session failed, files are incomplete, or a repetition differs; 130 or
    143: interrupted."""
    report: Path | None = None
    """`report.html` in the run folder; None if no report was made."""
    comparison: str | None = None
    """Result of a repetition (`+rerun`) in one line: whether all metric rows are equal, and the first
    difference, or that there were no rows to compare; None if the trial is not a repetition."""

    lacking: str | None = None
    """The incomplete files of the run and the reason, in one line; None if all files are complete."""

    @property
    def stopped_at_start(self) -> bool:
        """Whether a signal ended the trial before its first frame."""
        return self.exit_code in (INTERRUPTED, TERMINATED) and not any(
            session.frame for session in self.sessions
        )

    @property
    def error(self) -> str | None:
        """The failure in one line, such as "session 0 failed: ..."; None if nothing failed."""
        errors = [session.failure for session in self.sessions if session.failure]
        if self.exit_code == FAILED and self.comparison is not None:
            errors.append(f"rerun: {self.comparison}")
        if self.lacking is not None:
            errors.append(self.lacking)
        return "; ".join(errors) or None

    @property
    def return_mean(self) -> float | None:
        """Mean of `returns`, the final returns of the sessions that did not fail; None if there are none."""
        returns = self.returns
        return sum(returns) / len(returns) if returns else None

    @property
    def returns(self) -> list[float]:
        """Final return of each session that has one and did not fail."""
        sound = [session for session in self.sessions if session.status != "failed"]
        return [session.final_return for session in sound if session.final_return is not None]

    def _repr_html_(self) -> str | None:
        # Imported late: training does not wait for Matplotlib.
        from labrl.analysis.report.cell import trial_cell

        return trial_cell(self.folder, repr(self).splitlines()[0])

    def __repr__(self) -> str:
        from labrl.types import INFO  # late, because an error message must not wait for Pydantic

        status = {DONE: "finished", FAILED: "failed"}.get(self.exit_code, "interrupted")
        lines = [f"TrialResult: {status}" + (f", {self.error}" if self.error else "")]
        for session in self.sessions:
            told = "" if session.final_return is None else f", final return {score(session.final_return, 1)}"
            told += "".join(f", {INFO}{name} {number(value, 3)}" for name, value in session.info.items())
            lines.append(f"  session {session.index}: {session.status} at frame {session.frame:,}{told}")
        return "\n".join([*lines, f"  folder: {self.folder}"])


class TrialError(RuntimeError):
    """Raised with raise_on_failure=True for a trial or an experiment that failed or was interrupted."""

    def __init__(self, result: Any) -> None:
        """result: the result of `labrl.train` or `labrl.sweep`, which is kept as the attribute `result`."""
        super().__init__(result.error or f"it was interrupted; folder: {result.folder}")
        self.result = result

    def __reduce__(self) -> tuple[type[TrialError], tuple[Any]]:
        return TrialError, (self.result,)
