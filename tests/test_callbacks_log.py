"""Training rows are written when they are due, say what the clock says, and go on after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from callback_cases import Recorder, ToySession

from labrl.clock import Clock
from labrl.session.callbacks.log import LogTraining
from labrl.storage.tables import read_rows

TIMED = ("wall", "fps")


def rows(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMED} for row in read_rows(path)]


def test_a_row_every_log_frequency_frames_and_at_the_end(tmp_path: Path) -> None:
    session = ToySession(tmp_path, max_frame=110).run(LogTraining(30))
    assert [row["frame"] for row in rows(session.folder.train_csv)] == [32, 60, 92, 112]


def test_columns_are_the_clock_the_episodes_and_the_agents_metrics(tmp_path: Path) -> None:
    session = ToySession(tmp_path, max_frame=100).run(LogTraining(100))
    row = read_rows(session.folder.train_csv)[0]
    assert list(row) == [
        *("frame", "env_frames", "episode", "opt_step", "wall", "fps"),
        *("return_mean", "return_std", "return_min", "return_max", "length_mean"),
        *("loss", "kl"),
    ]
    assert (row["frame"], row["env_frames"], row["episode"], row["opt_step"]) == (100, 400, 5, 50)
    assert (row["return_mean"], row["return_min"], row["return_max"], row["length_mean"]) == (
        4.0,
        3.0,
        5.0,
        10.0,
    )
    assert row["loss"] == session.agent.weight / 3
    assert row["kl"] is None
    assert row["fps"] == pytest.approx(100 / row["wall"])  # type: ignore[operator]


def test_listeners_get_each_row(tmp_path: Path) -> None:
    recorder = Recorder()
    ToySession(tmp_path, max_frame=60).run(recorder, LogTraining(30, [recorder]))
    assert [(table, row["frame"]) for table, row in recorder.rows] == [("train", 32), ("train", 60)]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("saved", [80, 100, 128, 132, 300])
def test_resumed_rows_are_those_of_an_unbroken_run(early: bool, saved: int, tmp_path: Path) -> None:
    def log() -> LogTraining:
        return LogTraining(400, early=True) if early else LogTraining(30)

    whole = ToySession(tmp_path / "whole", max_frame=900).run(log())
    broken, first = ToySession(tmp_path / "broken", max_frame=900), log()
    broken.callbacks = [first]
    first.start(broken)
    while broken.clock.frame < saved:
        broken.step()
    state = broken.state_dict()
    while broken.clock.frame < saved + 70:  # goes on, and is killed
        broken.step()
    again = log()
    resumed = ToySession(tmp_path / "broken", max_frame=900).load_state_dict(state, again).run(again)
    assert rows(resumed.folder.train_csv) == rows(whole.folder.train_csv)


@pytest.mark.parametrize("max_frame", [160, 500, 4096, 100_000])
def test_early_rows_are_at_least_ten_in_every_run_and_do_not_follow_from_its_budget(max_frame: int) -> None:
    """A run of 4,096 frames had one row, and its curves were dots."""

    def frames(budget: int) -> list[int]:
        clock, log = Clock(budget), LogTraining(10_000, early=True)
        log.look_ahead(0)
        found = []
        while not clock.finished:
            clock.tick(8)
            if log.is_due(clock, 0.0):
                found.append(clock.frame)
                log.look_ahead(clock.frame)
        return found

    short, long = frames(max_frame), frames(2 * max_frame)
    assert len(short) >= 10
    assert short[:-1] == long[: len(short) - 1]
    assert sum(frame > max_frame / 2 for frame in short) >= 5, "of the second half too"
    assert {10_000 * k for k in range(1, max_frame // 10_000 + 1)} <= set(short)


def test_a_run_that_starts_anew_in_the_folder_of_a_killed_one_doubles_no_rows(tmp_path: Path) -> None:
    ToySession(tmp_path, max_frame=60).run(LogTraining(30))
    session = ToySession(tmp_path, max_frame=60).run(LogTraining(30))
    assert [row["frame"] for row in rows(session.folder.train_csv)] == [32, 60]


@pytest.mark.parametrize(
    ("episode_every", "max_frame", "frames_before"),
    [(10**6, 4_000, 2_000), (10**6, 8_400, 4_200), (10**6, 10**5, 20_000), (20, 120_000, 108_000)],
    ids=["never short of 500 steps", "half of the budget", "5,000 steps", "a later one"],
)
def test_an_episode_that_may_never_end_is_warned_of_once_and_early(
    episode_every: int, max_frame: int, frames_before: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = ToySession(tmp_path, max_frame=max_frame)
    session.episode_every, warned_at = episode_every, []

    def look() -> None:
        session.env.longest_episode = session.clock.frame // session.num_envs
        if caplog.text and not warned_at:
            warned_at.append(session.clock.frame)

    session.before_callbacks = look
    session.run(LogTraining(400))
    assert warned_at[0] - frames_before <= 404
    assert warned_at[0] > frames_before
    assert caplog.text.count("env.max_episode_steps=<steps>") == 1


def test_episodes_that_end_are_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    session = ToySession(tmp_path, max_frame=4_000)
    session.env.longest_episode = 1_000
    session.run(LogTraining(400))
    assert not caplog.text
