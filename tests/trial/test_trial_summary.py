"""Tests of the summary table at the end of a trial and the live panel, on terminals of several widths."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from labrl.analysis.formats import STUDENT
from labrl.analysis.intervals import aggregates
from labrl.run.session import SessionResult
from labrl.trial.result import TrialResult
from labrl.trial.summary import COLUMNS, print_summary


def summary(*sessions: SessionResult, width: int = 80) -> str:
    """Return the printed summary of a trial with these sessions."""
    text = io.StringIO()
    result = TrialResult(folder=Path("/runs/one"), seed=7, sessions=list(sessions))
    print_summary(result, Console(file=text, width=width))
    return text.getvalue()


def session(index: int, **facts: object) -> SessionResult:
    return SessionResult(**{"index": index, "seed": 1, "status": "finished", **facts})  # type: ignore[arg-type]


def test_row_of_a_long_run_fits_80_columns_with_all_headers() -> None:
    facts = {"frame": 10_000_000, "wall": 12_345.6, "episodes": 5_432, "final_return": -1234.5}
    header, row = summary(session(0, **facts, best_return=-3.4e30)).splitlines()[1:3]
    assert header.split() == " ".join(COLUMNS).split()
    assert row.split() == ["0", "finished", "10,000,000", "5,432", "-1,234", "-3.4e+30", "12,346", "810"]


def test_small_returns_keep_their_digits() -> None:
    played = session(0, frame=10_000, wall=12.0, episodes=40, final_return=0.0123, best_return=0.74)
    assert summary(played).splitlines()[2].split()[4:6] == ["0.0123", "0.74"]
    assert "final return 0.0123" in repr(TrialResult(folder=Path("/runs/one"), seed=7, sessions=[played]))


@pytest.mark.parametrize("width", [24, 30, 40, 60])
def test_narrow_terminal_omits_columns_and_breaks_no_number(width: int) -> None:
    text = summary(session(0, frame=10_000, wall=12.6, episodes=432, final_return=1022.7), width=width)
    header, row = text.splitlines()[1:3]
    assert {"status", "final", "return"} <= set(header.split()) <= set(" ".join(COLUMNS).split())
    assert "finished" in row
    assert "1,023" in row


def test_mean_return_is_over_sessions_that_did_not_fail_with_its_interval() -> None:
    kept = [session(index, frame=10, final_return=18.0 + index) for index in (1, 2, 3)]
    failed = [session(0, status="failed"), session(4, status="failed", final_return=900.0)]
    value, low, high = aggregates(np.array([19.0, 20.0, 21.0]))["mean"]
    (line,) = (line for line in summary(*kept, *failed).splitlines() if "3 sessions" in line)
    assert STUDENT in line
    shown = [float(text) for text in re.findall(r"\d+(?:\.\d+)?", line)]
    assert shown == pytest.approx([3, value, 3, 95, low, high], abs=0.005)
    alone = summary(kept[0], session(0, status="failed"))
    assert alone.count("19.0") == 1, "a mean of a single session is shown"


def test_header_distinguishes_evaluation_from_training_scores() -> None:
    facts = {"frame": 3008, "episodes": 40, "final_return": 245.3, "return_episodes": 40}
    evaluated = summary(session(0, **facts, best_return=174.7, best_source="evaluation"))
    assert "best eval" in evaluated.splitlines()[1]
    inferred = summary(session(0, **facts, best_return=250.0, best_source="training"))
    assert "last 40 " in inferred
    assert "eval " not in inferred.splitlines()[1]


def test_session_without_episodes_is_named_with_the_key_that_helps() -> None:
    played = {"frame": 1000, "wall": 1.0}
    text = summary(
        session(0, **played), session(1, episodes=3, final_return=1.0, **played), session(2, **played)
    )
    assert "session 0, 2" in text
    assert "env.max_episode_steps=" in text
    for other in ({"best_return": 5.0}, {"status": "pruned"}, {"episodes": 1}, {"frame": 0}):
        assert "env.max_episode_steps=" not in summary(session(0, **{**played, **other}))
