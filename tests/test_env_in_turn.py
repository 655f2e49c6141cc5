"""Environments in this process give what Gymnasium's own vector environment gives."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from labrl.envs.in_turn import InTurn


class Sketch(gym.Env[Any, Any]):
    """Two inputs, and an info that comes at every second step."""

    observation_space = gym.spaces.Dict(
        {"picture": gym.spaces.Box(0, 255, (2, 2), np.uint8), "place": gym.spaces.Discrete(9)}
    )
    action_space = gym.spaces.MultiDiscrete([3, 3])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._seen(), {"note": 1.5}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return (
            self._seen(),
            float(action.sum()),
            self._steps == 5,
            False,
            {"at": 2} if self._steps % 2 else {},
        )

    def _seen(self) -> dict[str, Any]:
        return {"picture": np.full((2, 2), self._steps, np.uint8), "place": int(self.np_random.integers(9))}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


@pytest.mark.parametrize(
    "make",
    [
        partial(gym.make, "CartPole-v1"),
        partial(gym.make, "Pendulum-v1", max_episode_steps=7),
        partial(gym.make, "FrozenLake-v1"),
        Sketch,
    ],
    ids=["cartpole", "pendulum", "frozenlake", "several inputs"],
)
def test_every_step_is_the_same(make: Any) -> None:
    ours = InTurn([make] * 3, with_infos=True)
    theirs: Any = SyncVectorEnv([make] * 3, autoreset_mode=AutoresetMode.DISABLED)
    theirs.action_space.seed(0)
    over = np.ones(3, np.bool_)
    for step in range(60):
        if over.any():
            seeds = [100 * step + env for env in range(3)]
            one, info = ours.reset(seed=seeds, options={"reset_mask": over})
            other, their_info = theirs.reset(seed=seeds, options={"reset_mask": over})
            assert same(one, other)
            assert same(info, their_info)
        actions = theirs.action_space.sample()
        assert len(list(iterate(theirs.action_space, actions))) == 3
        result, their_result = ours.step(actions), theirs.step(actions)
        assert all(same(one, other) for one, other in zip(result, their_result, strict=True))
        over = result[2] | result[3]
    ours.close()
    theirs.close()


def test_what_a_step_gave_is_not_written_to_later() -> None:
    envs = InTurn([partial(gym.make, "CartPole-v1")] * 2, with_infos=False)
    envs.reset(seed=[1, 2], options={"reset_mask": np.ones(2, np.bool_)})
    first = envs.step(np.array([0, 1]))
    kept = [part.copy() for part in first[:4]]
    envs.step(np.array([1, 0]))
    assert all((part == copy).all() for part, copy in zip(first, kept, strict=False))
    envs.close()
