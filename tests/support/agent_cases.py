"""Agents built from their YAML with small networks, worlds in which they play, and what they learn from."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.agent import Agent, Observation
from labrl.agents.policy_agent import PolicyAgent
from labrl.clock import Clock
from labrl.config.compose import compose, resolve
from labrl.config.schema import TrialConfig
from labrl.learning.compute import Compute
from labrl.learning.learner import Learner
from labrl.memory import Minibatch, Transitions
from labrl.networks.actor_critic import ActorCritic
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.step import Episode, Step

VECTOR = gym.spaces.Box(-5, 5, (3,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (4, 36, 36), np.uint8)
DISCRETE = gym.spaces.Discrete(3)
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
SWITCHES = gym.spaces.MultiBinary(3)
CHOICES = gym.spaces.MultiDiscrete([2, 3])

FAMILY = ("dqn", "double_dqn", "dueling_dqn", "c51", "qr_dqn", "rainbow", "rainbow_lite")
"""Agents of the DQN family."""
CONTINUOUS = ("sac", "crossq", "tqc", "td3", "ddpg", "td3_bc", "iql")
"""Off-policy actor-critics."""


def small(agent: str) -> list[str]:
    """Return overrides that make the networks, replay buffer and minibatches of agents above small."""
    if agent not in (*FAMILY, *CONTINUOUS):
        return []
    torso = "agent.network.torso"
    replay = ["agent.memory.capacity=5000", "agent.batch_size=16", "agent.learning_starts=40"]
    if agent == "crossq":
        return [*replay, f"{torso}.hidden=[16,16]", f"{torso}.features=16"]
    if agent in CONTINUOUS:
        return [*replay, f"{torso}.mlp.hidden=[16,16]", f"{torso}.cnn.features=16"]
    replay += ["agent/network=mlp_256", f"{torso}.mlp.hidden=[32]", f"{torso}.cnn.features=16"]
    if agent in ("c51", "rainbow"):
        replay += ["agent.value.v_min=-0.5", "agent.value.v_max=1.5", "agent.value.atoms=21"]
    if agent == "qr_dqn":
        replay += ["agent.value.quantiles=11"]
    if agent in ("dueling_dqn", "rainbow", "rainbow_lite"):
        replay += ["agent.network.head=[32]"]
    return replay


@cache
def config_of(agent: str, *overrides: str) -> TrialConfig:
    """Return the configuration that `labrl agent=<agent> <overrides>` runs with, without presets.

    Networks, replay buffers and minibatches of agents that learn from replay are small.
    """
    return resolve(compose([f"agent={agent}", "preset=none", *small(agent), *overrides]))


def build(
    agent: str | TrialConfig,
    *overrides: str,
    observation: gym.Space = VECTOR,
    action: gym.Space | None = None,
    num_envs: int = 4,
    masked: bool = False,
    compute: Compute | None = None,
) -> tuple[Any, Clock, Streams]:
    """Build an agent, with its clock and its random streams.

    agent: name of the agent, or a configuration; action: space of actions, None for DISCRETE or BOX.
    """
    config = config_of(agent, *overrides) if isinstance(agent, str) else agent
    if action is None:
        kind: Any = config.agent.load()
        action = DISCRETE if kind.fits(DISCRETE) and agent not in CONTINUOUS else BOX
    clock, streams = Clock(10**6), Streams(3)
    player = config.agent.build(
        spaces=Spaces(observation, action, num_envs, masked),
        clock=clock,
        streams=streams,
        compute=compute or cpu(),
    )
    return player, clock, streams


def cpu(num_threads: int = 1, precision: str = "fp32") -> Compute:
    return Compute.choose("cpu", precision, num_threads)


def network_of(agent: Agent) -> ActorCritic:
    """Return the network that holds both the policy and the values."""
    network = agent.modules()["actor_critic"]
    assert isinstance(network, ActorCritic)
    return network


def weights_of(agent: Agent) -> Tensor:
    """Return the parameters of all networks of an agent in one vector. [size]"""
    weights = [weight for module in agent.modules().values() for weight in module.parameters()]
    return torch.cat([weight.detach().flatten() for weight in weights])


def gradient_of(network: nn.Module) -> Tensor:
    """Return the gradients of all parameters of a network in one vector. [size]"""
    gradients = [parameter.grad for parameter in network.parameters()]
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])


def disturb(agent: Agent) -> None:
    """Add different noise to the weights of each network, so that targets no longer equal their sources."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in agent.modules().values():
            for weight in module.parameters():
                weight.add_(0.1 * torch.randn(weight.shape, generator=draw))


def adam(module: nn.Module, lr: float = 1e-2) -> torch.optim.Adam:
    return torch.optim.Adam(module.parameters(), lr=lr, eps=1e-8)


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


def assert_same_gradient(one: nn.Module, other: nn.Module) -> None:
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-6)


def minibatches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that collects every minibatch from which an agent learns."""
    gradient, seen = Learner.gradient, []

    def spy(self: Learner, loss: Any, minibatch: Any, **options: Any) -> Tensor:
        seen.append(minibatch)
        return gradient(self, loss, minibatch, **options)

    monkeypatch.setattr(Learner, "gradient", spy)
    return seen


def rollouts(monkeypatch: pytest.MonkeyPatch) -> list[Minibatch]:
    """Return a list that collects every rollout from which an agent learns, each as one minibatch."""
    prepare, seen = PolicyAgent.batch, []

    def spy(self: PolicyAgent, *given: Any, **more: Any) -> Minibatch:
        batch = prepare(self, *given, **more)
        seen.append(copy.deepcopy(batch))  # the next rollout overwrites the arrays
        return batch

    monkeypatch.setattr(PolicyAgent, "batch", spy)
    return seen


def made_up(action: gym.Space, size: int = 16, seed: int = 0) -> Transitions:
    """Return a random minibatch with importance weights, rewards of both signs and some terminations."""
    draw = torch.Generator().manual_seed(seed)
    if isinstance(action, gym.spaces.Discrete):
        actions = torch.randint(int(action.n), (size,), generator=draw)
    else:
        actions = torch.rand((size, 2), generator=draw) * 2 - 1
    return Transitions(
        torch.randn((size, 3), generator=draw),
        actions,
        torch.randn(size, generator=draw),
        torch.randn((size, 3), generator=draw),
        0.9 * (torch.rand(size, generator=draw) > 0.3).float(),
        torch.rand(size, generator=draw),
        np.arange(size),
    )


def play(agent: Agent, clock: Clock, world: Any, steps: int) -> int:
    """Let the agent act and learn in a world. Returns the number of updates."""
    updates = 0
    for _ in range(steps):
        step = world.step(agent.act(Observation(world.observation)))
        agent.observe(step)
        updates += agent.learn()
        clock.tick(len(step.reward))
    return updates


class Noise:
    """A world with random observations, and random terminations and truncations.

    The reward is the first component of the action.
    """

    def __init__(self, space: gym.Space = VECTOR, num_envs: int = 4, seed: int = 0) -> None:
        self._space, self._num_envs, self._rng = space, num_envs, np.random.default_rng(seed)
        self.observation = self._look()

    def _look(self) -> NDArray:
        shape = (self._num_envs, *(self._space.shape or ()))
        if isinstance(self._space, gym.spaces.Discrete):
            return self._rng.integers(self._space.n, size=shape)
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
        reward = action.reshape(len(action), -1)[:, 0].astype(np.float32)
        return Step(self.observation, following, reward, terminated, truncated, over, episodes)


class Recorded:
    """A wrapper of a world that keeps all observations, actions and steps."""

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
        self.steps.append(self._world.step(self.actions[-1]))
        return self.steps[-1]


class Bandit:
    """Environment with episodes of one step whose reward is `pay(action)`."""

    SPACE = gym.spaces.Box(0, 1, (1,), np.float32)

    def __init__(self, pay: Any, num_envs: int) -> None:
        self._pay, self.observation = pay, np.ones((num_envs, 1), np.float32)

    def step(self, action: np.ndarray) -> Step:
        always, never = np.ones(len(action), np.bool_), np.zeros(len(action), np.bool_)
        reward = np.array([self._pay(a) for a in action], np.float32)
        return Step(self.observation, self.observation, reward, always, never, always)
