"""Tests of restoring vector environments bit for bit, from the seed and the actions of each episode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from env_cases import (
    Remembers,
    Walk,
    assert_same_steps,
    atari,
    gymnasium_env,
    own_env,
    play,
    sampled,
    through_a_file,
)
from exact_cases import unequal
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from labrl.component import Component
from labrl.envs.actions import ActionRecord
from labrl.envs.make import make_env
from labrl.envs.vector import ReplayError


@pytest.mark.parametrize(
    ("component", "num_envs", "before", "after"),
    [
        (gymnasium_env("CartPole-v1"), 8, 100, 100),
        (gymnasium_env("CartPole-v1"), 3, 0, 20),
        (gymnasium_env("Pendulum-v1"), 2, 250, 200),
        (gymnasium_env("CartPole-v1", vectorization="async"), 2, 40, 20),
        (atari("pong", sticky_actions=0.25), 3, 30, 30),
        (atari("breakout"), 2, 70, 30),
        (atari("breakout", fire_reset="each_life", noop_max=0), 2, 70, 30),
        (own_env(Remembers, max_episode_steps=30), 2, 50, 40),
    ],
    ids=["cartpole", "first step", "pendulum", "async", "pong", "breakout", "served", "recreated"],
)
def test_restored_environment_continues_exactly(
    component: Component, num_envs: int, before: int, after: int
) -> None:
    env = make_env(component, seed=21, num_threads=1, num_envs=num_envs)
    observation = env.reset()
    draw = sampled(env, 21)
    past = play(env, draw, before)
    state = through_a_file(env.state_dict())
    restored = make_env(component, seed=99, num_threads=1, num_envs=num_envs)
    found = restored.load_state_dict(state)
    np.testing.assert_array_equal(found, past[-1].observation if past else observation)
    # Both environments save the same state after further steps, so the restored one has lost nothing.
    assert_same_steps(play(env, draw, after, before), play(restored, draw, after, before))
    assert unequal(env.state_dict(), restored.state_dict()) == []
    env.close()
    restored.close()


def test_replayed_actions_that_end_in_another_state_are_refused() -> None:
    env = make_env(own_env(Walk), seed=1, num_threads=1, num_envs=2)
    env.reset()
    play(env, sampled(env, 1), 9)
    state = env.state_dict()
    ends_earlier = make_env(own_env(Walk, {"goal": 2}), seed=1, num_threads=1, num_envs=2)
    with refused("environment", "env", "environment 0", kind=ReplayError):
        ends_earlier.load_state_dict(state)
    state["observation"][1, 1] += 1e-6
    with refused("environment", "env", "environment 1", kind=ReplayError):
        env.load_state_dict(state)


@pytest.mark.parametrize("saved_again", [False, True])
def test_abandoned_episodes_are_truncated_and_followed_by_the_next(saved_again: bool) -> None:
    env = make_env(gymnasium_env("CartPole-v1"), seed=1, num_threads=1, num_envs=2)
    env.reset()
    last = play(env, sampled(env, 1), 40)[-1].observation
    state = env.state_dict()
    other = make_env(gymnasium_env("CartPole-v1"), seed=1, num_threads=1, num_envs=2)
    np.testing.assert_array_equal(other.abandon(through_a_file(state)), last)
    if saved_again:
        state = through_a_file(other.state_dict())
        other = make_env(gymnasium_env("CartPole-v1"), seed=1, num_threads=1, num_envs=2)
        np.testing.assert_array_equal(other.load_state_dict(state), last)

    step = other.step(np.array([0, 1]))
    np.testing.assert_array_equal(step.next_observation, last)
    assert step.truncated.all()
    assert step.episode_over.all()
    assert not step.terminated.any()
    assert not step.reward.any()
    assert step.episodes == [], "an abandoned episode was reported as finished"
    new_state = other.state_dict()
    assert new_state["episode"].tolist() == [number + 1 for number in state["episode"].tolist()]
    assert [len(own) for own in new_state["actions"]] == [0, 0]
    assert len(play(other, sampled(other, 2), 60)) == 60
    assert not other.state_dict()["lost"]


def test_state_with_another_number_of_environments_is_refused() -> None:
    env = make_env(own_env(Walk), seed=1, num_threads=1, num_envs=2)
    env.reset()
    more = make_env(own_env(Walk), seed=1, num_threads=1, num_envs=3)
    with pytest.raises(ValueError, match=r"2\b.*\b3\b"):
        more.load_state_dict(env.state_dict())


@given(
    ends=st.lists(st.sets(st.integers(0, 2)), max_size=40),
    space=st.sampled_from([Discrete(4), Discrete(300), Box(-1, 1, (2,)), Box(-1, 1, (), np.float64)]),
)
def test_record_holds_the_actions_of_each_environment_since_its_reset(
    ends: list[set[int]], space: Discrete | Box
) -> None:
    record = ActionRecord(3, space, capacity=2)
    expected: list[list[Any]] = [[], [], []]
    rng = np.random.default_rng(0)
    for over in ends:
        actions = (
            rng.integers(0, 4, (3, *space.shape))
            if isinstance(space, Discrete)
            else rng.random((3, *space.shape))
        )
        actions = actions.astype(space.dtype)
        record.append(actions)
        mask = np.array([env in over for env in range(3)])
        record.begin(mask)
        expected = [[] if mask[env] else [*expected[env], actions[env]] for env in range(3)]
    assert record.lengths.tolist() == [len(own) for own in expected]
    for own, known in zip(record.since_reset(), expected, strict=True):
        assert len(own) == len(known)
        assert all(np.array_equal(one, other) for one, other in zip(own, known, strict=True))
    again = ActionRecord(3, space, capacity=2)
    again.load(record.since_reset())
    again.append(actions := np.zeros((3, *space.shape), space.dtype))
    record.append(actions)
    for one, other in zip(again.since_reset(), record.since_reset(), strict=True):
        np.testing.assert_array_equal(one, other)


class Reuses(gym.Env[Any, Any]):
    """Environment that overwrites the arrays that it gets and has returned, unless it is `careful`."""

    position, picture = np.zeros(2, np.float32), np.zeros((2, 2, 3), np.uint8)
    mask, reward = np.ones(4, np.bool_), np.zeros(1)

    def __init__(self, careful: bool, masked: bool) -> None:
        self._careful, self._masked = careful, masked
        boxes = {
            "position": Box(-9, 9, (2,)),
            "more": Tuple((Box(0, 255, (2, 2, 3), np.uint8), Discrete(99))),
        }
        self.observation_space = Dict(boxes)
        self.action_space: Any = MultiDiscrete([2, 2]) if masked else Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        assert options is None
        self._steps, self._sum = 0, 0.0
        return self._shown()

    def step(self, action: Any) -> Any:
        action = action.copy() if self._careful else action
        self._sum += float(action.sum())
        action *= 0
        self._steps += 1
        observation, info = self._shown()
        reward = self.reward.copy() if self._careful else self.reward
        reward[0] = self._sum
        return observation, reward, np.bool_(self._steps == 9), 0, info

    def _shown(self) -> Any:
        arrays = [self.position, self.picture, self.mask]
        position, picture, mask = [array.copy() for array in arrays] if self._careful else arrays
        position[:], picture[:], mask[:] = self._sum, self.np_random.integers(255), True
        mask[self._steps % 4] = False
        shown = {"position": position, "more": (picture, self._steps)}
        return shown, {"action_mask": mask} if self._masked else {}


@pytest.mark.parametrize(("masked", "vectorization"), [(False, "sync"), (True, "sync"), (True, "async")])
def test_environment_may_overwrite_the_arrays_it_gets_and_returns(
    masked: bool, vectorization: str, caplog: pytest.LogCaptureFixture
) -> None:
    steps, states, masks = [], [], []
    for careful, kind in ((True, "sync"), (False, vectorization)):
        component = own_env(Reuses, {"careful": careful, "masked": masked}, vectorization=kind)
        env = make_env(component, seed=3, num_threads=2, num_envs=2)
        env.reset()
        rng = np.random.default_rng(3)
        actions = [
            rng.integers(0, 2, (2, 2)) if masked else rng.uniform(-1, 1, (2, 2)).astype(np.float32)
            for _ in range(14)
        ]
        given = [own.copy() for own in actions]
        steps.append([env.step(own) for own in actions])
        assert all((one == other).all() for one, other in zip(actions, given, strict=True))
        states.append(env.state_dict())
        masks.append([step.mask for step in steps[-1]])
        if kind == "sync":
            make_env(component, seed=9, num_threads=2, num_envs=2).load_state_dict(states[-1])
        env.close()
    assert not caplog.text, "a warning, although the environment repeats its episodes"
    assert_same_steps(*steps)
    np.testing.assert_array_equal(*masks)
    np.testing.assert_array_equal(states[1]["actions"], np.swapaxes(given[9:], 0, 1))
