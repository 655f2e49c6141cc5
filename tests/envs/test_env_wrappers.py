"""Tests of wrappers of environments and of options of resets in YAML."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from env_cases import (
    TakesOptions,
    assert_same_steps,
    constant,
    gymnasium_env,
    own_env,
    play,
    sampled,
    through_a_file,
)
from refusals import refused

from labrl.envs.make import describe, make_env

STACK = {"_target_": "gymnasium.wrappers.FrameStackObservation", "stack_size": 3}
TARGET = "env.wrappers[0]._target_"
RESCALE = {"_target_": "gymnasium.wrappers.RescaleAction", "min_action": -1, "max_action": 1}


class Repeat(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that repeats every action `count` times."""

    def __init__(self, env: gym.Env[Any, Any], count: int) -> None:
        super().__init__(env)
        self._count = count

    def step(self, action: Any) -> Any:
        for _ in range(self._count):
            answer = self.env.step(action)
        return answer


def make_nothing(env: gym.Env[Any, Any]) -> None:
    """Return nothing in place of an environment."""


def test_wrappers_are_applied_from_the_inside_to_the_outside() -> None:
    component = gymnasium_env("Pendulum-v1", wrappers=[RESCALE, STACK])
    observations, actions = describe(component)
    assert observations.shape == (3, 3)
    assert actions == gym.spaces.Box(-1, 1, (1,), np.float32)
    env = make_env(component, seed=4, num_threads=1, num_envs=1)
    env.reset()
    seed = int(env.state_dict()["episode_seed"][0])
    alone = gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), np.float32(-1), np.float32(1))
    first, _ = alone.reset(seed=seed)
    step = env.step(np.array([[0.5]]))
    np.testing.assert_array_equal(step.observation[0, :2], [first, first])
    np.testing.assert_array_equal(step.observation[0, 2], alone.step(np.array([0.5], np.float32))[0])


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_wrapped_environment_is_restored_exactly(vectorization: str) -> None:
    component = gymnasium_env("CartPole-v1", wrappers=[STACK], vectorization=vectorization)
    env, other = (make_env(component, seed, num_threads=2, num_envs=2) for seed in (21, 99))
    env.reset()
    play(env, sampled(env, 3), 40)
    other.load_state_dict(through_a_file(env.state_dict()))
    assert_same_steps(play(env, sampled(env, 3), 30, 40), play(other, sampled(env, 3), 30, 40))
    env.close()
    other.close()


def test_step_limit_counts_the_steps_of_the_agent() -> None:
    wrappers = [{"_target_": "test_env_wrappers.Repeat", "count": 2}]
    component = gymnasium_env("MountainCar-v0", wrappers=wrappers, max_episode_steps=5)
    env = make_env(component, seed=0, num_threads=1, num_envs=1)
    env.reset()
    assert [bool(step.truncated[0]) for step in play(env, constant(1), 6)] == [False] * 4 + [True, False]


@pytest.mark.parametrize(
    ("target", "code", "key", "named"),
    [
        ("NormalizeReward", "unsupported", TARGET, "transforms/reward=normalize"),
        ("Autoreset", "unsupported", TARGET, "gymnasium.wrappers.Autoreset"),
        ("FrameStackObservation", "target", "env.wrappers[0]", "stack_size"),
        ("test_env_wrappers.make_nothing", "target", TARGET, "NoneType"),
    ],
)
def test_wrong_wrapper_is_refused_before_the_run(target: str, code: Any, key: str, named: str) -> None:
    path = target if "." in target else f"gymnasium.wrappers.{target}"
    component = gymnasium_env("Pendulum-v1", wrappers=[{"_target_": path}])
    with refused(code, key, named) as error:
        describe(component)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(("options", "starts"), [({"start": 3}, {3}), (None, {5, 6, 7, 8})])
def test_every_reset_gets_the_options(
    options: dict[str, int] | None, starts: set[int], vectorization: str
) -> None:
    settings = {"vectorization": vectorization, "max_episode_steps": 2, "reset_options": options}
    env = make_env(own_env(TakesOptions, **settings), seed=0, num_threads=2, num_envs=2)
    found = [env.reset()[:, 0], *(step.observation[:, 0] for step in play(env, constant(0, 0), 8))]
    env.close()
    assert set(np.ravel(found)) <= starts
