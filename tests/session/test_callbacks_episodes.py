"""Tests of the statistics over the last finished episodes and of restoring them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from callback_cases import finished
from hypothesis import given
from hypothesis import strategies as st

from labrl.run.checkpoint import CheckpointStore
from labrl.session.episodes import EpisodeWindow

SCORES = st.lists(st.integers(-100, 100).map(float), max_size=30)


@given(SCORES, st.integers(1, 10))
def test_statistics_are_over_the_last_episodes(scores: list[float], window: int) -> None:
    episodes = EpisodeWindow(window)
    episodes.latest.extend(finished(score, length=index) for index, score in enumerate(scores))
    assert len(episodes.latest) == min(window, len(scores))
    statistics = episodes.statistics()
    if not scores:
        assert all(math.isnan(value) for value in statistics.values())
        return
    last = np.array(scores[-window:])
    assert statistics == {
        "return_mean": last.mean(),
        "return_std": last.std(),
        "return_min": last.min(),
        "return_max": last.max(),
        "length_mean": np.arange(len(scores))[-window:].mean(),
    }


def test_restored_window_continues_identically(tmp_path: Path) -> None:
    first = EpisodeWindow(3)
    first.latest.extend(finished(score) for score in (1.0, 2.0, 3.0, 4.5))
    store = CheckpointStore(tmp_path, keep_last=1)
    second = EpisodeWindow(3)
    second.load_state_dict(store.load(store.save(1, first.state_dict())).state)
    for window in (first, second):
        window.latest.extend([finished(7.25, length=3)])
    assert second.statistics() == first.statistics()
    assert len(second.latest) == 3
    smaller = EpisodeWindow(1)
    smaller.load_state_dict(first.state_dict())
    assert smaller.statistics()["return_mean"] == 7.25
