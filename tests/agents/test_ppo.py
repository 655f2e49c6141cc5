"""Tests of PPO: its losses, bootstrapping at time limits, adapted learning rates and normalized values.

Whole updates are compared with those of other libraries in test_against_cleanrl.py and test_against_sb3.py.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_cases import Noise, build, network_of, play, rollouts, weights_of
from env_cases import own_env
from refusals import refused

from labrl.agents.agent import Observation
from labrl.agents.ppo import clipped_surrogate, value_loss
from labrl.config.compose import compose, resolve
from labrl.envs.make import make_env
from labrl.errors import Code
from labrl.schedules import AdaptiveRate
from labrl.trial.create import check

SMALL = ("agent.horizon=8", "agent.epochs=2", "agent.batch_size=16")


def test_clipped_surrogate_is_pessimistic() -> None:
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.05])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    expected = torch.tensor([1.2, -1.5, 0.5, -0.8, 2.1]).mean()
    torch.testing.assert_close(clipped_surrogate(ratio, advantage, 0.2), expected)


def test_value_loss_equals_hand_computed_values() -> None:
    value, old, target = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0])
    torch.testing.assert_close(value_loss(value, old, target, None), torch.tensor(0.5))
    # Clipping moves the first value to 0.5; its squared error, 0.25, is below the unclipped 1, which counts.
    torch.testing.assert_close(value_loss(value, old, target, 0.5), torch.tensor(0.5))
    torch.testing.assert_close(
        value_loss(torch.tensor([1.0]), torch.zeros(1), torch.ones(1), 0.5), torch.tensor(0.125)
    )


def test_stored_log_probabilities_and_statistics_are_those_of_the_acting_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent, clock, _ = build("ppo", *SMALL)
    with torch.no_grad():  # large values, whose statistics must keep their digits
        network_of(agent).value_head[-1].bias.add_(1e5)
    network, batches = copy.deepcopy(network_of(agent)), rollouts(monkeypatch)
    play(agent, clock, Noise(), 8)
    (batch,) = batches
    with torch.no_grad():
        policy = torch.distributions.Categorical(logits=network(batch.observation).parameters)
    torch.testing.assert_close(batch.log_prob, policy.log_prob(batch.action), rtol=1e-4, atol=1e-5)
    value, advantage = (each.double().numpy() for each in (batch.value, batch.advantage))
    assert agent.metrics()["value_std"] == pytest.approx(value.std(), rel=1e-9)
    explained = 1 - advantage.var() / (advantage + value).var()
    assert agent.metrics()["explained_variance"] == pytest.approx(explained, rel=1e-9)


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
    overrides = ["agent.horizon=23", "agent.batch_size=69", "agent.gamma=0.9", "agent.lr=0"]
    overrides += [f"agent.network.shared={shared}"]
    spaces: Any = {"observation": env.observation_space, "action": env.action_space, "num_envs": 3}
    agent, _, _ = build("ppo", *overrides, **spaces)
    with torch.no_grad():
        head = network_of(agent).value_head
        head[-1].weight.zero_()
        head[-1].bias.fill_(10)
    batches = rollouts(monkeypatch)
    observation, ended = env.reset(), 0
    for _ in range(46):
        step = env.step(agent.act(Observation(observation)))
        agent.observe(step)
        agent.learn()
        ended += len(step.episodes)
        observation = step.observation
    env.close()
    assert ended == 3 * 9
    assert len(batches) == 2
    assert max(float(batch.advantage.abs().max()) for batch in batches) < 1e-4


def test_target_kl_stops_the_epochs() -> None:
    eager = (*SMALL, "agent.epochs=10", "agent.lr=0.1")
    agent, clock, _ = build("ppo", *eager)
    assert play(agent, clock, Noise(), 8) == 20
    agent, clock, _ = build("ppo", *eager, "agent.target_kl=1e-4")
    assert play(agent, clock, Noise(), 8) == 2  # two minibatches, one epoch


@pytest.mark.parametrize(
    ("rate", "kl", "expected"),
    [
        (1e-3, 0.021, 5e-4),
        (5e-4, 0.021, 4e-4),
        (1e-3, 0.019, 1e-3),
        (1e-3, 0.006, 1e-3),
        (1.5e-3, 0.004, 2e-3),
        (1e-3, float("nan"), 1e-3),
    ],
)
def test_adapted_rate_keeps_the_divergence_within_a_factor_of_two(
    rate: float, kl: float, expected: float
) -> None:
    adaptive = AdaptiveRate(kind="kl", rate=1e-3, target=0.01, factor=2.0, min=4e-4, max=2e-3)
    assert adaptive.adapted(rate, kl) == expected


@pytest.mark.parametrize(("target", "expected"), [(1e-9, 0.001 / 1.5**2), (1e3, 0.001 * 1.5**2)])
def test_rate_is_adapted_after_each_epoch(target: float, expected: float) -> None:
    adaptive = f"agent.lr={{kind: kl, rate: 1e-3, target: {target}}}"
    agent, clock, _ = build("ppo", *SMALL, adaptive)
    assert play(agent, clock, Noise(), 8) == 4
    assert agent.metrics()["lr"] == pytest.approx(expected)
    learned = []
    for lr in ("agent.lr=1e-3", adaptive):
        agent, clock, _ = build("ppo", *SMALL, "agent.epochs=1", lr)
        play(agent, clock, Noise(), 8)
        learned.append(weights_of(agent))
    assert torch.equal(*learned)


@pytest.mark.parametrize(("typed", "expected"), [(1e-3, 7e-4), (5e-3, 5e-3)])
def test_rate_that_is_typed_for_a_resume_replaces_the_adapted_one(typed: float, expected: float) -> None:
    agent, resumed = (
        build("ppo", *SMALL, f"agent.lr={{kind: kl, rate: {rate}, target: 0.01}}")[0]
        for rate in (1e-3, typed)
    )
    resumed.load_state_dict({**agent.state_dict(), "lr": [1e-3, 7e-4]})
    assert resumed.metrics()["lr"] == expected


@pytest.mark.parametrize("shared", [False, True])
def test_normalized_values_are_learned_in_units_of_running_deviations(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollouts of two agents that act alike have the same returns, one of them in other units."""
    overrides = [*SMALL, f"agent.network.shared={shared}", "agent.lr=0"]
    batches = rollouts(monkeypatch)
    for normalize in (False, True):
        agent, clock, _ = build("ppo", *overrides, f"agent.normalize_value={normalize}")
        play(agent, clock, Noise(), 16)
    before, _, now, later = batches
    # Before the first rollout, outputs of the network are values.
    torch.testing.assert_close(now.advantage, before.advantage)
    returns = before.value_target.double()
    mean, std = returns.mean(), (returns.var(correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(now.value_target.double(), (returns - mean) / std, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(now.value.double(), (before.value.double() - mean) / std, atol=1e-5, rtol=1e-5)
    # The network has not changed, so its outputs are now values in units of the first rollout.
    values = now.value * std + mean  # of the first rollout, as they were computed
    outputs = agent.values(now.observation.numpy())
    saved = agent.state_dict()["returns"]
    spread = float((saved["squares"] / saved["count"] + 1e-5) ** 0.5)
    np.testing.assert_allclose(outputs, values * spread + float(saved["mean"]), rtol=1e-4, atol=1e-4)
    assert saved["count"] == 64
    assert later.value_target.mean().abs() < 1


BETA = ["preset=none", "agent.action_bounds=beta"]
NORMALIZED = "agent.normalize_value=true"


@pytest.mark.parametrize(
    ("overrides", "code", "key"),
    [
        (["agent=sil_ppo", NORMALIZED], "contradiction", "agent.normalize_value"),
        (["agent=reinforce", NORMALIZED], "contradiction", "agent.normalize_value"),
        (
            [NORMALIZED, "meta.distributed=shared", "meta.max_session=2"],
            "contradiction",
            "agent.normalize_value",
        ),
        (["env=pendulum", *BETA, "agent.log_std_init=-1"], "contradiction", "agent.log_std_init"),
        (["env=cartpole", *BETA], "unsupported", "agent.action_bounds"),
    ],
)
def test_options_that_contradict_each_other_are_refused(overrides: list[str], code: Code, key: str) -> None:
    with refused(code, key):
        check(resolve(compose(overrides)))
