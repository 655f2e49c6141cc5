"""Tests of the evaluation callback: scores, best model, resume, and no influence on training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from callback_cases import Recorder, ToySession, evaluation

from labrl.agents.agent import Observation
from labrl.config.compose import compose, resolve
from labrl.memory.workspace import Workspace
from labrl.run.checkpoint import CheckpointStore
from labrl.run.tables import read_rows
from labrl.session.callbacks.checkpoint import Checkpoint
from labrl.session.episodes import Played
from labrl.session.evaluation import Quota, choose


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


def test_score_is_empty_and_best_is_none_before_the_first_episode(tmp_path: Path) -> None:
    evaluate = evaluation(8, num_envs=0)
    session = ToySession(tmp_path, max_frame=8).run(evaluate)
    assert rows(session)[0]["return_mean"] is None
    assert rows(session)[0]["episodes"] == 0
    assert evaluate.best_return is None
    assert evaluate.best_frame is None


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
    session = ToySession(tmp_path, max_frame=100)
    session.config.env = COUNTDOWN
    recorder = Recorder()
    session.run(evaluation(50, num_envs=8, listeners=[recorder]))
    for row in rows(session):
        assert row["episodes"] == 8
        assert row["source"] == "evaluation"
        assert row["return_mean"] == row["length_mean"], "the return is not 1 per step"
    # Lengths are uniform from 1 to 11. A mean over the episodes that end first would favor short ones.
    seen = []
    for frame in range(4, 84, 4):
        other = ToySession(tmp_path / str(frame), max_frame=frame, seed=frame)
        other.config.env = COUNTDOWN
        other.run(evaluation(1000, num_envs=16))
        seen.append(rows(other)[0]["return_mean"])
    assert np.mean(seen) == pytest.approx(6, abs=0.6)
    assert [table for table, _ in recorder.rows] == ["eval", "eval"]


def test_evaluations_differ_in_episodes_and_are_reproducible(tmp_path: Path) -> None:
    one = rows(ToySession(tmp_path / "1", max_frame=100).run(evaluation(20, num_envs=4)))
    two = rows(ToySession(tmp_path / "2", max_frame=100).run(evaluation(20, num_envs=4)))
    assert one == two
    assert len({row["length_mean"] for row in one}) > 1
    other = rows(ToySession(tmp_path / "3", max_frame=100, seed=6).run(evaluation(20, num_envs=4)))
    assert other != one


def test_evaluation_does_not_change_training(tmp_path: Path) -> None:
    without = ToySession(tmp_path / "1").run()
    evaluated = ToySession(tmp_path / "2").run(evaluation(20, num_envs=3))
    assert evaluated.agent.evaluated > 0
    for key in ("streams", "episodes", "weight"):
        one, two = without.state_dict()[key], evaluated.state_dict()[key]
        assert str(one) == str(two)


def test_resume_repeats_an_interrupted_evaluation(tmp_path: Path) -> None:
    whole = ToySession(tmp_path / "whole", max_frame=100)
    whole_evaluate = evaluation(40, num_envs=3)
    whole.run(whole_evaluate, Checkpoint(50, 2, whole_evaluate, Workspace()))

    evaluate = evaluation(40, num_envs=3)
    interrupted = ToySession(tmp_path / "interrupted", max_frame=100).interrupt_at(40)
    interrupted.run(evaluate, Checkpoint(50, 2, evaluate, Workspace()))
    assert rows(interrupted) == []
    for _ in range(2):  # the first resumed session is killed before its next checkpoint
        saved = CheckpointStore(interrupted.folder.checkpoints, 2).load(
            interrupted.folder.checkpoints / "frame_000000000040"
        )
        evaluate = evaluation(40, num_envs=3)
        checkpoint = Checkpoint(50, 2, evaluate, Workspace())
        resumed = ToySession(tmp_path / "interrupted", max_frame=100)
        resumed.load_state_dict(saved.state, evaluate, checkpoint)
        evaluate.start(resumed)
        assert rows(resumed) == rows(whole)[:1]
        evaluate.finish(resumed)
    evaluate = evaluation(40, num_envs=3)
    checkpoint = Checkpoint(50, 2, evaluate, Workspace())
    resumed = ToySession(tmp_path / "interrupted", max_frame=100).load_state_dict(
        saved.state, evaluate, checkpoint
    )
    resumed.run(evaluate, checkpoint)
    assert rows(resumed) == rows(whole)
    best, whole_best = (CheckpointStore(s.folder.checkpoints, 2).best() for s in (resumed, whole))
    assert best is not None
    assert whole_best is not None
    assert best.frame == whole_best.frame


def test_environments_are_created_once_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from labrl.envs.make import make_env

    made: list[Any] = []
    closed: list[Any] = []

    def counted(*arguments: Any, **settings: Any) -> Any:
        env = make_env(*arguments, **settings)
        close = env.close
        monkeypatch.setattr(env, "close", lambda: (closed.append(env), close()))
        made.append((env, settings))
        return env

    monkeypatch.setattr("labrl.session.evaluation.make_env", counted)
    evaluate = evaluation(20, num_envs=2)
    ToySession(tmp_path, max_frame=100).run(evaluate)
    assert [settings for _, settings in made] == [{"evaluation": True, "num_envs": 2}]
    assert closed == [made[0][0]]


def test_each_environment_plays_exactly_its_quota(tmp_path: Path) -> None:
    session = ToySession(tmp_path, max_frame=20)
    session.config.env = COUNTDOWN
    episodes = [played.episode for played in played_by(session, 3, episodes=4)]
    assert rows(session)[0]["episodes"] == 12
    assert [episode.env for episode in episodes] == [0] * 4 + [1] * 4 + [2] * 4
    assert [episode.index for episode in episodes] == [0, 1, 2, 3] * 3


def test_greedy_evaluation_plays_greedy_actions_only(tmp_path: Path) -> None:
    session = ToySession(tmp_path, max_frame=20)
    session.agent.greedy_action = lambda observation: np.zeros(len(observation.array), np.int64)
    assert not actions_of(played_by(session, 2, greedy=True)).any()
    assert session.agent.evaluated == 0
    # A pole that is pushed in one direction only falls soon.
    assert rows(session)[0]["length_mean"] < 15


def played_by(session: ToySession, num_envs: int, **settings: Any) -> list[Played]:
    evaluate, found = evaluation(1000, num_envs, **settings), []
    evaluate.followers.append(lambda _, evaluated: found.extend(evaluated.played))
    session.run(evaluate)
    return found


def actions_of(played: list[Played]) -> np.ndarray:
    return np.concatenate([one.actions for one in played])


def test_epsilon_is_the_probability_of_a_random_action(tmp_path: Path) -> None:
    means = {}
    for epsilon in (0.0, 0.2, 1.0):
        session = ToySession(tmp_path / str(epsilon), max_frame=20)
        session.agent.greedy_action = lambda observation: np.zeros(len(observation.array), np.int64)
        means[epsilon] = actions_of(played_by(session, 50, greedy=True, epsilon=epsilon)).mean()
    assert means[0.0] == 0
    assert means[0.2] == pytest.approx(0.1, abs=0.05)
    assert means[1.0] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Discrete(3, start=2),
        gymnasium.spaces.MultiDiscrete([2, 3]),
        gymnasium.spaces.Box(np.float32([-2, 0]), np.float32([-1, 5])),
    ],
    ids=str,
)
def test_random_actions_cover_action_space_and_keep_policy_generator(space: gymnasium.Space[Any]) -> None:
    fixed = np.stack([space.sample()] * 400)

    class Stubborn:
        def evaluation_action(self, observation: Observation, generator: np.random.Generator) -> np.ndarray:
            assert generator.random() == np.random.default_rng(1).random()
            return fixed

    agent: Any = Stubborn()
    seen = Observation(np.zeros((400, 1)), start=np.ones(400, np.bool_))
    action = choose(agent, seen, space, Quota(1, epsilon=0.5), *map(np.random.default_rng, (1, 2)))
    assert action.dtype == fixed.dtype
    assert all(space.contains(one) for one in action)
    same = np.mean([np.array_equal(one, other) for one, other in zip(action, fixed, strict=True)])
    by_chance = {"Box": 0}.get(
        type(space).__name__, 1 / 3 if isinstance(space, gymnasium.spaces.Discrete) else 1 / 6
    )
    assert same == pytest.approx(0.5 + 0.5 * by_chance, abs=0.08)
