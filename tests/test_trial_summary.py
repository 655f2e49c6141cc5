"""The table at the end of a trial is whole on a terminal of 80 columns."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from labrl.session.callbacks.progress import Display, SessionProgress
from labrl.trial.result import SessionResult, TrialResult
from labrl.trial.summary import COLUMNS, print_summary


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
    assert re.search(r"\b2 sessions\b.* 15\.0\b", summary(*kept, *failed))
    alone = summary(kept[0], session(0, status="failed"))
    assert alone.count("10.0") == 1, "in its own row, and in no mean"


def test_one_episode_has_no_deviation() -> None:
    row = summary(session(0, frame=250, episodes=1, return_mean=-1229.0, return_std=0.0)).splitlines()[2]
    assert "-1,229" in row
    assert "±" not in row


def test_a_score_of_evaluation_is_not_headed_as_one_of_training() -> None:
    facts = {"frame": 3008, "episodes": 40, "return_mean": 245.3, "return_std": 9.0, "return_episodes": 40}
    evaluated = summary(session(0, **facts, best_return=174.7, best_source="evaluation"))
    assert "best eval" in evaluated.splitlines()[1]
    assert "last 40 " in evaluated
    inferred = summary(session(0, **facts, best_return=250.0, best_source="training"))
    assert "eval " not in inferred.splitlines()[1]


def test_a_session_without_any_episode_is_said_to_have_no_return_with_the_keys_that_help() -> None:
    played = {"frame": 1000, "wall": 1.0}
    text = summary(
        session(0, **played), session(1, episodes=3, return_mean=1.0, **played), session(2, **played)
    )
    assert "session 0, 2" in text
    assert "env.max_episode_steps=" in text
    for other in ({"best_return": 5.0}, {"status": "pruned"}, {"episodes": 1}, {"frame": 0}):
        assert "env.max_episode_steps=" not in summary(session(0, **{**played, **other}))


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
