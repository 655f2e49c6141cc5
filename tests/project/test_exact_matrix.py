"""The harness of `make exact` counts a run that ends before its signal apart from those that differ."""

from __future__ import annotations

import signal
from pathlib import Path

import exact_matrix
import numpy as np
import pytest
from exact_cases import Moment
from exact_matrix import ENDED, TRIES, Case, by_signal, report

pytestmark = pytest.mark.extended


@pytest.fixture
def case(tmp_path: Path) -> Case:
    overrides = ["env.max_frame=1000", "meta.log_frequency=100"]
    return Case(overrides, tmp_path / "unbroken", tmp_path / "run", np.random.default_rng(0), kills=1)


def test_run_that_ends_before_its_signal_is_retried_earlier(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments: list[Moment] = []
    codes = [0, 0, -signal.SIGKILL]

    def interrupt(folder: Path, overrides: list[str], number: int, moment: Moment) -> tuple[int, str]:
        assert not folder.exists(), "what an earlier try has left"
        folder.mkdir()
        moments.append(moment)
        return codes[len(moments) - 1], ""

    monkeypatch.setattr(exact_matrix, "interrupt", interrupt)
    monkeypatch.setattr(exact_matrix, "labrl", lambda *overrides: None)
    by_signal(case, signal.SIGKILL, -signal.SIGKILL)
    first = moments[0].frame
    assert [moment.frame for moment in moments] == [first, first // 2, first // 4]


def test_run_that_always_ends_before_its_signal_is_not_a_difference(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def interrupt(folder: Path, *given: object) -> tuple[int, str]:
        folder.mkdir()
        tries.append(given)
        return 0, ""

    monkeypatch.setattr(exact_matrix, "interrupt", interrupt)
    assert report("one", exact_matrix.killed, case) == ENDED
    assert len(tries) == TRIES
