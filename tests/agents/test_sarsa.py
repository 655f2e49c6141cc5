"""Tests of Sarsa: lambda-return targets, and convergence to the values of the acting policy."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import Chain, minibatches, play
from numpy.typing import NDArray
from on_policy_cases import Recorded, build, noise

from labrl.agents.agent import Observation
from labrl.agents.parts.exploration import Boltzmann, BoltzmannConfig, EpsilonGreedy, EpsilonGreedyConfig

SMALL = "agent.network.torso.mlp.hidden=[32]"


def values_of_policy(left: float) -> NDArray:
    """Compute Q of the policy that goes left with probability `left` in every state. [states, actions]"""
    q = np.zeros((Chain.STATES, 2))
    for _ in range(200):
        value = left * q[:, 0] + (1 - left) * q[:, 1]
        back = 0.05 + Chain.DISCOUNT * value[np.maximum(np.arange(Chain.STATES) - 1, 0)]
        on = np.append(Chain.DISCOUNT * value[1:], 1.0)
        q = np.stack([back, on], axis=1)
    return q


@pytest.mark.parametrize("expected", [False, True])
def test_targets_are_lambda_returns_of_the_actions_taken(
    expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["agent.horizon=6", "agent.trace_decay=0.7", "agent.gamma=0.9", f"agent.expected={expected}"]
    agent, clock, _ = build("sarsa", *overrides, SMALL, "agent.exploration.epsilon=0.5", num_envs=1)
    world, network = Recorded(noise(1, seed=2)), copy.deepcopy(agent.modules()["q_network"])
    batches = minibatches(monkeypatch)
    play(agent, clock, world, 7)
    (batch,) = batches
    actions = [int(action[0]) for action in world.actions]
    assert batch.action.tolist() == actions[:6]

    def q(observation: NDArray) -> NDArray:
        with torch.no_grad():
            return network(torch.from_numpy(observation)).outputs[0, :, 0].numpy()

    def worth(observation: NDArray, action: int) -> float:
        values = q(observation)
        return float(0.5 * values.max() + 0.5 * values.mean()) if expected else float(values[action])

    found, later = [], None
    for t in reversed(range(6)):
        step = world.steps[t]
        if step.terminated[0]:
            next_return = 0.0
        elif step.truncated[0]:
            next_return = None  # depends on an action that the agent draws for the last state
        else:
            bootstrap = worth(step.next_observation, actions[t + 1])
            next_return = bootstrap if later is None else 0.3 * bootstrap + 0.7 * later
        if next_return is None and expected:
            next_return = worth(step.next_observation, 0)
        later = None if next_return is None else float(step.reward[0]) + 0.9 * next_return
        found.append(later)
        if later is None:
            later = float(batch.value_target[t])
    for ours, target in zip(batch.value_target.tolist(), found[::-1], strict=True):
        assert target is None or ours == pytest.approx(target, abs=1e-4)


@pytest.mark.parametrize(
    "overrides", [("agent.expected=true", "agent.trace_decay=0"), ("agent.trace_decay=0.9",)], ids=str
)
def test_values_converge_to_those_of_the_acting_policy(overrides: tuple[str, ...]) -> None:
    """Compare with the values of the random policy, which differ clearly from the best ones."""
    decaying = "agent.lr={kind: linear, start: 1e-2, end: 1e-4, horizon: 7000}"
    overrides = (
        *overrides,
        "agent.exploration.epsilon=1.0",
        "agent.gamma=0.8",
        "agent.horizon=8",
        decaying,
        SMALL,
    )
    actions = gym.spaces.Discrete(2)
    agent, clock, _ = build("sarsa", *overrides, observation=Chain.SPACE, action=actions, num_envs=8)
    play(agent, clock, Chain(8), 1000)
    with torch.no_grad():
        found = agent.modules()["q_network"](torch.eye(Chain.STATES)).outputs.squeeze(2).numpy()
    exact = values_of_policy(0.5)
    np.testing.assert_allclose(found, exact, atol=0.08)
    assert np.abs(Chain.best_values() - exact).max() > 0.2


def test_action_after_an_update_was_chosen_before_it() -> None:
    agent, clock, _ = build("sarsa", "agent.horizon=4", SMALL)
    play(agent, clock, noise(), 3)
    assert agent.state_dict()["next_action"] is None
    play(agent, clock, noise(), 1)
    chosen = agent.state_dict()["next_action"].copy()
    np.testing.assert_array_equal(agent.act(Observation(noise().observation)), chosen)
    assert agent.state_dict()["next_action"] is None


def test_exploration_gives_the_probabilities_of_its_actions() -> None:
    values = np.array([[1.0, 2.0, -np.inf], [0.0, 0.5, 1.0]])
    greedy = EpsilonGreedy(EpsilonGreedyConfig(epsilon=0.3)).probabilities(values, 0)
    np.testing.assert_allclose(greedy, [[0.15, 0.85, 0], [0.1, 0.1, 0.8]])
    soft = Boltzmann(BoltzmannConfig(temperature=0.5)).probabilities(values, 0)
    np.testing.assert_allclose(soft, torch.softmax(torch.from_numpy(values) / 0.5, 1).numpy())
    np.testing.assert_allclose(Boltzmann(BoltzmannConfig(temperature=0.0)).probabilities(values, 0).max(1), 1)
