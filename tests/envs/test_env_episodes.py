"""Tests of episodes in VectorEnv: ends, returns, lengths, seeds and the observations around a reset."""

from __future__ import annotations

import numpy as np
from env_cases import Walk, assert_same_steps, constant, own_env, play, sampled

from labrl.envs.make import make_env
from labrl.seeding import episode_seed
from labrl.step import Episode


def test_time_limit_truncates_and_never_terminates() -> None:
    env = make_env(own_env(Walk, max_episode_steps=5), seed=3, num_threads=1, num_envs=1)
    env.reset()
    steps = play(env, constant(1), 10)
    assert [bool(step.truncated[0]) for step in steps] == [False] * 4 + [True] + [False] * 4 + [True]
    assert not any(step.terminated.any() for step in steps)
    assert [step.episode_over[0] for step in steps] == [step.truncated[0] for step in steps]
    (episode,) = steps[4].episodes
    assert (episode.length, episode.truncated, episode.index) == (5, True, 0)
    assert abs(episode.episode_return - 0.5) < 1e-12, "returns must be summed in double precision"


def test_ended_episodes_do_not_affect_the_other_environments() -> None:
    env = make_env(own_env(Walk, {"goal": 3}), seed=0, num_threads=1, num_envs=4)
    env.reset()
    steps = play(env, constant(1, 0, 1, 0), 4)
    assert [len(step.episodes) for step in steps] == [0, 0, 2, 0]
    over = steps[2]
    assert [episode.env for episode in over.episodes] == [0, 2]
    np.testing.assert_array_equal(over.episode_over, [True, False, True, False])
    np.testing.assert_array_equal(over.next_observation[:, 0], [3, 0, 3, 0])
    np.testing.assert_array_equal(over.observation[:, 0], [0, 0, 0, 0])
    np.testing.assert_array_equal(over.observation[[1, 3]], over.next_observation[[1, 3]])
    np.testing.assert_array_equal(steps[3].next_observation[:, 0], [1, 0, 1, 0])


def test_episode_depends_only_on_its_seed_and_actions() -> None:
    alone = make_env(own_env(Walk, {"goal": 4}), seed=7, num_threads=1, num_envs=1)
    among = make_env(own_env(Walk, {"goal": 4}), seed=7, num_threads=1, num_envs=3)
    assert alone.reset()[0].tolist() == among.reset()[0].tolist()
    draw = sampled(among, seed=1)
    steps_alone = play(alone, lambda step: draw(step)[:1], 60)
    steps_among = play(among, draw, 60)
    for one, other in zip(steps_alone, steps_among, strict=True):
        np.testing.assert_array_equal(one.observation[0], other.observation[0])
    episodes: list[Episode] = [episode for step in steps_among for episode in step.episodes]
    assert [e for e in episodes if e.env == 0] == [e for step in steps_alone for e in step.episodes]
    assert len({(e.env, e.index) for e in episodes}) == len(episodes) > 10
    assert all(e.seed == episode_seed(7, e.env, e.index) for e in episodes)


def test_reset_with_a_seed_equals_a_new_environment() -> None:
    used = make_env(own_env(Walk, {"goal": 3}), seed=1, num_threads=1, num_envs=2)
    used.reset()
    play(used, constant(1, 0), 7)
    new = make_env(own_env(Walk, {"goal": 3}), seed=2, num_threads=1, num_envs=2)
    np.testing.assert_array_equal(used.reset(seed=2), new.reset())
    assert_same_steps(play(used, sampled(used, 5), 20), play(new, sampled(new, 5), 20))


def test_arrays_of_a_step_are_not_modified_later() -> None:
    env = make_env(own_env(Walk, {"goal": 3}), seed=1, num_threads=1, num_envs=2)
    first = env.reset()
    kept = [first.copy()]
    steps = []
    for _ in range(10):
        step = env.step(np.array([1, 0]))
        steps.append(step)
        kept.append(step.observation.copy())
    for seen, copy in zip([first, *(step.observation for step in steps)], kept, strict=True):
        np.testing.assert_array_equal(seen, copy)
    assert [bool(step.terminated[0]) for step in steps] == [False, False, True] * 3 + [False]
