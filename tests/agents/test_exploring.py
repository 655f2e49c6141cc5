"""State-dependent exploration: its variance, how long its noise stays, and what refuses it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import Rewarding, play
from on_policy_cases import BOX, VECTOR, Bandit, build
from refusals import refused

from labrl.agents.agent import Observation
from labrl.config.compose import compose, resolve
from labrl.errors import Code
from labrl.networks.layers import ExploringHead, Float32Linear
from labrl.trial.create import check

SDE = "agent.sde={steps: 3, log_std_init: -1}"
AGENTS: dict[str, tuple[str, ...]] = {
    "ppo": ("agent.horizon=8", "agent.batch_size=16"),
    "a2c": (),
    "reinforce": (),
    "sac": ("agent.learning_starts=0", "agent.batch_size=8", "agent.memory.capacity=64"),
    "tqc": ("agent.learning_starts=0", "agent.batch_size=8", "agent.memory.capacity=64"),
    "crossq": ("agent.learning_starts=0", "agent.batch_size=8", "agent.memory.capacity=64"),
}


def made(agent: str, *overrides: str, **spaces: Any) -> Any:
    return build(agent, *AGENTS[agent], SDE, *overrides, **{"action": BOX, **spaces})


def test_noise_of_actions_has_the_variance_of_the_paper() -> None:
    torch.manual_seed(0)
    head = ExploringHead([], Float32Linear(5, 2), 0.0)
    with torch.no_grad():
        head.log_std.copy_(torch.randn(5, 2) - 1)
    features = torch.randn(3, 5, requires_grad=True)
    parameters = head(features)
    std = (features.square() @ head.log_std.exp().square()).sqrt()
    torch.testing.assert_close(parameters[:, 2:].exp(), std, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(parameters[:, :2], torch.nn.Sequential.forward(head, features))
    # (theta * eps)^T z, for every row with numbers of its own.
    eps = torch.randn(3, 5, 2)
    drawn = head(features, eps)
    assert torch.equal(drawn[:, :4], parameters)
    expected = torch.einsum("bi,ij,bij->bj", features, head.log_std.exp(), eps)
    torch.testing.assert_close(drawn[:, 4:] * std, expected, rtol=1e-3, atol=1e-4)
    (slope,) = torch.autograd.grad(parameters[:, 2:].sum(), features, retain_graph=True, allow_unused=True)
    assert slope is None or not slope.any(), "the noise must not change the features"
    (slope,) = torch.autograd.grad(parameters[:, 2:].sum(), head.log_std)
    assert slope.all()


def test_noise_is_finite_where_all_features_are_zero() -> None:
    head = ExploringHead([], Float32Linear(5, 2), -20.0)
    assert torch.isfinite(head(torch.zeros(3, 5), torch.randn(3, 5, 2))).all()


@pytest.mark.parametrize("agent", AGENTS)
def test_same_state_gives_the_same_action_until_the_noise_is_drawn_again(agent: str) -> None:
    replays = agent in ("sac", "tqc", "crossq")
    player, _, _ = made(agent, *(["agent.warmup_actions=policy"] if replays else []))
    seen = Observation(np.ones((4, 3), np.float32))
    actions = np.array([player.act(seen) for _ in range(6)]) if agent != "reinforce" else held(player, seen)
    assert (actions[0] == actions[1]).all()
    assert (actions[0] == actions[2]).all()
    assert (actions[0] != actions[3]).any(axis=1).all()
    assert (actions[3] == actions[5]).all()
    assert len(np.unique(actions[0], axis=0)) == 4, "each environment has noise of its own"
    other = player.evaluation_action(seen, np.random.default_rng(0))
    assert player.greedy_action(seen).shape == other.shape == (4, 2)


def held(player: Any, seen: Observation) -> np.ndarray:
    """Return the actions of six steps of an agent that stores whole episodes."""
    world, actions = Rewarding(VECTOR, 4), []
    for _ in range(6):
        actions.append(player.act(seen))
        player.observe(world.step(actions[-1]))
    return np.array(actions)


@pytest.mark.extended
@pytest.mark.parametrize("agent", ["ppo", "sac"])
def test_agent_learns_with_state_dependent_exploration(agent: str) -> None:
    space = gym.spaces.Box(0, 10, (1,), np.float32)
    fast = {
        "ppo": ["agent.lr=0.01", "agent.batch_size=32", "agent.action_bounds=rescale"],
        "sac": ["agent.lr=0.01", "agent.memory.capacity=4000", "agent.batch_size=64", "agent.gamma=0"],
    }[agent]
    observation = gym.spaces.Box(0, 1, (1,), np.float32)
    player, clock, _ = made(agent, *fast, observation=observation, action=space, num_envs=8)
    play(player, clock, Bandit(lambda a: -abs(float(a[0]) - 2.5), 8), 240 if agent == "ppo" else 60)
    chosen = player.greedy_action(Observation(np.ones((1, 1), np.float32)))
    assert float(chosen[0, 0]) == pytest.approx(2.5, abs=1)


@pytest.mark.parametrize(
    ("overrides", "code", "key"),
    [
        (["agent=ppo", "env=cartpole"], "unsupported", "agent.sde"),
        (["agent=sac", "env=cartpole"], "unsupported", "agent.sde"),
        (["agent=ppo", "env=pendulum", "agent.action_bounds=beta"], "contradiction", "agent.sde"),
        (["agent=ppo", "env=pendulum", "agent.log_std_init=-1"], "contradiction", "agent.log_std_init"),
        (["agent=ppo", "env=pendulum", "agent.sde.steps=0"], "range", "agent.sde.steps"),
        (
            ["agent=ppo", "env=pendulum", "agent.sde=null", "agent.sde={steps: 3}"],
            "missing",
            "agent.sde.log_std_init",
        ),
        (["agent=ppo", "env=pendulum", "agent.sde=true"], "type", "agent.sde"),
        (["agent=td3", "env=pendulum"], "unknown-key", "agent.sde"),
    ],
)
def test_state_dependent_exploration_without_meaning_is_refused(
    overrides: list[str], code: Code, key: str
) -> None:
    sde = [SDE] if "agent=td3" not in overrides else [f"+{SDE}"]
    with refused(code, key):
        check(resolve(compose(["preset=none", *overrides[:2], *sde, *overrides[2:]])))
