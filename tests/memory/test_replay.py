"""Tests of the replay buffer: samples equal the stored transitions and stay within their episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import pytest
from env_cases import atari, play, sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from options import options
from replay_cases import (
    NUMBER,
    STACK,
    VECTOR,
    NaiveReplay,
    World,
    assert_all_as_seen,
    everything,
    fill,
    prioritized,
    uniform,
)

from labrl.envs.make import make_env
from labrl.memory.replay import Replay
from labrl.memory.workspace import Workspace
from labrl.step import Step


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_transitions_equal_those_of_a_naive_buffer_of_episodes(data: st.DataObject) -> None:
    draw = data.draw
    space = draw(st.sampled_from([VECTOR, STACK, NUMBER]))
    num_envs, n_step = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    capacity = num_envs * (n_step + 1) + draw(st.integers(0, 40))
    ends, lives = draw(st.sampled_from([0.0, 0.05, 0.3, 0.7])), draw(st.sampled_from([0.0, 0.1, 0.5]))
    world = World(space, num_envs, draw(st.integers(0, 10_000)), ends, lives, draw(st.sampled_from([0, 0.2])))
    build = draw(st.sampled_from([uniform, prioritized]))
    memory = build(space, num_envs, n_step, capacity=capacity, newest_share=1)
    naive = NaiveReplay(space, num_envs, capacity, n_step)
    for observation, action, step in world.steps(draw(st.integers(n_step, 150))):
        memory.add(observation, action, step)
        naive.add(observation, action, step)
        assert len(memory) <= capacity
        if world.rng.random() < 0.1 and len(memory):
            assert_all_as_seen(everything(memory), naive, naive.sampleable())
    pairs = naive.sampleable()
    assert len(memory) == len(pairs)
    if pairs:
        assert_all_as_seen(everything(memory), naive, pairs)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), stratified=st.booleans())
def test_every_sample_is_one_of_the_stored_transitions(seed: int, stratified: bool) -> None:
    rng = np.random.default_rng(seed)
    num_envs, n_step = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    capacity = num_envs * 12
    memories = [
        uniform(STACK, num_envs, n_step, seed, capacity=capacity),
        prioritized(STACK, num_envs, n_step, seed, capacity=capacity, stratified=stratified),
    ]
    naive, world = NaiveReplay(STACK, num_envs, capacity, n_step), World(STACK, num_envs, seed, 0.1)
    for observation, action, step in world.steps(60):
        naive.add(observation, action, step)
        for memory in memories:
            memory.add(observation, action, step)
    stored = {naive.seen[env][t].observation.tobytes(): (t, env) for t, env in naive.sampleable()}
    for memory in memories:
        for _ in range(5):
            sample = memory.sample(50, 0)
            memory.update_priorities(sample.index, rng.normal(size=50))
            pairs = [stored[observation.tobytes()] for observation in sample.observation]
            assert_all_as_seen(sample, naive, pairs)


def test_images_of_stacked_observations_are_stored_once() -> None:
    space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    memory = uniform(space, 8, capacity=8000)
    assert memory.num_bytes < 1.1 * 8000 * 84 * 84


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(0, 255, (9, 8, 3), np.uint8),
        gym.spaces.Box(0, 255, (3, 9, 8), np.uint8),
        gym.spaces.Box(0, 255, (6, 9, 8), np.uint8),
        STACK,
    ],
    ids=["channels last", "channels first", "two color images", "stack"],
)
def test_images_without_stacking_are_returned_unchanged(
    space: gym.Space, caplog: pytest.LogCaptureFixture
) -> None:
    memory = uniform(space, 2, capacity=40, newest_share=1)
    naive = NaiveReplay(space, 2, 40, 1)
    fill(World(space, 2, 0, ends=0.02, jumps=1), 60, memory, naive)
    assert_all_as_seen(everything(memory), naive, naive.sampleable())
    # Unrelated stacks need two images per step, so fewer transitions fit, which must be logged.
    assert (len(memory) < 40) == (space is STACK) == ("fewer transitions" in caplog.text)


def test_stacks_of_an_atari_game_are_returned_unchanged() -> None:
    settings = {"image_size": 12, "max_episode_frames": 144, "frame_skip": 4}
    env = make_env(atari("breakout", num_envs=2, **settings), seed=1, num_threads=1)
    memory = uniform(env.observation_space, 2, capacity=2 * 60, newest_share=1)
    observation, seen = env.reset(), []
    for step in play(env, sampled(env, 1), 90):
        # Copied, because the buffer must not depend on the environment's arrays.
        seen.append((observation.copy(), step.next_observation.copy()))
        memory.add(observation, np.zeros(2, np.int64), step)
        observation = step.observation
    env.close()
    sample = everything(memory)
    assert len(memory) > 2 * 50
    expected = {(one[e].tobytes(), two[e].tobytes()) for one, two in seen[-60:] for e in range(2)}
    pairs = zip(sample.observation, sample.next_observation, strict=True)
    assert {(one.tobytes(), two.tobytes()) for one, two in pairs} == expected


def test_uniform_buffer_samples_all_transitions_equally_often() -> None:
    memory = uniform(NUMBER, 3, capacity=30)
    fill(World(NUMBER, 3, 0), 25, memory)
    counts = np.unique(memory.sample(30_000, 0).index, return_counts=True)[1]
    assert len(counts) == 30
    assert counts.min() > 850
    assert counts.max() < 1150


@pytest.mark.parametrize("build", [uniform, prioritized])
@pytest.mark.parametrize(("share", "newest"), [(0, 0), (1 / 32, 1), (0.1, 4), (0.25, 8), (1, 32)])
def test_newest_share_of_a_minibatch_is_the_newest_transitions(
    build: type[Replay], share: float, newest: int
) -> None:
    memory = build(VECTOR, 2, 3, capacity=1000, newest_share=share)
    naive = NaiveReplay(VECTOR, 2, 1000, 3)
    fill(World(VECTOR, 2, 1), 400, memory, naive)
    sample, pairs = memory.sample(32, 0), naive.sampleable()[:newest]
    expected = np.array([naive.seen[env][t].observation for t, env in pairs]).reshape(newest, 3)
    np.testing.assert_array_equal(sample.observation[:newest], expected)
    assert len(sample.index) == 32


def test_float64_observations_and_matrix_actions_become_float32() -> None:
    space = gym.spaces.Box(-1, 1, (2,), np.float64)
    config = options("agent.memory", "agent=dqn", capacity=10, newest_share=1)
    memory = Replay(
        config,
        observation_space=space,
        action_space=gym.spaces.Box(-1, 1, (2, 3), np.float64),
        num_envs=1,
        n_step=1,
        gamma=0.9,
        workspace=Workspace(),
        generator=np.random.default_rng(0),
    )
    observation, action = np.full((1, 2), 0.25), np.arange(6.0).reshape(1, 2, 3)
    never = np.zeros(1, np.bool_)
    for seen in (observation, observation.copy()):  # as after a resume, a copy of the next observation
        step = Step(observation, observation, np.ones(1, np.float32), never, never, never)
        memory.add(seen, action, step)
    sample = everything(memory)
    np.testing.assert_array_equal(sample.action, [action[0]] * 2)
    assert sample.action.dtype == sample.observation.dtype == np.float32


class Recent(Replay):
    """Buffer that draws from the newer half of each environment and doubles the weight of the newest step."""

    def draw(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        env = self.generator.integers(0, self.num_envs, count)
        first = (self.oldest[env] + self.complete[env]) // 2
        return env, self.generator.integers(first, self.complete[env])

    def weights(self, env: NDArray[np.int64], step: NDArray[np.int64], frame: int) -> NDArray[np.float32]:
        return np.where(step == self.complete[env] - 1, 1, 0.5).astype(np.float32)


def test_derived_buffer_decides_on_draws_and_weights() -> None:
    memory, naive = uniform(VECTOR, 2, capacity=40, cls=Recent), NaiveReplay(VECTOR, 2, 40, 1)
    fill(World(VECTOR, 2, 0), 30, memory, naive)
    sample = memory.sample(200, 0)
    steps, envs = np.divmod(sample.index, 2)
    assert_all_as_seen(sample, naive, list(zip(steps.tolist(), envs.tolist(), strict=True)))
    assert set(steps) == set(range(20, 30))
    np.testing.assert_array_equal(sample.weight, np.where(steps == 29, 1, 0.5))


def test_sample_does_not_change_when_the_buffer_does() -> None:
    memory = uniform(STACK, 2, capacity=20)
    world = World(STACK, 2, 0)
    fill(world, 10, memory)
    sample = memory.sample(8, 0)
    arrays = [array for array in vars(sample).values() if array is not None]  # masks are None here
    before = [array.copy() for array in arrays]
    fill(world, 30, memory)
    memory.sample(8, 0)
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)


@pytest.mark.parametrize("build", [uniform, prioritized])
@pytest.mark.parametrize("space", [VECTOR, STACK], ids=["vector", "stack"])
@pytest.mark.parametrize("before", [0, 1, 30])
def test_episode_cut_by_a_resume_ends_at_its_last_step(
    before: int, space: gym.Space, build: Callable[..., Replay]
) -> None:
    memory = build(space, 3, 2, capacity=300, newest_share=1)
    naive, world = NaiveReplay(space, 3, 300, 2), World(space, 3, seed=1)
    played = list(world.steps(before))
    lost, always = world.observation, np.ones(3, np.bool_)
    world.observation = fresh = world.look()
    for number, (observation, action, step) in enumerate(played, 1):
        memory.add(observation, action, step)
        cut = dataclasses.replace(step, truncated=always, episode_over=always, observation=fresh)
        naive.add(observation, action, cut if number == before else step)
    void = Step(fresh, lost, np.zeros(3, np.float32), ~always, always, always, void=True)
    memory.add(lost, np.zeros(3, np.int64), void)
    for given_step in world.steps(20):
        memory.add(*given_step)
        naive.add(*given_step)
    assert_all_as_seen(everything(memory), naive, naive.sampleable())


@pytest.mark.parametrize("build", [uniform, prioritized])
def test_cuts_in_a_full_buffer_leave_transitions_unchanged(
    build: Callable[..., Replay],
) -> None:
    """Regression test: a cut stores the first observations of new episodes, for which there was no room."""
    memory, world = build(VECTOR, 2, capacity=20, newest_share=1), World(VECTOR, 2, seed=3, ends=1)
    always, no_reward = np.ones(2, np.bool_), np.zeros(2, np.float32)
    expected = {}
    for number in range(60):
        observation, action, step = world.step()
        memory.add(observation, action, step)
        for env in range(2):
            expected[float(step.reward[env])] = observation[env], step.next_observation[env]
        if number % 3 == 0:
            lost, world.observation = world.observation, world.look()
            memory.add(
                lost, action, Step(world.observation, lost, no_reward, ~always, always, always, void=True)
            )
        sample = everything(memory)
        for row, reward in enumerate(sample.reward):
            before, after = expected[float(reward)]
            np.testing.assert_array_equal(sample.observation[row], before)
            np.testing.assert_array_equal(sample.next_observation[row], after)
    assert len(memory) > 10
