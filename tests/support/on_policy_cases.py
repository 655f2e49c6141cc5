"""On-policy agents built from their YAML, and helpers that their tests share."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from dqn_cases import Noise
from numpy.typing import NDArray

from labrl.agents.agent import Agent
from labrl.agents.policy_agent import PolicyAgent
from labrl.clock import Clock
from labrl.config.compose import compose, resolve
from labrl.config.schema import TrialConfig
from labrl.learning.compute import Compute
from labrl.memory import Minibatch
from labrl.networks.actor_critic import ActorCritic
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.step import Step

VECTOR = gym.spaces.Box(-5, 5, (3,), np.float32)
DISCRETE = gym.spaces.Discrete(3)
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
SWITCHES = gym.spaces.MultiBinary(3)
CHOICES = gym.spaces.MultiDiscrete([2, 3])


@cache
def config_of(agent: str, *overrides: str) -> TrialConfig:
    """Return the configuration that `labrl agent=<agent> <overrides>` runs with, without presets."""
    return resolve(compose([f"agent={agent}", "preset=none", *overrides]))


def build(
    agent: str,
    *overrides: str,
    observation: gym.Space = VECTOR,
    action: gym.Space = DISCRETE,
    num_envs: int = 4,
    masked: bool = False,
    compute: Compute | None = None,
) -> tuple[Any, Clock, Streams]:
    """Build the agent for these spaces, with its clock and its random streams."""
    clock, streams = Clock(10**6), Streams(3)
    player = config_of(agent, *overrides).agent.build(
        spaces=Spaces(observation, action, num_envs, masked),
        clock=clock,
        streams=streams,
        compute=compute or Compute.choose("cpu", "fp32", 1),
    )
    return player, clock, streams


def network_of(agent: Agent) -> ActorCritic:
    """Return the network that holds both the policy and the values."""
    network = agent.modules()["actor_critic"]
    assert isinstance(network, ActorCritic)
    return network


def rollouts(monkeypatch: pytest.MonkeyPatch) -> list[Minibatch]:
    """Return a list that collects every rollout from which an agent learns, each as one minibatch."""
    prepare, seen = PolicyAgent.batch, []

    def spy(self: PolicyAgent, *given: Any, **more: Any) -> Minibatch:
        batch = prepare(self, *given, **more)
        seen.append(copy.deepcopy(batch))  # the next rollout overwrites the arrays
        return batch

    monkeypatch.setattr(PolicyAgent, "batch", spy)
    return seen


def noise(num_envs: int = 4, seed: int = 0) -> Noise:
    return Noise(VECTOR, num_envs, seed)


class Recorded:
    """A wrapper of a world that keeps all observations, actions and steps.

    The world gets the first component of continuous actions.
    """

    def __init__(self, world: Any) -> None:
        self._world = world
        self.seen: list[NDArray] = []
        self.actions: list[NDArray] = []
        self.steps: list[Step] = []

    @property
    def observation(self) -> NDArray:
        return self._world.observation

    def step(self, action: NDArray) -> Step:
        self.seen.append(self.observation)
        self.actions.append(np.asarray(action))
        self.steps.append(self._world.step(self.actions[-1].reshape(len(action), -1)[:, 0]))
        return self.steps[-1]


class Bandit:
    """Environment with episodes of one step whose reward is `pay(action)`."""

    def __init__(self, pay: object, num_envs: int) -> None:
        self._pay, self.observation = pay, np.ones((num_envs, 1), np.float32)

    def step(self, action: np.ndarray) -> Step:
        always, never = np.ones(len(action), np.bool_), np.zeros(len(action), np.bool_)
        reward = np.array([self._pay(a) for a in action], np.float32)  # type: ignore[operator]
        return Step(self.observation, self.observation, reward, always, never, always)
