"""Tests of exploration: probabilities of actions, noise of actions, and state-dependent noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from agent_cases import BOX, Bandit, build
from numpy.typing import NDArray
from refusals import refused

from labrl.agents.agent import Observation
from labrl.agents.parts.exploration import (
    Boltzmann,
    BoltzmannConfig,
    EpsilonGreedy,
    EpsilonGreedyConfig,
    Exploration,
    NetworkNoise,
    NetworkNoiseConfig,
    Values,
    exploration_class,
)
from labrl.agents.parts.noise import (
    GaussianNoise,
    GaussianNoiseConfig,
    OrnsteinUhlenbeckNoise,
    OrnsteinUhlenbeckNoiseConfig,
)
from labrl.component import Component
from labrl.config.compose import compose, resolve
from labrl.config.validate import dataclass_of
from labrl.errors import Code
from labrl.networks.layers import ExploringHead, Float32Linear
from labrl.schedules import LinearSchedule
from labrl.trial.create import check

VALUES = np.array([[0.0, 1.0, 0.5]] * 4, np.float32)
FALLING = LinearSchedule(kind="linear", start=1.0, end=0.0, horizon=100, warmup=0)


def epsilon_greedy(epsilon: Any) -> EpsilonGreedy:
    return EpsilonGreedy(EpsilonGreedyConfig(epsilon=epsilon))


def boltzmann(temperature: float) -> Boltzmann:
    return Boltzmann(BoltzmannConfig(temperature=temperature))


SOFTMAX = np.exp(VALUES[0] / 0.5) / np.exp(VALUES[0] / 0.5).sum()


@pytest.mark.parametrize(
    ("policy", "scale", "expected"),
    [
        (epsilon_greedy(0.0), 1, [0, 1, 0]),
        (epsilon_greedy(0.3), 1, [0.1, 0.8, 0.1]),
        (epsilon_greedy(1.0), 1, [1 / 3] * 3),
        (boltzmann(0.5), 1, SOFTMAX),
        (boltzmann(0.0), 1, [0, 1, 0]),
        (boltzmann(1e-6), 1e6, [0, 1, 0]),
        (NetworkNoise(NetworkNoiseConfig()), 1, [0, 1, 0]),
    ],
)
def test_actions_have_the_probabilities_of_the_exploration_in_each_environment(
    policy: Exploration, scale: float, expected: NDArray
) -> None:
    values, rng = Values(lambda: VALUES * scale, (4, 3)), np.random.default_rng(0)
    actions = np.array([policy.choose(values, 0, rng) for _ in range(3000)])
    shares = (actions[:, :, None] == np.arange(3)).mean(0)
    np.testing.assert_allclose(shares, [expected] * 4, atol=0.03)
    if expected[0] > 0:
        assert np.abs(np.corrcoef((actions == 1).T) - np.eye(4)).max() < 0.06, (
            "environments depend on each other"
        )
    if policy.TRAITS.probabilities:
        np.testing.assert_allclose(policy.probabilities(VALUES * scale, 0), [expected] * 4, atol=1e-6)


def test_invalid_actions_have_no_probability() -> None:
    values = np.array([[1.0, 2.0, -np.inf], [0.0, 0.5, 1.0]])
    np.testing.assert_allclose(
        epsilon_greedy(0.3).probabilities(values, 0), [[0.15, 0.85, 0], [0.1, 0.1, 0.8]]
    )
    assert boltzmann(0.5).probabilities(values, 0)[0, 2] == 0


def test_epsilon_follows_its_schedule_and_random_actions_compute_no_values() -> None:
    def fail() -> NDArray:
        raise AssertionError("random actions must not compute action values")

    policy, rng = epsilon_greedy(FALLING), np.random.default_rng(0)
    assert [policy.strength(frame) for frame in (0, 25, 100)] == [1.0, 0.75, 0.0]
    policy.choose(Values(fail, (4, 3)), 0, rng)
    assert policy.choose(Values(lambda: VALUES, (4, 3)), 100, rng).tolist() == [1] * 4


def test_class_that_is_not_an_exploration_is_refused() -> None:
    component = dataclass_of(Component, {"_target_": "own_parts.NoAgent"}, "agent.exploration")
    with refused("target", "agent.exploration", "own_parts.NoAgent"):
        exploration_class(component)


def test_gaussian_noise_has_scheduled_standard_deviation() -> None:
    noise, rng = GaussianNoise(GaussianNoiseConfig(std=FALLING), 1000, 2), np.random.default_rng(0)
    for frame in (0, 50, 100):
        assert noise.sample(frame, rng).std() == pytest.approx(noise.strength(frame), rel=0.05)
    assert noise.strength(50) == 0.5


def test_ornstein_uhlenbeck_noise_has_stationary_variance_and_correlation() -> None:
    config = OrnsteinUhlenbeckNoiseConfig(std=0.2, theta=0.1)
    noise, rng = OrnsteinUhlenbeckNoise(config, 4000, 1), np.random.default_rng(0)
    past = [noise.sample(0, rng) for _ in range(80)]
    variance = 0.2**2 / (1 - 0.9**2)
    assert past[-1].var() == pytest.approx(variance, rel=0.1)
    assert np.mean(past[-1] * past[-6]) == pytest.approx(0.9**5 * variance, rel=0.1)


def test_ornstein_uhlenbeck_noise_restarts_with_an_episode() -> None:
    noise = OrnsteinUhlenbeckNoise(OrnsteinUhlenbeckNoiseConfig(std=0.2, theta=0.0), 3, 2)
    before = noise.sample(0, np.random.default_rng(0)).copy()
    noise.begin(np.array([True, False, False]))
    after = noise.sample(0, np.random.default_rng(1))
    step = np.random.default_rng(1).standard_normal((3, 2), np.float32) * np.float32(0.2)
    np.testing.assert_allclose(after[0], step[0], rtol=1e-6)
    np.testing.assert_allclose(after[1:], (before + step)[1:], rtol=1e-5)


SDE = "agent.sde={steps: 3, log_std_init: -1}"
REPLAY = ("agent.warmup_actions=policy",)
EXPLORING = {
    "ppo": (),
    "a2c": ("agent.horizon=8",),
    "reinforce": (),
    "sac": REPLAY,
    "tqc": REPLAY,
    "crossq": REPLAY,
}


def test_state_dependent_noise_has_the_variance_of_the_paper() -> None:
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
    assert torch.isfinite(head(torch.zeros(3, 5), eps)).all()


@pytest.mark.parametrize("agent", EXPLORING)
def test_same_state_gives_the_same_action_until_the_noise_is_drawn_again(agent: str) -> None:
    player, _, _ = build(agent, SDE, *EXPLORING[agent], observation=Bandit.SPACE, action=BOX)
    world, actions = Bandit(lambda _: 0, 4), []
    seen = Observation(world.observation)
    for _ in range(6):
        actions.append(player.act(seen))
        player.observe(world.step(actions[-1]))
    for one, other in ((0, 1), (0, 2), (3, 5)):
        assert (actions[one] == actions[other]).all()
    assert (actions[0] != actions[3]).any(axis=1).all()
    assert len(np.unique(actions[0], axis=0)) == 4, "each environment has noise of its own"
    other = player.evaluation_action(seen, np.random.default_rng(0))
    assert player.greedy_action(seen).shape == other.shape == (4, 2)


@pytest.mark.parametrize(
    ("overrides", "code", "key"),
    [
        (["agent=ppo", "env=cartpole", SDE], "unsupported", "agent.sde"),
        (["agent=sac", "env=cartpole", SDE], "unsupported", "agent.sde"),
        (["agent=ppo", "env=pendulum", SDE, "agent.action_bounds=beta"], "contradiction", "agent.sde"),
        (["agent=ppo", "env=pendulum", SDE, "agent.log_std_init=-1"], "contradiction", "agent.log_std_init"),
        (["agent=ppo", "env=pendulum", "agent.sde={steps: 0, log_std_init: 0}"], "range", "agent.sde.steps"),
        (["agent=ppo", "env=pendulum", "agent.sde={steps: 3}"], "missing", "agent.sde.log_std_init"),
    ],
)
def test_state_dependent_exploration_without_meaning_is_refused(
    overrides: list[str], code: Code, key: str
) -> None:
    with refused(code, key):
        check(resolve(compose(["preset=none", *overrides])))
