"""Tests of the callback that writes training rows: when, which columns, resume, and endless episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from callback_cases import ToySession

from labrl.clock import Clock
from labrl.run.tables import read_rows
from labrl.session.callbacks.log import LogTraining

TIMED = ("wall", "fps")


def rows(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMED} for row in read_rows(path)]


@pytest.mark.parametrize(("max_frame", "mark"), [(110, "budget"), (120, None)])
def test_rows_are_written_every_log_frequency_and_a_marked_one_at_the_end(
    max_frame: int, mark: str | None, tmp_path: Path
) -> None:
    session = ToySession(tmp_path, max_frame=max_frame).run(LogTraining(30))
    found = [(row["frame"], row["end"]) for row in rows(session.folder.train_csv)]
    assert found == [(32, None), (60, None), (92, None), (session.clock.frame, mark)]


def test_columns_are_those_of_clock_episodes_and_agent(tmp_path: Path) -> None:
    session = ToySession(tmp_path, max_frame=100).run(LogTraining(100))
    row = read_rows(session.folder.train_csv)[0]
    assert list(row) == [
        *("frame", "env_frames", "episode", "opt_step", "wall", "end", "fps"),
        *("return_mean", "return_std", "return_min", "return_max", "length_mean"),
        *("loss", "kl"),
    ]
    assert (row["frame"], row["env_frames"], row["episode"], row["opt_step"]) == (100, 400, 5, 50)
    assert (row["return_mean"], row["return_min"], row["return_max"]) == (4, 3, 5)
    assert row["loss"] == session.agent.weight / 3
    assert row["kl"] is None


def test_speed_is_that_of_training_between_rows_with_an_update(tmp_path: Path) -> None:
    session = ToySession(tmp_path, max_frame=200)
    session.agent.modules = lambda: {"network": torch.nn.Linear(1, 1)}
    seconds = session.timers.seconds

    def step() -> None:
        seconds["learn"] += 100.0 if session.clock.frame == 4 else 0.5  # the first one compiles
        seconds["callbacks"] += 50.0
        session.clock.opt_step = session.clock.frame // 100

    session.before_callbacks = step
    session.run(LogTraining(20))
    speeds = {row["frame"]: row["fps"] for row in read_rows(session.folder.train_csv)}
    assert {frame: fps for frame, fps in speeds.items() if fps is not None} == {200: 8.0}


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("saved", [80, 100, 128, 132, 300])
def test_rows_of_resumed_run_equal_those_of_uninterrupted_run(
    early: bool, saved: int, tmp_path: Path
) -> None:
    def log() -> LogTraining:
        return LogTraining(400, early=True) if early else LogTraining(30)

    whole = ToySession(tmp_path / "whole", max_frame=900).run(log())
    killed, first = ToySession(tmp_path / "killed", max_frame=900), log()
    killed.callbacks = [first]
    first.start(killed)
    while killed.clock.frame < saved:
        killed.step()
    state = killed.state_dict()
    while killed.clock.frame < saved + 70:  # the session continues after the checkpoint before it is killed
        killed.step()
    again = log()
    resumed = ToySession(tmp_path / "killed", max_frame=900).load_state_dict(state, again).run(again)
    assert rows(resumed.folder.train_csv) == rows(whole.folder.train_csv)


@pytest.mark.parametrize("max_frame", [160, 500, 4096, 100_000])
def test_early_rows_are_ten_or_more_and_independent_of_budget(max_frame: int) -> None:
    """Check short runs: one of 4,096 frames had only one row, so its curves were single points."""

    def frames(budget: int) -> list[int]:
        clock, log = Clock(budget), LogTraining(10_000, early=True)
        log.look_ahead(0)
        found = []
        while not clock.finished:
            clock.tick(8)
            if any(map(clock.due, log.frequencies)):
                found.append(clock.frame)
                log.look_ahead(clock.frame)
        return sorted({*found, clock.frame})

    short, long = frames(max_frame), frames(2 * max_frame)
    assert len(short) >= 10
    assert short[:-1] == long[: len(short) - 1]
    assert sum(frame > max_frame / 2 for frame in short) >= 5, "the second half of the run has too few rows"
    assert {10_000 * k for k in range(1, max_frame // 10_000 + 1)} <= set(short)


@pytest.mark.parametrize(
    ("episode_every", "max_frame", "frames_before"),
    [(10**6, 4_000, 2_000), (20, 120_000, 108_000)],
    ids=["at least 500 steps", "a late episode"],
)
def test_episode_that_may_never_end_gives_one_early_warning(
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


def test_episodes_that_end_give_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    session = ToySession(tmp_path, max_frame=4_000)
    session.env.longest_episode = 1_000
    session.run(LogTraining(400))
    assert not caplog.text
