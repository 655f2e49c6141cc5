"""Tests of Atari emulators that run separately: they give the same steps and prepare the next episodes."""

from __future__ import annotations

import functools

import pytest
from env_cases import assert_same_steps, atari, play, sampled

from labrl.envs.emulators import FEW_THREADS
from labrl.envs.make import make_env
from labrl.step import Step


@functools.cache
def breakout(num_threads: int) -> list[Step]:
    game = atari("breakout", max_episode_frames=240, noop_max=4)
    env = make_env(game, seed=3, num_threads=num_threads, num_envs=2)
    env.reset()
    steps = play(env, sampled(env, seed=1), 130)
    env.close()
    return steps


@pytest.mark.extended
@pytest.mark.parametrize(
    "num_threads",
    [
        FEW_THREADS + 1,
        *(pytest.param(n, marks=pytest.mark.matrix) for n in (FEW_THREADS, 2 * FEW_THREADS + 4)),
    ],
)
def test_steps_do_not_depend_on_the_number_of_threads(num_threads: int) -> None:
    alone = breakout(1)
    assert_same_steps(alone, breakout(num_threads))
    assert any((step.terminated & ~step.episode_over).any() for step in alone), "no life was lost"
    assert sum(len(step.episodes) for step in alone) >= 4, "too few episodes to include prepared ones"


def test_saved_game_is_restored_although_another_was_prepared() -> None:
    game = atari("pong", max_episode_frames=200, noop_max=4)
    env = make_env(game, seed=5, num_threads=FEW_THREADS + 1, num_envs=2)
    env.reset()
    play(env, sampled(env, seed=1), 40)
    state = env.state_dict()
    after = sampled(env, seed=2)
    expected = play(env, after, 40)
    assert sum(len(step.episodes) for step in expected) == 2, "the prepared episodes must begin"
    env.load_state_dict(state)
    assert_same_steps(play(env, after, 40), expected)
    env.close()
