"""Tests of PQN: lambda-return targets, and convergence to the known best values of a small task."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import Chain, minibatches, play
from numpy.typing import NDArray
from on_policy_cases import Recorded, build, noise

SMALL = ("agent.network.torso.mlp.hidden=[32]", "agent.batch_size=8", "agent.horizon=8")


def test_targets_are_lambda_returns_of_the_best_values(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [
        "agent.trace_decay=0.7",
        "agent.gamma=0.9",
        "agent.exploration.epsilon=0.5",
        "agent.epochs=1",
    ]
    agent, clock, _ = build("pqn", *SMALL, *overrides, num_envs=1)
    world, network = Recorded(noise(1, seed=2)), copy.deepcopy(agent.modules()["q_network"])
    batches = minibatches(monkeypatch)
    play(agent, clock, world, 8)
    (batch,) = batches

    def best(observation: NDArray) -> float:
        with torch.no_grad():
            return float(network(torch.from_numpy(observation)).outputs.max())

    targets: list[float] = []
    kinds = set()
    for t in reversed(range(8)):
        step = world.steps[t]
        bootstrap = 0.0 if step.terminated[0] else best(step.next_observation)
        follows = targets and not step.episode_over[0]
        kinds |= {"terminated"} if step.terminated[0] else {"truncated"} if step.truncated[0] else set()
        next_return = 0.3 * bootstrap + 0.7 * targets[-1] if follows else bootstrap
        targets.append(float(step.reward[0]) + 0.9 * next_return)
    assert kinds, "no episode ends, so this test does not check the ends of episodes"
    # The rows of the minibatch are in random order, so each is identified by its observation.
    order = [
        int(np.flatnonzero([(world.seen[t][0] == row).all() for t in range(8)])[0])
        for row in batch.observation.numpy()
    ]
    assert sorted(order) == list(range(8))
    assert batch.action.tolist() == [int(world.actions[t][0]) for t in order]
    np.testing.assert_allclose(batch.value_target.numpy(), np.array(targets[::-1])[order], atol=1e-5)


@pytest.mark.extended
def test_pqn_finds_the_best_values_without_a_target_network() -> None:
    decaying = "agent.lr={kind: linear, start: 3e-3, end: 1e-5, horizon: 8000}"
    overrides = ("agent.exploration.epsilon=1.0", "agent.gamma=0.8", "agent.trace_decay=0", decaying)
    actions = gym.spaces.Discrete(2)
    agent, clock, _ = build("pqn", *SMALL, *overrides, observation=Chain.SPACE, action=actions, num_envs=8)
    play(agent, clock, Chain(8), 1000)
    with torch.no_grad():
        found = agent.modules()["q_network"](torch.eye(Chain.STATES)).outputs.squeeze(2).numpy()
    np.testing.assert_allclose(found, Chain.best_values(), atol=0.08)


def test_epoch_uses_every_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, clock, _ = build("pqn", *SMALL, "agent.epochs=3")
    batches = minibatches(monkeypatch)
    updates = play(agent, clock, noise(), 8)
    assert updates == len(batches) == 3 * 4
    for epoch in (batches[:4], batches[4:8], batches[8:]):
        rows = np.concatenate([batch.observation.numpy() for batch in epoch])
        assert len(np.unique(rows, axis=0)) == 32
