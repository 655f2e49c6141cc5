"""Tests of time limits: values bootstrap at a truncation, from the environment to the advantages of PPO."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from env_cases import own_env
from on_policy_cases import network_of, rollouts
from options import options

from labrl.agents.agent import Observation
from labrl.agents.ppo import PPO, PPOConfig
from labrl.clock import Clock
from labrl.envs.make import make_env
from labrl.learning.compute import Compute
from labrl.seeding import Streams
from labrl.spaces import Spaces

DISCOUNT = 0.9


class Forever(gym.Env[np.ndarray, np.int64]):
    """Environment that pays 1 for each step and never ends: the value of every state is 1 / (1 - gamma)."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: np.int64) -> Any:
        return self._observation(), 1.0, False, False, {}

    def _observation(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


@pytest.mark.parametrize("shared", [False, True])
def test_advantages_are_zero_with_exact_values_despite_a_time_limit(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_env(own_env(Forever, max_episode_steps=5, num_envs=3), seed=0, num_threads=1)
    config: PPOConfig = options("agent", "agent=ppo", horizon=23, batch_size=69, gamma=DISCOUNT, lr=0.0)
    config = dataclasses.replace(config, network=dataclasses.replace(config.network, shared=shared))
    spaces = Spaces(env.observation_space, env.action_space, env.num_envs)
    clock, compute = Clock(1000), Compute.choose("cpu", "fp32", 1)
    agent = PPO(config, spaces=spaces, clock=clock, streams=Streams(0), compute=compute)
    with torch.no_grad():
        head = network_of(agent).value_head
        head[-1].weight.zero_()
        head[-1].bias.fill_(1 / (1 - DISCOUNT))
    batches = rollouts(monkeypatch)
    observation, ended = env.reset(), 0
    for _ in range(2 * config.horizon):
        step = env.step(agent.act(Observation(observation)))
        agent.observe(step)
        agent.learn()
        ended += len(step.episodes)
        observation = step.observation
    env.close()
    assert ended == 3 * (2 * config.horizon // 5)
    assert len(batches) == 2
    assert max(float(batch.advantage.abs().max()) for batch in batches) < 1e-4
