"""Tests of the evaluation callback: scores, best model, resume, and no influence on training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from callback_cases import ToySession, evaluation

from labrl.config.compose import compose, resolve
from labrl.run.tables import read_rows
from labrl.session.episodes import Played


def rows(session: ToySession) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "wall"} for row in read_rows(session.folder.eval_csv)]


class Countdown(gymnasium.Env[Any, Any]):
    """An environment that pays 1 a step and ends after a number of steps that the seed determines."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 12))
        return np.array([self.left], np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.array([self.left], np.float32), 1.0, self.left == 0, False, {}


COUNTDOWN = resolve(
    compose(
        [
            *("env=gymnasium", "env.name=countdown", "env.id=null"),
            "env.make={_target_: test_callbacks_evaluate.Countdown}",
        ]
    )
).env


def test_scores_without_evaluation_are_those_of_training_episodes(tmp_path: Path) -> None:
    evaluate = evaluation(40, num_envs=0)
    session = ToySession(tmp_path, max_frame=100).run(evaluate)
    assert session.agent.evaluated == 0
    assert [(row["frame"], row["return_mean"], row["episodes"]) for row in rows(session)] == [
        (40, 1.5, 2),
        (80, 3.0, 3),
        (100, 4.0, 3),
    ]
    assert {row["source"] for row in rows(session)} == {"training"}
    assert list(rows(session)[0]) == [
        *("frame", "env_frames", "episode", "opt_step", "end"),
        *("return_mean", "return_std", "return_min", "return_max", "length_mean", "episodes", "source"),
    ]


def test_best_is_the_first_of_the_highest_scores(tmp_path: Path) -> None:
    evaluate = evaluation(4, num_envs=0)
    session = ToySession(tmp_path, max_frame=100)
    session.episode_every = 1000
    evaluate.start(session)
    best = []
    for score in (1.0, 3.0, 3.0, 0.0, 9.0):
        session.episodes.load_state_dict({"total": 1, "returns": [score], "lengths": [1]})
        session.step()
        evaluate.step(session)
        best.append((evaluate.best_frame, evaluate.best_return))
    assert best == [(4, 1.0), (8, 3.0), (8, 3.0), (8, 3.0), (20, 9.0)]


def test_score_of_evaluation_replaces_a_best_score_of_training(tmp_path: Path) -> None:
    """Check a resume that sets meta.rigorous_eval, after which old and new scores are not comparable."""
    before = evaluation(4, num_envs=0)
    session = ToySession(tmp_path, max_frame=100)
    before.start(session)
    session.episodes.load_state_dict({"total": 1, "returns": [1000.0], "lengths": [1]})
    session.step()
    before.step(session)
    assert (before.best_return, before.best_source) == (1000.0, "training")
    after = evaluation(50, num_envs=2)
    after.load_state_dict(before.state_dict())
    other = ToySession(tmp_path / "on", max_frame=100)
    other.config.env = COUNTDOWN
    other.run(after)
    scores = [row["return_mean"] for row in rows(other)]
    assert (after.best_return, after.best_source) == (max(scores), "evaluation")


def test_separate_environments_play_one_whole_episode_each(tmp_path: Path) -> None:
    # Lengths are uniform from 1 to 11. A mean over the episodes that end first would favor short ones.
    seen = []
    for frame in range(4, 84, 4):
        session = ToySession(tmp_path / str(frame), max_frame=frame, seed=frame)
        session.config.env = COUNTDOWN
        (row,) = rows(session.run(evaluation(1000, num_envs=16)))
        assert (row["episodes"], row["source"]) == (16, "evaluation")
        assert row["return_mean"] == row["length_mean"], "the return is not 1 per step"
        seen.append(row["return_mean"])
    assert np.mean(seen) == pytest.approx(6, abs=0.6)


def test_evaluations_differ_in_episodes_and_are_reproducible(tmp_path: Path) -> None:
    one = rows(ToySession(tmp_path / "1", max_frame=100).run(evaluation(20, num_envs=4)))
    two = rows(ToySession(tmp_path / "2", max_frame=100).run(evaluation(20, num_envs=4)))
    assert one == two
    assert len({row["length_mean"] for row in one}) > 1
    other = rows(ToySession(tmp_path / "3", max_frame=100, seed=6).run(evaluation(20, num_envs=4)))
    assert other != one


def test_each_environment_plays_exactly_its_quota(tmp_path: Path) -> None:
    session = ToySession(tmp_path, max_frame=20)
    session.config.env = COUNTDOWN
    episodes = [played.episode for played in played_by(session, 3, episodes=4)]
    assert rows(session)[0]["episodes"] == 12
    assert [episode.env for episode in episodes] == [0] * 4 + [1] * 4 + [2] * 4
    assert [episode.index for episode in episodes] == [0, 1, 2, 3] * 3


def played_by(session: ToySession, num_envs: int, **settings: Any) -> list[Played]:
    evaluate, found = evaluation(1000, num_envs, **settings), []
    evaluate.followers.append(lambda _, evaluated: found.extend(evaluated.played))
    session.run(evaluate)
    return found


def test_epsilon_is_the_probability_of_a_random_instead_of_the_greedy_action(tmp_path: Path) -> None:
    means = {}
    for epsilon in (0.0, 0.2, 1.0):
        session = ToySession(tmp_path / str(epsilon), max_frame=20)
        session.agent.greedy_action = lambda observation: np.zeros(len(observation.array), np.int64)
        played = played_by(session, 50, greedy=True, epsilon=epsilon)
        means[epsilon] = np.concatenate([one.actions for one in played]).mean()
        assert session.agent.evaluated == 0
    assert means[0.0] == 0
    assert means[0.2] == pytest.approx(0.1, abs=0.05)
    assert means[1.0] == pytest.approx(0.5, abs=0.05)
