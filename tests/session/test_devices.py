"""Tests of the number of threads per session."""

from __future__ import annotations

import pytest

from labrl.session.devices import available_cpus, threads_per_session


@pytest.mark.parametrize(("num_cpus", "sessions", "threads"), [(1.0, 1, 1), (1.0, 4, 1), (0.5, 1, 1)])
def test_every_session_gets_at_least_one_thread(num_cpus: float, sessions: int, threads: int) -> None:
    assert threads_per_session(num_cpus, sessions) == threads


def test_trial_never_gets_more_threads_than_cores() -> None:
    assert threads_per_session(None, 1) == threads_per_session(10_000.0, 1) == available_cpus()
