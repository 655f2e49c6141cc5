"""Tests of Atari environments: lost lives, ends of episodes, the frame cap, raw rewards and observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from env_cases import assert_same_steps, atari, constant, play, sampled
from refusals import refused

from labrl.envs.make import describe, make_env, watch
from labrl.step import Episode, Step

FIRE = 1  # the action of Breakout that serves the ball, which the resting paddle then misses


def episodes_of(steps: list[Step]) -> list[Episode]:
    return [episode for step in steps for episode in step.episodes]


def test_lost_life_cuts_the_bootstrap_but_not_the_episode() -> None:
    env = make_env(atari("breakout"), seed=0, num_threads=1, num_envs=2)
    env.reset()
    steps = play(env, constant(FIRE, FIRE), 220)
    lost = sum(step.terminated & ~step.episode_over for step in steps)
    over = sum(step.episode_over for step in steps)
    assert (over >= 1).all()
    assert ((4 * over <= lost) & (lost <= 4 * over + 4)).all(), (
        "each game must signal four lost lives before its end"
    )
    for episode in episodes_of(steps):
        assert not episode.truncated
    for number in range(2):
        first = next(e for e in episodes_of(steps) if e.env == number)
        assert first.episode_return == sum(step.reward[number] for step in steps[: first.length])
        assert not any(step.episode_over[number] for step in steps[: first.length - 1])


@pytest.mark.parametrize(
    ("settings", "evaluation"), [({}, True), ({"life_loss_signal": False}, False)], ids=["evaluation", "off"]
)
def test_same_games_are_played_without_the_life_loss_signal(
    settings: dict[str, Any], evaluation: bool
) -> None:
    envs = [
        make_env(atari("breakout"), seed=4, num_threads=1, num_envs=1),
        make_env(atari("breakout", **settings), 4, 1, num_envs=1, evaluation=evaluation),
    ]
    for env in envs:
        env.reset()
    signaled, plain = (play(env, constant(FIRE), 200) for env in envs)
    assert episodes_of(plain)
    assert episodes_of(plain) == episodes_of(signaled)
    assert all((step.terminated == step.episode_over).all() for step in plain)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_fire_after_a_lost_life_serves_the_next_ball(num_threads: int) -> None:
    lost = {}
    for serves in (True, "each_life"):
        game = atari("breakout", fire_reset=serves, noop_max=0, sticky_actions=0.0)
        env = make_env(game, seed=0, num_threads=num_threads, num_envs=2, evaluation=serves == "each_life")
        env.reset()
        steps = play(env, constant(0, 0), 150)
        lost[serves] = [sum(step.terminated[0] for step in steps), len(episodes_of(steps))]
        env.close()
    # Only the first ball is served at the start of a game, so it ends only if the others are served as well.
    assert lost[True] == [1, 0]
    assert lost["each_life"][1] >= 2


def test_fire_after_a_lost_life_replaces_one_action_and_is_rendered() -> None:
    settings = {"noop_max": 0, "sticky_actions": 0.0}
    serving = atari("breakout", fire_reset="each_life", **settings)
    signals, shown = serving.build(num_envs=1, num_threads=1), watch(serving)
    by_hand = watch(atari("breakout", fire_reset=True, **settings))
    for one in (signals, shown, by_hand):
        one.reset(np.array([True]), np.array([5]))
    lost = [False]
    for _ in range(80):
        shown.step(np.array([0]))
        by_hand.step(np.array([FIRE if lost[-1] else 0]))
        lost.append(bool(signals.step(np.array([0])).terminated[0]))
        np.testing.assert_array_equal(shown.picture(), by_hand.picture())
    assert sum(lost) >= 2


def test_game_that_always_reports_one_life_ends_at_game_over() -> None:
    # Adventure still reports 1 life at game over, so waiting for 0 lives would miss the end.
    # With a frame skip of 64, a random episode ends within a few steps.
    runs = []
    for evaluation in (False, True):
        adventure = atari("adventure", frame_skip=64)
        env = make_env(adventure, seed=7, num_threads=1, num_envs=1, evaluation=evaluation)
        env.reset()
        runs.append(play(env, sampled(env, 7), 6))
    assert_same_steps(*runs)
    assert [(e.length, e.truncated) for e in episodes_of(runs[0])] == [(4, False)]


def test_last_life_counted_as_zero_is_still_played() -> None:
    # Keystone Kapers counts its four lives as 3, 2, 1 and 0: ending the episode at 0 would drop the last one.
    env = make_env(atari("keystone_kapers", frame_skip=64), seed=0, num_threads=1, num_envs=1)
    env.reset()
    steps = play(env, sampled(env, 0), 210)
    assert sum(step.terminated[0] for step in steps) == 3
    assert not any(step.episode_over[0] for step in steps)


def test_episode_is_truncated_after_max_episode_frames() -> None:
    env = make_env(atari("pong", max_episode_frames=200, noop_max=0), seed=0, num_threads=1, num_envs=2)
    env.reset()
    steps = play(env, constant(0, 0), 110)
    episodes = episodes_of(steps)
    assert [(e.env, e.index) for e in episodes] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert all(e.truncated and 48 <= e.length <= 50 for e in episodes)
    assert not any(step.terminated.any() for step in steps)
    assert sum(step.truncated.sum() for step in steps) == 4


def test_rewards_are_never_clipped() -> None:
    env = make_env(atari("ms_pacman"), seed=0, num_threads=1, num_envs=1)
    env.reset()
    rewards = np.concatenate([step.reward for step in play(env, sampled(env, 0), 100)])
    assert set(rewards[rewards != 0]) == {10.0}


def test_observations_follow_the_configuration() -> None:
    observation, action = describe(atari("pong"))
    assert (observation.shape, observation.dtype) == ((4, 84, 84), np.uint8)
    assert action.n == 6
    settings = {"grayscale": False, "frame_stack": 2, "image_size": 42, "frame_skip": 2}
    observation, action = describe(atari("pong", full_action_space=True, **settings))
    assert observation.shape == (2, 42, 42, 3)
    assert action.n == 18
    env = make_env(atari("pong", **settings), seed=0, num_threads=1, num_envs=2)
    assert env.reset().shape == (2, 2, 42, 42, 3)
    assert env.frame_skip == 2


@pytest.mark.parametrize(("game", "named"), [("pnog", "env=pong"), ("joust", "single-player")])
def test_unknown_or_unsupported_game_is_refused(game: str, named: str) -> None:
    with refused("unknown-option", "env.game", f"env.game={game}", named):
        describe(atari(game))
