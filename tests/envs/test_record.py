"""Tests of recorded episodes: seed and actions play back exactly and survive an interruption."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exact_cases import QUIET, rows, small
from refusals import damaged

import labrl
from labrl.run.episodes import RecordedEpisode, read_episode, recorded_names, write_episode
from labrl.trial.videos import check

CARTPOLE = [*QUIET, "agent=random", "env=cartpole", "env.num_envs=3", "meta.eval_frequency=300"]


def run(folder: Path, *overrides: str) -> Path:
    """Train and return the folder of the first session's episodes."""
    assert labrl.train([*overrides, f"hydra.run.dir={folder}"]).exit_code == 0
    return folder / "session_0" / "episodes"


def same_episode(one: RecordedEpisode, other: RecordedEpisode) -> bool:
    """Return whether two episodes are equal except in the frame budget of their runs."""
    fields, other_fields = one.plain(), other.plain()
    same_actions = np.array_equal(fields.pop("actions"), other_fields.pop("actions"))
    fields["env"].pop("max_frame"), other_fields["env"].pop("max_frame")
    return same_actions and fields == other_fields


@pytest.mark.extended
@pytest.mark.parametrize("task", ["cartpole", "pendulum", "pong"])
def test_recorded_episodes_play_back_exactly(task: str, tmp_path: Path) -> None:
    episodes = run(tmp_path / "run", *small("random", task))
    best, last = (read_episode(episodes / f"{name}.npz") for name in ("best", "last"))
    assert recorded_names(episodes) == ["best", "last"]
    assert best.episode_return >= last.episode_return
    assert len(last.actions) == last.length
    # This run is short enough that the last row's window contains all its episodes.
    assert best.episode_return == float(rows(tmp_path / "run" / "session_0" / "eval.csv")[-1]["return_max"])
    assert check(best) is None
    assert check(last) is None


@pytest.mark.extended
def test_playback_reports_what_differs_from_the_recording(tmp_path: Path) -> None:
    episode = read_episode(run(tmp_path / "run", *CARTPOLE, "env.max_frame=600") / "last.npz")
    fields = episode.plain()
    assert check(episode) is None
    other = RecordedEpisode(**{**fields, "episode_return": 3.5})
    difference = str(check(other))
    assert f"{episode.episode_return:g}" in difference
    assert "3.5" in difference
    shorter = RecordedEpisode(**{**fields, "actions": episode.actions[:-1]})
    assert str(episode.length - 1) in str(check(shorter))
    for change in ({"final_observation": "0"}, {"seed": episode.seed + 1}):
        assert check(RecordedEpisode(**{**fields, **change})) is not None


@pytest.mark.extended
@pytest.mark.parametrize("evaluation", [[], ["meta.rigorous_eval=3"]])
def test_resumed_run_records_the_same_episodes_as_an_uninterrupted_one(
    tmp_path: Path, evaluation: list[str]
) -> None:
    overrides = [*CARTPOLE, *evaluation, "meta.log_frequency=150", "meta.record_episodes=each"]
    uninterrupted = run(tmp_path / "uninterrupted", *overrides, "env.max_frame=1500")
    resumed = run(tmp_path / "resumed", *overrides, "env.max_frame=900")
    labrl.train([f"+resume={tmp_path / 'resumed'}", "env.max_frame=1500"])
    names = ["best", "last", "300", "600", "900", "1200", "1500"]
    assert recorded_names(uninterrupted) == recorded_names(resumed) == names
    for name in names:
        assert same_episode(*(read_episode(each / f"{name}.npz") for each in (uninterrupted, resumed))), name


@pytest.mark.extended
def test_resume_removes_episodes_recorded_after_the_checkpoint(tmp_path: Path) -> None:
    overrides = [*CARTPOLE, "meta.record_episodes=each", "env.max_frame=600"]
    episodes = run(tmp_path / "run", *overrides)
    write_episode(episodes, "700", read_episode(episodes / "last.npz"))
    best = read_episode(episodes / "best.npz")
    write_episode(episodes, "best", RecordedEpisode(**{**best.plain(), "episode_return": 1e9}))
    labrl.train([f"+resume={tmp_path / 'run'}", "env.max_frame=900"])
    assert recorded_names(episodes) == ["best", "last", "300", "600", "900"]
    assert read_episode(episodes / "best.npz").episode_return < 1e9


@pytest.mark.extended
def test_evaluation_episodes_are_recorded_when_evaluation_is_separate(tmp_path: Path) -> None:
    episodes = run(tmp_path / "run", *CARTPOLE, "env.max_frame=900", "meta.rigorous_eval=4")
    best, last = (read_episode(episodes / f"{name}.npz") for name in ("best", "last"))
    assert (best.source, last.source) == ("evaluation", "evaluation")
    assert (last.environment, last.number, last.frame) == (0, 0, 900)
    evaluations = rows(tmp_path / "run" / "session_0" / "eval.csv")
    assert best.episode_return == max(float(row["return_max"]) for row in evaluations)
    assert check(best) is None


@pytest.mark.extended
def test_recording_can_be_disabled_and_does_not_change_the_run(tmp_path: Path) -> None:
    overrides = [*CARTPOLE, "env.max_frame=600"]
    episodes = run(tmp_path / "without", *overrides, "meta.record_episodes=none")
    assert not episodes.exists()
    run(tmp_path / "with", *overrides)
    one, other = (rows(tmp_path / name / "session_0" / "eval.csv") for name in ("with", "without"))
    assert one == other


def test_truncated_episode_file_is_reported_as_damaged(tmp_path: Path) -> None:
    path = run(tmp_path / "run", *CARTPOLE, "env.max_frame=300") / "last.npz"
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(20):
        broken = bytearray(content[: int(rng.integers(len(content)))])
        path.write_bytes(bytes(broken))
        with damaged(path):
            read_episode(path)
