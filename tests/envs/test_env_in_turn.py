"""Tests that environments stepped in the main process equal Gymnasium's SyncVectorEnv."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from env_cases import gymnasium_env, own_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from inputs_env import Lamp

from labrl.component import Component
from labrl.envs.gym import GymnasiumEnv
from labrl.envs.single import EnvFactory


def same(one: Any, other: Any) -> bool:
    """Return whether our array (with a field for each input, if there are several) equals Gymnasium's."""
    if isinstance(other, dict):
        return list(one.dtype.names) == list(other) and all(same(one[name], other[name]) for name in other)
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


def backend(component: Component, num_envs: int) -> GymnasiumEnv:
    return component.build(num_envs=num_envs, num_threads=1)


@pytest.mark.parametrize(
    "component",
    [
        gymnasium_env("CartPole-v1"),
        gymnasium_env("Pendulum-v1", max_episode_steps=7),
        gymnasium_env("FrozenLake-v1"),
        own_env(Lamp),
    ],
    ids=["cartpole", "pendulum", "frozenlake", "several inputs"],
)
def test_every_step_equals_sync_vector_env(component: Component) -> None:
    ours = backend(component, 3)
    theirs: Any = SyncVectorEnv([EnvFactory(component.config)] * 3, autoreset_mode=AutoresetMode.DISABLED)
    theirs.action_space.seed(0)
    over = np.ones(3, np.bool_)
    for step in range(60):
        if over.any():
            seeds = [100 * step + env for env in range(3)]
            other, _ = theirs.reset(seed=seeds, options={"reset_mask": over})
            assert same(ours.reset(over, np.array(seeds)), other)
        actions = theirs.action_space.sample()
        result, their_result = ours.step(actions), theirs.step(actions)
        assert all(same(one, other) for one, other in zip(result[:4], their_result[:4], strict=True))
        over = result.terminated | result.truncated
    ours.close()
    theirs.close()
