"""Tests that off-policy actor-critics find the known optima of a bandit and a linear-quadratic regulator."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from dqn_cases import play
from replay_actor_critic_cases import build, config_of

from labrl.agents.agent import Observation
from labrl.step import Episode, Step

pytestmark = pytest.mark.extended

LEARNING = ("agent.batch_size=64", "agent.learning_starts=400", "agent.updates_per_frame=0.25", "~agent.lr")
FALLING = "+agent.lr={kind: cosine, start: 1e-2, end: 0.0, horizon: 4400}"
ACTION = gym.spaces.Box(-2, 2, (1,), np.float32)


class Bandit:
    """Bandit in which a continuous action a pays -4 (a / 2 - 0.3)^2, and a discrete one pays its number."""

    SPACE = gym.spaces.Box(0, 1, (1,), np.float32)

    def __init__(self, num_envs: int) -> None:
        self.observation = np.ones((num_envs, 1), np.float32)

    def step(self, action: np.ndarray) -> Step:
        n, yes, no = len(action), np.ones(len(action), np.bool_), np.zeros(len(action), np.bool_)
        box = action.ndim == 2
        reward = -4 * (action[:, 0] / 2 - 0.3) ** 2 if box else action.astype(np.float64)
        episodes = [Episode(i, 0, 0, 0.0, 1, False) for i in range(n)]
        return Step(self.observation, self.observation, reward.astype(np.float32), yes, no, yes, episodes)


class Regulator:
    """System x' = x + 0.5 a with cost x^2 + 0.5 a^2, whose episodes are truncated after 3 steps."""

    SPACE = gym.spaces.Box(-9, 9, (1,), np.float32)
    DISCOUNT = 0.8

    def __init__(self, num_envs: int) -> None:
        self._rng = np.random.default_rng(0)
        self._x, self._age = self._rng.uniform(-1, 1, num_envs), np.arange(num_envs)

    @property
    def observation(self) -> np.ndarray:
        return self._x[:, None].astype(np.float32)

    def step(self, action: np.ndarray) -> Step:
        a, n = action[:, 0], len(action)
        reward = -(self._x**2 + 0.5 * a**2)
        self._x = self._x + 0.5 * a
        self._age = self._age + 1
        over, following = self._age >= 3, self.observation
        self._x = np.where(over, self._rng.uniform(-1, 1, n), self._x)
        self._age[over] = 0
        episodes = [Episode(int(i), 0, 0, 0.0, 3, True) for i in np.flatnonzero(over)]
        no = np.zeros(n, np.bool_)
        return Step(
            self.observation if episodes else following,
            following,
            reward.astype(np.float32),
            no,
            over,
            over,
            episodes,
        )

    @classmethod
    def best_gain(cls) -> float:
        """Return the gain k of the optimal controller a = -k x, found by iterating the Riccati equation."""
        p = 1.0
        for _ in range(200):
            k = cls.DISCOUNT * 0.5 * p / (0.5 + cls.DISCOUNT * 0.25 * p)
            p = 1 + cls.DISCOUNT * p * (1 - 0.5 * k)
        return k


@pytest.mark.parametrize(
    "agent", ["sac", "crossq", "tqc", "td3", pytest.param("ddpg", marks=pytest.mark.matrix)]
)
def test_agents_find_the_optimal_gain_of_a_regulator(agent: str) -> None:
    """With quadratic values, the mean of the optimal Gaussian policy is the optimal deterministic action."""
    overrides = [*LEARNING, FALLING, f"agent.gamma={Regulator.DISCOUNT}"]
    overrides += ["agent.temperature=0.1"] if agent in ("sac", "crossq", "tqc") else ["agent.noise.std=0.3"]
    overrides += ["agent.policy_delay=1"] if agent == "crossq" else ["agent.target.tau=0.05"]
    player, clock, _ = build(config_of(agent, *overrides), ACTION, Regulator.SPACE, num_envs=8)
    play(player, clock, Regulator(8), 450)
    x = np.linspace(-0.8, 0.8, 9, dtype=np.float32)[:, None]
    action = player.evaluation_action(Observation(x), np.random.default_rng(0))
    assert float((action * x).sum() / (x * x).sum()) == pytest.approx(-Regulator.best_gain(), abs=0.2)


def test_fixed_temperature_gives_the_optimal_continuous_distribution() -> None:
    """The optimal density of u = a / 2 is proportional to exp(-4 (u - 0.3)^2 / 0.08): mean 0.3, std 0.1."""
    overrides = [*LEARNING, FALLING, "agent.temperature=0.08", "agent.target.tau=0.05"]
    player, clock, _ = build(config_of("sac", *overrides), ACTION, Bandit.SPACE, num_envs=8)
    play(player, clock, Bandit(8), 450)
    look = np.ones((4000, 1), np.float32)
    actions = player.act(Observation(look)) / 2
    assert actions.mean() == pytest.approx(0.3, abs=0.05)
    assert actions.std() == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("agent", ["sac", pytest.param("crossq", marks=pytest.mark.matrix)])
def test_fixed_temperature_gives_the_optimal_discrete_distribution(agent: str) -> None:
    """The optimal probabilities of actions that pay 0, 1 and 2 are proportional to exp(r / temperature).

    CrossQ runs only under `make exact`, because it chooses discrete actions with the same code as SAC.
    """
    overrides = [*LEARNING, FALLING, "agent.temperature=0.8", "agent.target_entropy=null"]
    overrides += ["agent.target.tau=0.05"] if agent == "sac" else ["agent.policy_delay=1"]
    player, clock, _ = build(config_of(agent, *overrides), gym.spaces.Discrete(3), Bandit.SPACE, num_envs=8)
    play(player, clock, Bandit(8), 550)
    drawn = player.act(Observation(np.ones((4000, 1), np.float32)))
    best = np.exp(np.arange(3) / 0.8)
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 4000, best / best.sum(), atol=0.05)


@pytest.mark.parametrize("kind", ["box", "choice"])
def test_learned_temperature_brings_the_entropy_to_its_target(kind: str) -> None:
    action, target = (ACTION, -1.0) if kind == "box" else (gym.spaces.Discrete(3), 0.5)
    overrides = [*LEARNING, FALLING, f"agent.target_entropy={target}", "agent.target.tau=0.05"]
    player, clock, _ = build(config_of("sac", *overrides), action, Bandit.SPACE, num_envs=8)
    play(player, clock, Bandit(8), 500)
    assert player.metrics()["entropy"] == pytest.approx(target, abs=0.15)
    assert 0 < player.metrics()["temperature"] != 1
    if kind == "choice":
        # If probabilities are proportional to exp(r / alpha), the target entropy determines alpha.
        p = np.exp(np.arange(3) / player.metrics()["temperature"])
        p /= p.sum()
        assert -(p * np.log(p)).sum() == pytest.approx(target, abs=0.15)
