"""The table at the end of a trial is whole on a terminal of 80 columns."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from labrl.lab.result import SessionResult, TrialResult
from labrl.lab.summary import COLUMNS, print_summary
from labrl.session.callbacks.progress import Display, SessionProgress


def summary(*sessions: SessionResult, width: int = 80) -> str:
    text = io.StringIO()
    result = TrialResult(folder=Path("/runs/one"), seed=7, sessions=list(sessions))
    print_summary(result, Console(file=text, width=width))
    return text.getvalue()


def session(index: int, **facts: object) -> SessionResult:
    return SessionResult(**{"index": index, "seed": 1, "status": "finished", **facts})  # type: ignore[arg-type]


def test_a_row_of_a_long_run_fits_80_columns_with_all_its_headers() -> None:
    text = summary(
        session(0, frame=10_000_000, wall=12_345.6, episodes=5_432, return_mean=-1234.5, return_std=1234.5)
    )
    header, row = text.splitlines()[1:3]
    assert header.split() == list(COLUMNS)
    assert row.split() == [
        "0",
        "finished",
        "10,000,000",
        "5,432",
        "-1,234",
        "±",
        "1,234",
        "-",
        "12,346",
        "810",
    ]


@pytest.mark.parametrize("width", [20, 30, 40, 60])
def test_a_narrow_terminal_goes_without_columns_and_breaks_no_number(width: int) -> None:
    text = summary(
        session(0, frame=10_000, wall=12.6, episodes=432, return_mean=22.7, return_std=9.1), width=width
    )
    header, row = text.splitlines()[1:3]
    assert {"status", "return"} <= set(header.split()) <= set(COLUMNS)
    assert "finished" in row
    assert "22.7 ± 9.1" in row


def test_a_mean_is_of_the_sessions_that_have_a_return() -> None:
    kept = [session(index, frame=10, return_mean=10.0 * index) for index in (1, 2)]
    failed = [session(0, status="failed"), session(3, status="failed", return_mean=900.0)]
    assert "mean return over 2 sessions: 15.0" in summary(*kept, *failed)
    assert "mean return" not in summary(kept[0], session(0, status="failed"))


def test_the_error_of_a_failed_session_is_one_line() -> None:
    error = "RuntimeError: " + "a long story " * 12
    assert f"session 3 failed: {error}\n" in summary(session(3, status="failed", error=error))


def test_the_panel_of_several_sessions_fits_80_columns() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80, color_system=None)
    display = Display(2, console)
    display.show(
        [
            SessionProgress(i, 9_999_000, 10_000_000, 12, -1234.5, 12_345, 3.0, 0, "interrupted")
            for i in (0, 1)
        ]
    )
    display.close()
    for fact in (" # ", "frames/s", "9,999,000 / 10,000,000", "-1,234.5", "12,345", "interrupted"):
        assert fact in text.getvalue()
