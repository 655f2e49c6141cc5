"""Tests that every agent of the DQN family, as set by its YAML, learns the optimal values of toy MDPs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from dqn_cases import FAMILY, Chain, Fork, build, config_of, play
from numpy.typing import NDArray

from labrl.agents.agent import Observation
from labrl.agents.dqn import DQN
from labrl.config.schema import TrialConfig

pytestmark = pytest.mark.extended

LEARNING = (
    "agent.gamma=0.8",
    "agent.batch_size=64",
    "agent.learning_starts=800",
    "agent.updates_per_frame=0.25",
    "agent.target.every=64",
    "agent.lr=5e-3",
    "agent.optimizer.eps=1e-8",
)
RANDOM = ("agent/exploration=epsilon_greedy", "agent.exploration.epsilon=1.0")


def learned_values(config: TrialConfig, agent: DQN, states: int) -> NDArray:
    """Return the action values that an agent has learned. [states, actions]"""
    value = config.agent.config.value.build(device=torch.device("cpu"))
    with torch.inference_mode():
        return value.expected(agent.modules()["q_network"](torch.eye(states)).outputs).numpy()


def learn(world: Any, agent_name: str, *overrides: str, steps: int) -> NDArray:
    config = config_of(agent_name, *LEARNING, *overrides)
    agent, clock, _ = build(config, world.SPACE, num_envs=8)
    play(agent, clock, world(8), steps)
    return learned_values(config, agent, world.STATES)


@pytest.mark.parametrize(
    "agent",
    # Rainbow takes as long as all other agents together, and the next test covers it.
    [pytest.param(agent, marks=pytest.mark.matrix if agent == "rainbow" else ()) for agent in FAMILY],
)
def test_optimal_values_are_learned_from_random_actions(agent: str) -> None:
    """Use 1-step returns, because longer ones would contain the rewards of the random policy."""
    found = learn(Chain, agent, *RANDOM, "agent.n_step=1", steps=300)
    np.testing.assert_allclose(found, Chain.best_values(), atol=0.05)


@pytest.mark.parametrize("agent", ["rainbow", "rainbow_lite"])
def test_n_step_returns_give_optimal_values_when_policy_independent(
    agent: str,
) -> None:
    assert config_of(agent).agent.config.n_step == 3
    found = learn(Fork, agent, *RANDOM, steps=250)
    np.testing.assert_allclose(found, Fork.best_values(), atol=0.05)


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
def test_agent_learns_the_optimal_action_with_its_own_exploration(agent: str) -> None:
    config = config_of(agent, *LEARNING)
    player, clock, _ = build(config, Fork.SPACE, num_envs=8)
    world = Fork(8)
    play(player, clock, world, 400)
    first = np.eye(Fork.STATES, dtype=np.float32)[:1]
    assert player.evaluation_action(Observation(first), np.random.default_rng(0)).tolist() == [1]


@pytest.mark.parametrize(
    "overrides", [("agent.value.loss=squared",), ("agent/target=polyak", "agent.target.tau=0.05")]
)
def test_squared_loss_and_polyak_target_learn_optimal_values(overrides: tuple[str, ...]) -> None:
    learning = [override for override in LEARNING if not override.startswith("agent.target")]
    config = config_of("dqn", *learning, *RANDOM, *overrides)
    agent, clock, _ = build(config, Chain.SPACE, num_envs=8)
    play(agent, clock, Chain(8), 300)
    np.testing.assert_allclose(learned_values(config, agent, Chain.STATES), Chain.best_values(), atol=0.05)


def test_boltzmann_exploration_learns_optimal_values() -> None:
    overrides = ("agent/exploration=boltzmann", "agent.exploration.temperature=1.0")
    np.testing.assert_allclose(learn(Chain, "dqn", *overrides, steps=300), Chain.best_values(), atol=0.05)
