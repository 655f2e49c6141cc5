"""Tests that agents, as set by their YAML, find the known optima of small tasks."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_cases import CHOICES, FAMILY, SWITCHES, Bandit, build, play
from numpy.typing import NDArray

from labrl.agents.agent import Observation
from labrl.step import Episode, Step

pytestmark = pytest.mark.extended

TWO = gym.spaces.Discrete(2)
ADAM = "agent/optimizer=adam"


class Walk:
    """A world of a few states, each observed as a unit vector, with two actions and a known optimum."""

    STATES, DISCOUNT, LIMIT = 4, 0.8, 7

    def __init__(self, num_envs: int = 8) -> None:
        self._state, self._age = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)

    @property
    def observation(self) -> NDArray:
        return np.eye(self.STATES, dtype=np.float32)[self._state]

    def step(self, action: NDArray) -> Step:
        self._state, reward, terminated = self.move(self._state, action)
        self._age += 1
        truncated = ~terminated & (self._age == self.LIMIT)
        over, following = terminated | truncated, self.observation
        self._state[over], self._age[over] = 0, 0
        episodes = [Episode(int(i), 0, 0, 0.0, 1, bool(truncated[i])) for i in np.flatnonzero(over)]
        observation = self.observation if episodes else following
        return Step(observation, following, reward.astype(np.float32), terminated, truncated, over, episodes)

    def move(self, state: NDArray, action: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        """Return the next state, the reward, and whether the episode terminates. [num_envs] each"""
        raise NotImplementedError

    @classmethod
    def values(cls, random: bool = False) -> NDArray:
        """Return the values of the best policy, or of the random one. [states, actions]"""
        q, states = np.zeros((cls.STATES, 2)), np.arange(cls.STATES)
        for _ in range(200):
            value = q.mean(1) if random else q.max(1)
            for action in (0, 1):
                following, reward, ended = cls().move(states, np.full(cls.STATES, action))
                q[:, action] = reward + cls.DISCOUNT * value[following] * ~ended
        return q


class Chain(Walk):
    """A chain of states: action 1 moves right, action 0 moves left and pays 0.05.

    Moving right from the last state pays 1 and terminates the episode. An episode is truncated after
    `LIMIT` steps, so its last state keeps its value.
    """

    def move(self, state: NDArray, action: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        right = action == 1
        ended = right & (state == self.STATES - 1)
        following = np.clip(state + np.where(right, 1, -1), 0, self.STATES - 1)
        return following, np.where(right, ended, 0.05), ended


class Fork(Walk):
    """One decision, followed by a corridor in which actions have no effect.

    Action 0 pays 0.4 at once and leads into a corridor that pays nothing; action 1 leads into one that pays 1
    at its end. Uncorrected n-step returns are unbiased here, because only the first action matters.
    """

    STATES = 7

    def move(self, state: NDArray, action: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        reward = np.where(state == 6, 1.0, np.where((state == 0) & (action == 0), 0.4, 0.0))
        following = np.where(state == 0, np.where(action == 1, 4, 1), np.minimum(state + 1, 6))
        return following, reward, (state == 3) | (state == 6)


def played(agent: str, world: Any, steps: int, *overrides: str) -> Any:
    """Return an agent after this number of steps in eight environments."""
    observation = gym.spaces.Box(0, 1, (world.STATES,), np.float32)
    player, clock, _ = build(agent, *overrides, observation=observation, action=TWO, num_envs=8)
    play(player, clock, world(), steps)
    return player


DQN = ("agent.gamma=0.8", "agent.batch_size=64", "agent.learning_starts=800", "agent.updates_per_frame=0.25")
DQN += ("agent.lr=5e-3", "agent.optimizer.eps=1e-8")
EVERY = "agent.target.every=64"
RANDOM = ("agent/exploration=epsilon_greedy", "agent.exploration.epsilon=1.0")
ONE_STEP = (*DQN, EVERY, *RANDOM, "agent.n_step=1")
"""Longer returns would contain the rewards of the random policy."""
ROLLOUTS = ("agent.exploration.epsilon=1.0", "agent.gamma=0.8", "agent.horizon=8")
ROLLOUTS += ("agent.network.torso.mlp.hidden=[32]",)
FALLING = "agent.lr={{kind: linear, start: {}, end: {}, horizon: 8000}}"
SARSA = (*ROLLOUTS, FALLING.format("1e-2", "1e-4"))
PQN = (*ROLLOUTS, FALLING.format("3e-3", "1e-5"), "agent.batch_size=8", "agent.trace_decay=0")


@pytest.mark.parametrize(
    ("agent", "overrides", "world", "steps"),
    [
        # Rainbow takes as long as all other agents together, and Fork covers it.
        *(
            pytest.param(agent, ONE_STEP, Chain, 300, marks=pytest.mark.matrix if agent == "rainbow" else ())
            for agent in FAMILY
        ),
        ("dqn", (*ONE_STEP, "agent.value.loss=squared"), Chain, 300),
        ("dqn", (*DQN, *RANDOM, "agent/target=polyak", "agent.target.tau=0.05"), Chain, 300),
        (
            "dqn",
            (*DQN, EVERY, "agent/exploration=boltzmann", "agent.exploration.temperature=1.0"),
            Chain,
            300,
        ),
        ("rainbow", (*DQN, EVERY, *RANDOM), Fork, 250),
        ("rainbow_lite", (*DQN, EVERY, *RANDOM), Fork, 250),
        ("pqn", PQN, Chain, 1000),
        ("sarsa", (*SARSA, "agent.trace_decay=0.9"), Chain, 1000),
        ("sarsa", (*SARSA, "agent.expected=true", "agent.trace_decay=0"), Chain, 1000),
    ],
)
def test_action_values_are_those_of_the_best_policy_or_in_sarsa_of_the_acting_one(
    agent: str, overrides: tuple[str, ...], world: Any, steps: int
) -> None:
    player = played(agent, world, steps, *overrides)
    with torch.inference_mode():
        outputs = player.modules()["q_network"](torch.eye(world.STATES)).outputs
    found = player.value.expected(outputs) if agent in FAMILY else outputs.squeeze(2)
    expected = world.values(random=agent == "sarsa")
    np.testing.assert_allclose(found.numpy(), expected, atol=0.05 if agent in FAMILY else 0.08)


FAST = ("agent.lr=0.01", "agent.gamma=0.8")
ACTOR_CRITIC = (*FAST, ADAM, "agent.network.shared=false")


@pytest.mark.parametrize(
    ("agent", "overrides"),
    [
        ("dqn", (*DQN, EVERY)),
        ("rainbow", (*DQN, EVERY)),
        ("a2c", (*ACTOR_CRITIC, "agent.horizon=8")),
        ("a2c", (*ACTOR_CRITIC, "agent.horizon=null", "agent.episodes=8")),
        ("ppo", (*FAST, "agent.horizon=8", "agent.batch_size=32")),
    ],
)
def test_agents_wait_for_the_larger_reward_with_their_own_exploration(
    agent: str, overrides: tuple[str, ...]
) -> None:
    player = played(agent, Fork, 500, *overrides)
    first = np.eye(Fork.STATES, dtype=np.float32)[:1]
    assert player.greedy_action(Observation(first)).tolist() == [1]


BANDIT = {
    "reinforce": ("agent.lr=0.02", "agent.episodes=16"),
    "a2c": ("agent.lr=0.01", ADAM, "agent.horizon=8", "agent.normalize_advantage=true"),
    "ppo": ("agent.lr=0.01", "agent.horizon=8", "agent.batch_size=32"),
    "sac": ("agent.lr=0.01", "agent.batch_size=64", "agent.learning_starts=0", "agent.gamma=0"),
}
FOUR, TEN = gym.spaces.Discrete(4), gym.spaces.Box(0, 10, (1,), np.float32)
SDE = "agent.sde={steps: 3, log_std_init: -1}"


@pytest.mark.parametrize(
    ("agent", "more", "action", "best", "steps"),
    [
        *(("reinforce", [f"agent.baseline={kind}"], FOUR, 2, 100) for kind in ("none", "mean", "value")),
        *((agent, [], SWITCHES, [1, 0, 1], 200) for agent in ("reinforce", "a2c", "ppo")),
        *((agent, [], CHOICES, [1, 2], 200) for agent in ("reinforce", "a2c", "ppo")),
        ("ppo", ["agent.action_bounds=beta"], TEN, [2.5], 240),
        *(
            (agent, [f"agent.action_bounds={bounds}", "agent.log_std_init=-1"], TEN, [2.5], 240)
            for agent in ("ppo", "a2c", "reinforce")
            for bounds in ("clip", "rescale", "squash")
        ),
        ("ppo", ["agent.action_bounds=rescale", SDE], TEN, [2.5], 240),
        ("sac", [SDE], TEN, [2.5], 60),
    ],
)
def test_best_action_of_a_bandit_is_found(
    agent: str, more: list[str], action: gym.Space, best: Any, steps: int
) -> None:
    player, clock, _ = build(
        agent, *BANDIT[agent], *more, observation=Bandit.SPACE, action=action, num_envs=8
    )
    box = isinstance(action, gym.spaces.Box)
    world = Bandit(lambda tried: -abs(tried[0] - best[0]) if box else np.mean(tried == np.array(best)), 8)
    play(player, clock, world, steps)
    (chosen,) = player.greedy_action(Observation(np.ones((1, 1), np.float32)))
    assert action.contains(chosen)
    np.testing.assert_allclose(chosen, best, atol=1 if box else 0)


REPLAY = ("agent.batch_size=64", "agent.learning_starts=400", "agent.updates_per_frame=0.25", "~agent.lr")
REPLAY += ("+agent.lr={kind: cosine, start: 1e-2, end: 0.0, horizon: 4400}",)
AVERAGE = "agent.target.tau=0.05"
ACTION = gym.spaces.Box(-2, 2, (1,), np.float32)


class Regulator:
    """System x' = x + 0.5 a with cost x^2 + 0.5 a^2, whose episodes are truncated after 3 steps."""

    DISCOUNT = 0.8

    def __init__(self, num_envs: int) -> None:
        self._rng = np.random.default_rng(0)
        self._x, self._age = self._rng.uniform(-1, 1, num_envs), np.arange(num_envs)

    @property
    def observation(self) -> np.ndarray:
        return self._x[:, None].astype(np.float32)

    def step(self, action: np.ndarray) -> Step:
        a, n = action[:, 0], len(action)
        reward = -(self._x**2 + 0.5 * a**2).astype(np.float32)
        self._x = self._x + 0.5 * a
        self._age = self._age + 1
        over, following, no = self._age >= 3, self.observation, np.zeros(n, np.bool_)
        self._x = np.where(over, self._rng.uniform(-1, 1, n), self._x)
        self._age[over] = 0
        episodes = [Episode(int(i), 0, 0, 0.0, 3, True) for i in np.flatnonzero(over)]
        observation = self.observation if episodes else following
        return Step(observation, following, reward, no, over, over, episodes)

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
    overrides = [*REPLAY, f"agent.gamma={Regulator.DISCOUNT}"]
    overrides += ["agent.temperature=0.1"] if agent in ("sac", "crossq", "tqc") else ["agent.noise.std=0.3"]
    overrides += ["agent.policy_delay=1"] if agent == "crossq" else [AVERAGE]
    space = gym.spaces.Box(-9, 9, (1,), np.float32)
    player, clock, _ = build(agent, *overrides, observation=space, action=ACTION, num_envs=8)
    play(player, clock, Regulator(8), 450)
    x = np.linspace(-0.8, 0.8, 9, dtype=np.float32)[:, None]
    action = player.evaluation_action(Observation(x), np.random.default_rng(0))
    assert float((action * x).sum() / (x * x).sum()) == pytest.approx(-Regulator.best_gain(), abs=0.2)


def with_rewards(action: gym.Space, agent: str, *overrides: str) -> Any:
    """Let an agent play a bandit whose discrete actions pay their number, and real ones -(a - 0.6)^2."""
    player, clock, _ = build(agent, *REPLAY, *overrides, observation=Bandit.SPACE, action=action, num_envs=8)
    play(player, clock, Bandit(lambda a: a if np.ndim(a) == 0 else -((a[0] - 0.6) ** 2), 8), 550)
    return player


def drawn(player: Any) -> NDArray:
    return player.act(Observation(np.ones((4000, 1), np.float32)))


def test_fixed_temperature_gives_the_optimal_continuous_distribution() -> None:
    """The optimal density of a is proportional to exp(-(a - 0.6)^2 / 0.08): mean 0.6, deviation 0.2."""
    actions = drawn(with_rewards(ACTION, "sac", "agent.temperature=0.08", AVERAGE))
    assert actions.mean() == pytest.approx(0.6, abs=0.1)
    assert actions.std() == pytest.approx(0.2, abs=0.06)


@pytest.mark.parametrize("agent", ["sac", pytest.param("crossq", marks=pytest.mark.matrix)])
def test_fixed_temperature_gives_the_optimal_discrete_distribution(agent: str) -> None:
    """The optimal probabilities of actions that pay 0, 1 and 2 are proportional to exp(r / temperature)."""
    overrides = ["agent.temperature=0.8", "agent.target_entropy=null"]
    overrides += [AVERAGE] if agent == "sac" else ["agent.policy_delay=1"]
    actions = drawn(with_rewards(gym.spaces.Discrete(3), agent, *overrides))
    best = np.exp(np.arange(3) / 0.8)
    np.testing.assert_allclose(np.bincount(actions, minlength=3) / 4000, best / best.sum(), atol=0.05)


@pytest.mark.parametrize(("action", "target"), [(ACTION, -1.0), (gym.spaces.Discrete(3), 0.5)])
def test_learned_temperature_brings_the_entropy_to_its_target(action: gym.Space, target: float) -> None:
    metrics = with_rewards(action, "sac", f"agent.target_entropy={target}", AVERAGE).metrics()
    assert metrics["entropy"] == pytest.approx(target, abs=0.15)
    if action is not ACTION:
        # If probabilities are proportional to exp(r / alpha), the target entropy determines alpha.
        p = np.exp(np.arange(3) / metrics["temperature"])
        p /= p.sum()
        assert -(p * np.log(p)).sum() == pytest.approx(target, abs=0.15)
