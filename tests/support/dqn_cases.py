"""Agents of the DQN family built from their YAML, and small environments with known optimal values."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.agent import Agent, Observation
from labrl.agents.dqn import DQN
from labrl.agents.parts.experience import Experience
from labrl.clock import Clock
from labrl.config.compose import compose, resolve
from labrl.config.schema import TrialConfig
from labrl.learning.compute import Compute
from labrl.learning.learner import Learner
from labrl.memory.replay import Replay
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.step import Episode, Step

FAMILY = ("dqn", "double_dqn", "dueling_dqn", "c51", "qr_dqn", "rainbow", "rainbow_lite")
SMALL = (
    "preset=none",
    "agent/network=mlp_256",
    "agent.network.torso.mlp.hidden=[32]",
    "agent.network.torso.cnn.features=16",
    "agent.memory.capacity=5000",
)
"""Overrides that make the networks and the replay buffer of every agent of the family small."""


@cache
def config_of(agent: str, *overrides: str) -> TrialConfig:
    """Return the configuration that `labrl agent=<agent> <overrides>` runs with."""
    smaller = [*SMALL]
    if agent in ("c51", "rainbow"):
        smaller += ["agent.value.v_min=-0.5", "agent.value.v_max=1.5", "agent.value.atoms=21"]
    if agent == "qr_dqn":
        smaller += ["agent.value.quantiles=11"]
    if agent in ("dueling_dqn", "rainbow", "rainbow_lite"):
        smaller += ["agent.network.head=[32]"]
    return resolve(compose([f"agent={agent}", *smaller, *overrides]))


def build(
    config: TrialConfig, observation: gym.Space, num_envs: int = 4, actions: int = 2, num_threads: int = 1
) -> tuple[DQN, Clock, Streams]:
    """Build the agent of a configuration for these spaces, with its clock and its random streams."""
    clock, streams = Clock(10**6), Streams(3)
    agent = config.agent.build(
        spaces=Spaces(observation, gym.spaces.Discrete(actions), num_envs),
        clock=clock,
        streams=streams,
        compute=Compute.choose("cpu", "fp32", num_threads),
    )
    return agent, clock, streams


def weights_of(network: nn.Module) -> Tensor:
    """Return all parameters of a network in one vector. [size]"""
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def gradient_of(network: nn.Module) -> Tensor:
    """Return the gradients of all parameters of a network in the order of `weights_of`. [size]"""
    gradients = [parameter.grad for parameter in network.parameters()]
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])


def minibatches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that collects every minibatch from which an agent learns."""
    gradient, seen = Learner.gradient, []

    def spy(self: Learner, loss: Any, minibatch: Any, **options: Any) -> Tensor:
        seen.append(minibatch)
        return gradient(self, loss, minibatch, **options)

    monkeypatch.setattr(Learner, "gradient", spy)
    return seen


def errors(monkeypatch: pytest.MonkeyPatch) -> list[tuple[NDArray, NDArray]]:
    """Return a list that collects the indices and errors of every update of the priorities."""
    update, seen = Experience.update_priorities, []

    def spy(self: Experience, index: NDArray, error: NDArray) -> None:
        seen.append((index, error))
        update(self, index, error)

    monkeypatch.setattr(Experience, "update_priorities", spy)
    return seen


def memories(monkeypatch: pytest.MonkeyPatch) -> list[Replay]:
    """Return a list that collects every replay buffer when it is created."""
    make, made = Replay.__init__, []

    def spy(self: Replay, *given: Any, **more: Any) -> None:
        make(self, *given, **more)
        made.append(self)

    monkeypatch.setattr(Replay, "__init__", spy)
    return made


def play(agent: Agent, clock: Clock, world: Any, steps: int) -> int:
    """Let the agent act and learn in a `world` with `observation`, `step` and optionally `mask`.

    Returns the number of updates.
    """
    updates = 0
    for _ in range(steps):
        step = world.step(agent.act(Observation(world.observation, getattr(world, "mask", None))))
        agent.observe(step)
        updates += agent.learn()
        clock.tick(len(step.reward))
    return updates


class Chain:
    """A chain of states: action 1 moves right, action 0 moves left and pays 0.05.

    Moving right from the last state pays 1 and terminates the episode. An episode is truncated after
    `LIMIT` steps, so its last state keeps its value.
    """

    STATES, LIMIT, DISCOUNT = 4, 7, 0.8
    SPACE = gym.spaces.Box(0, 1, (STATES,), np.float32)

    def __init__(self, num_envs: int) -> None:
        self._state, self._age = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)

    @property
    def observation(self) -> NDArray:
        return np.eye(self.STATES, dtype=np.float32)[self._state]

    def step(self, action: NDArray) -> Step:
        right = action == 1
        terminated = right & (self._state == self.STATES - 1)
        reward = np.where(right, terminated.astype(np.float32), np.float32(0.05))
        self._state = np.clip(self._state + np.where(right, 1, -1), 0, self.STATES - 1)
        self._age += 1
        truncated = ~terminated & (self._age == self.LIMIT)
        over, following = terminated | truncated, self.observation
        self._state[over], self._age[over] = 0, 0
        episodes = [Episode(int(i), 0, 0, 0.0, 1, bool(truncated[i])) for i in np.flatnonzero(over)]
        observation = self.observation if episodes else following
        return Step(observation, following, reward, terminated, truncated, over, episodes)

    @classmethod
    def best_values(cls) -> NDArray:
        """Return Q*, found by value iteration. [states, actions]"""
        q = np.zeros((cls.STATES, 2))
        for _ in range(200):
            value = q.max(1)
            left = 0.05 + cls.DISCOUNT * value[np.maximum(np.arange(cls.STATES) - 1, 0)]
            right = np.append(cls.DISCOUNT * value[1:], 1.0)
            q = np.stack([left, right], axis=1)
        return q


class Fork:
    """One decision, followed by a corridor in which actions have no effect.

    Action 0 pays 0.4 at once and leads into a corridor that pays nothing; action 1 leads into one that pays 1
    at its end. Uncorrected n-step returns are unbiased here, because only the first action matters.
    """

    STATES, DISCOUNT = 7, 0.8
    SPACE = gym.spaces.Box(0, 1, (STATES,), np.float32)

    def __init__(self, num_envs: int) -> None:
        self._state = np.zeros(num_envs, np.int64)

    @property
    def observation(self) -> NDArray:
        return np.eye(self.STATES, dtype=np.float32)[self._state]

    def step(self, action: NDArray) -> Step:
        before = self._state
        reward = np.where(before == 6, 1.0, np.where((before == 0) & (action == 0), 0.4, 0.0))
        terminated = (before == 3) | (before == 6)
        self._state = np.where(before == 0, np.where(action == 1, 4, 1), np.minimum(before + 1, 6))
        following = self.observation
        self._state = np.where(terminated, 0, self._state)
        episodes = [Episode(int(i), 0, 0, 0.0, 4, False) for i in np.flatnonzero(terminated)]
        no = np.zeros(len(action), np.bool_)
        observation = self.observation if episodes else following
        return Step(observation, following, reward.astype(np.float32), terminated, no, terminated, episodes)

    @classmethod
    def best_values(cls) -> NDArray:
        """Return Q*. [states, actions]"""
        powers = cls.DISCOUNT ** np.arange(4)
        best = np.array([0, 0, 0, 0, powers[2], powers[1], powers[0]])
        q = np.stack([best, best], axis=1)
        q[0] = 0.4, powers[3]
        return q


class Noise:
    """A world with random observations, the action as reward, and random terminations and truncations."""

    def __init__(self, space: gym.Space, num_envs: int, seed: int = 0) -> None:
        self._space, self._num_envs, self._rng = space, num_envs, np.random.default_rng(seed)
        self.observation = self._look()

    def _look(self) -> NDArray:
        shape = (self._num_envs, *(self._space.shape or ()))
        if self._space.dtype == np.uint8:
            return self._rng.integers(0, 256, shape).astype(np.uint8)
        return self._rng.normal(size=shape).astype(np.float32)

    def step(self, action: NDArray) -> Step:
        terminated, truncated = self._rng.random((2, self._num_envs)) < 0.1
        over, following = terminated | truncated, self._look()
        episodes = [Episode(int(i), 0, 0, 0.0, 1, bool(truncated[i])) for i in np.flatnonzero(over)]
        self.observation = following
        if episodes:
            self.observation = np.where(
                over.reshape(-1, *[1] * (following.ndim - 1)), self._look(), following
            )
        reward = action.astype(np.float32)
        return Step(self.observation, following, reward, terminated, truncated, over, episodes)


class Rewarding(Noise):
    """Environment with random observations whose reward depends on the first component of the action."""

    def step(self, action: Any) -> Step:
        return super().step(action.reshape(len(action), -1)[:, 0])
