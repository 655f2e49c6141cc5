"""The table that a trial ends with."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from labrl.lab.result import SessionResult, TrialResult


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _row(session: SessionResult) -> list[str]:
    spread = "" if session.return_std is None else f" ± {_number(session.return_std)}"
    return [
        str(session.index),
        session.status,
        f"{session.frame:,}",
        f"{session.episodes:,}",
        _number(session.return_mean) + spread,
        _number(session.best_return),
        f"{session.wall:,.1f}",
        _number(session.fps, 0) if session.frame else "-",
    ]


def print_summary(result: TrialResult, console: Console | None = None) -> None:
    """Sessions, what they reached, and where everything was written."""
    console = console or Console()
    table = Table(title=f"seed {result.seed}", title_justify="left")
    table.add_column("session")
    table.add_column("status")
    for name in ("frames", "episodes", "return (last episodes)", "best", "seconds", "frames/s"):
        table.add_column(name, justify="right")
    for session in result.sessions:
        table.add_row(*_row(session))
    console.print(table)
    for session in result.sessions:
        if session.error:
            log = result.folder / f"session_{session.index}" / "session.log"
            console.print(f"session {session.index} failed: {session.error}", style="red", markup=False)
            if log.exists():
                console.print(f"  log: {log}", markup=False, soft_wrap=True)
    if len(result.sessions) > 1 and result.return_mean is not None:
        console.print(f"mean return over {len(result.sessions)} sessions: {result.return_mean:,.1f}")
    if result.exit_code in (130, 143):
        console.print("Interrupted; the state at the last step is saved under session_*/checkpoints.")
    console.print(f"run folder: {result.folder}", markup=False, soft_wrap=True)
