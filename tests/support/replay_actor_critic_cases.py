"""Off-policy actor-critic agents built from their YAML, and minibatches of random transitions."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from labrl.agents.agent import Agent
from labrl.clock import Clock
from labrl.config.compose import compose, resolve
from labrl.config.schema import TrialConfig
from labrl.learning.compute import Compute
from labrl.memory import Transitions
from labrl.networks.critics import Critics
from labrl.seeding import Streams
from labrl.spaces import Spaces

VECTOR = gym.spaces.Box(-5, 5, (3,), np.float32)
BOX = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
CHOICE = gym.spaces.Discrete(3)
CONTINUOUS = ("sac", "crossq", "tqc", "td3", "ddpg", "td3_bc", "iql")
KINDS = [*((agent, BOX) for agent in CONTINUOUS), ("sac", CHOICE), ("crossq", CHOICE), ("iql", CHOICE)]
"""Every agent with every action space that it supports."""


@cache
def config_of(agent: str, *overrides: str) -> TrialConfig:
    """Return the configuration of `labrl agent=<agent> <overrides>` with small networks and minibatches."""
    hidden = "hidden" if agent == "crossq" else "mlp.hidden"
    small = ["preset=none", f"agent.network.torso.{hidden}=[16,16]", "agent.memory.capacity=5000"]
    return resolve(
        compose([f"agent={agent}", *small, "agent.batch_size=16", "agent.learning_starts=40", *overrides])
    )


def build(
    config: TrialConfig,
    action: gym.Space = BOX,
    observation: gym.Space = VECTOR,
    num_envs: int = 4,
    num_threads: int = 1,
    precision: str = "fp32",
) -> tuple[Any, Clock, Streams]:
    """Build the agent of a configuration for these spaces, with its clock and its random streams."""
    clock, streams = Clock(10**6), Streams(3)
    agent = config.agent.build(
        spaces=Spaces(observation, action, num_envs),
        clock=clock,
        streams=streams,
        compute=Compute.choose("cpu", precision, num_threads),
    )
    return agent, clock, streams


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


def disturb(agent: Agent) -> None:
    """Add different noise to the weights of each network, so that targets no longer equal their sources."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in agent.modules().values():
            for weight in module.parameters():
                weight.add_(0.1 * torch.randn(weight.shape, generator=draw))


def gaussian(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Compute tanh of a Gaussian sample and its log-density by PyTorch's distributions."""
    mean, log_std = outputs.chunk(2, dim=1)
    base = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    squashed = torch.distributions.TransformedDistribution(
        base, torch.distributions.TanhTransform(cache_size=1)
    )
    action = torch.tanh(base.loc + base.scale * noise)
    return action, squashed.log_prob(action).sum(1)


def taken(critics: Critics, batch: Transitions) -> Tensor:
    """Compute the critics' values of the actions taken. [critics, batch]"""
    values = critics(batch.observation, batch.action)
    if values.dim() == 3:
        return torch.stack([value[torch.arange(len(value)), batch.action] for value in values])
    return values


def adam(module: torch.nn.Module, lr: float = 1e-2) -> torch.optim.Adam:
    return torch.optim.Adam(module.parameters(), lr=lr, eps=1e-8)


def assert_same(one: torch.nn.Module, other: torch.nn.Module) -> None:
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
