"""A toy environment, configurations of environments and ways to play them, for the environment tests."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from options import options

from labrl.component import Component
from labrl.config.validate import dataclass_of
from labrl.envs.vector import VectorEnv
from labrl.run.tree import pack, unpack
from labrl.step import Step


class Walk(gymnasium.Env[NDArray[np.float32], np.int64]):
    """A walk on a line: action 1 moves one cell to the right, action 0 stays, and every step pays 0.1.

    An episode terminates at the goal. The observation is the position and a random number of the step, which
    shows how the episode was seeded.
    """

    def __init__(self, goal: int = 1000) -> None:
        self.goal = goal
        self.position = 0
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.position = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> Any:
        self.position += int(action)
        return self._observation(), 0.1, self.position >= self.goal, False, {}

    def _observation(self) -> NDArray[np.float32]:
        return np.array([self.position, self.np_random.random()], np.float32)


class Remembers(Walk):
    """A walk whose reset keeps the position of the last episode, even with a seed.

    An episode can therefore be repeated only in a newly created environment.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        position = self.position
        super().reset(seed=seed)
        self.position = position
        return self._observation(), {}


def gymnasium_node(**settings: Any) -> dict[str, Any]:
    """Return the configuration of `env=gymnasium` as a dictionary, without an id, with `settings` changed."""
    node = Component(
        "labrl.envs.gym.GymnasiumEnv", options("env", "env=gymnasium env.id=CartPole-v1")
    ).plain()
    return {**node, "id": None, **settings}


def gymnasium_env(id: str, **settings: Any) -> Component:
    """Return the component of a registered environment."""
    return dataclass_of(Component, gymnasium_node(name=id, id=id, **settings), "env")


def own_env(cls: type, settings: dict[str, Any] | None = None, **more: Any) -> Component:
    """Return the component of an environment class that is not registered."""
    make = {"_target_": f"{cls.__module__}.{cls.__name__}", **(settings or {})}
    return dataclass_of(Component, gymnasium_node(name="toy", make=make, **more), "env")


def atari(game: str, **settings: Any) -> Component:
    """Return the component of an ALE game."""
    node = Component("labrl.envs.atari.AtariEnv", options("env", "env=pong")).plain()
    return dataclass_of(Component, {**node, "name": game, "game": game, **settings}, "env")


def constant(*actions: int) -> Callable[[int], NDArray]:
    """Return a policy that repeats `actions`, one action for each environment, at every step."""
    return lambda step: np.array(actions)


def sampled(env: VectorEnv, seed: int) -> Callable[[int], NDArray]:
    """Return a policy with random actions of a discrete or box space.

    The actions of a step depend on `seed` and the number of the step only.
    """
    space = env.action_space

    def draw(step: int) -> NDArray:
        rng = np.random.default_rng([seed, step])
        if isinstance(space, gymnasium.spaces.Discrete):
            return rng.integers(0, space.n, env.num_envs)
        assert isinstance(space, gymnasium.spaces.Box)
        return rng.uniform(-1, 1, (env.num_envs, *space.shape)).astype(space.dtype)

    return draw


def play(env: VectorEnv, actions: Callable[[int], NDArray], steps: int, first: int = 0) -> list[Step]:
    """Make `steps` vector steps, numbered from `first`, and return them."""
    return [env.step(actions(step)) for step in range(first, first + steps)]


def assert_same_steps(left: list[Step], right: list[Step]) -> None:
    """Check that two sequences of steps are equal bit for bit."""
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for name in ("observation", "next_observation", "reward", "terminated", "truncated", "episode_over"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        assert one.episodes == other.episodes


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """Save and load a state as a checkpoint does, which allows only tensors and plain data."""
    file = io.BytesIO()
    torch.save(pack(state), file)
    file.seek(0)
    return unpack(torch.load(file, weights_only=True))


class TakesOptions(Walk):
    """Environment that starts at a random position unless it is given options, which may be incomplete."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.position = int(self.np_random.integers(5, 9)) if options is None else options.get("start", 0)
        return self._observation(), {}
