"""Tests of REINFORCE: gradients of episode returns with each baseline, truncation, and simple tasks."""

from __future__ import annotations

import copy
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import play
from on_policy_cases import (
    CHOICES,
    SWITCHES,
    Bandit,
    Recorded,
    build,
    network_of,
    noise,
    rollouts,
)

import labrl
from labrl.agents.agent import Observation
from labrl.cli import main

BASELINES = {
    "none": ["agent.baseline=none"],
    "mean": ["agent.baseline=mean"],
    "value": ["agent.baseline=value", "agent.value_coef=0.5"],
}
OBSERVATION = gym.spaces.Box(0, 1, (1,), np.float32)


@pytest.mark.parametrize("baseline", ["none", "mean", "value"])
def test_update_is_the_gradient_of_returns_minus_the_baseline(
    baseline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [*BASELINES[baseline], "agent.normalize_advantage=false", "agent.gamma=0.9"]
    overrides += ["agent.max_grad_norm=null", "agent.entropy_coef=0.01", "agent.network.shared=false"]
    agent, clock, _ = build("reinforce", *overrides, "agent.episodes=5", num_envs=1)
    world, batches, network = Recorded(noise(1)), rollouts(monkeypatch), copy.deepcopy(network_of(agent))
    while not play(agent, clock, world, 1):
        pass
    reversed_returns, episode_return = [], torch.zeros(1)
    for step in reversed(world.steps):
        with torch.no_grad():
            final = (
                network(torch.from_numpy(step.next_observation)).value
                if network.has_value
                else torch.zeros(1)
            )
        if step.episode_over[0]:
            episode_return = final if step.truncated[0] and not step.terminated[0] else torch.zeros(1)
        episode_return = torch.from_numpy(step.reward) + 0.9 * episode_return
        reversed_returns.append(episode_return)
    returns = torch.cat(reversed_returns[::-1])
    observation = torch.from_numpy(np.concatenate(world.seen))
    parameters, value, _ = network(observation)
    policy = torch.distributions.Categorical(logits=parameters)
    advantage = returns - (returns.mean() if baseline == "mean" else value.detach())
    loss = -(advantage * policy.log_prob(batches[0].action)).mean() - 0.01 * policy.entropy().mean()
    if baseline == "value":
        loss = loss + 0.5 * 0.5 * (returns - value).square().mean()
    loss.backward()
    for ours, expected in zip(network_of(agent).parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-3, atol=1e-6)


def test_agent_learns_from_each_episode_once_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, clock, _ = build("reinforce", "agent.episodes=3")
    world, batches = Recorded(noise()), rollouts(monkeypatch)
    play(agent, clock, world, 120)
    rows = sum(len(batch.action) for batch in batches)
    ended = np.stack([step.terminated | step.episode_over for step in world.steps])
    last = [int(np.flatnonzero(ended[:, env])[-1]) + 1 for env in range(4)]
    held = agent.state_dict()["rollout"]  # includes episodes that ended since the last update
    assert rows <= sum(last)
    assert rows + int((held["end"] - held["first"]).sum()) == sum(last)
    observations = torch.cat([batch.observation for batch in batches])
    assert len(torch.unique(observations, dim=0)) == rows, "a step was learned from twice"


def test_reinforce_finds_the_best_arm_of_a_bandit() -> None:
    for baseline in ("none", "mean", "value"):
        overrides = [f"agent.baseline={baseline}", "agent.lr=0.02", "agent.episodes=16"]
        agent, clock, _ = build(
            "reinforce", *overrides, observation=OBSERVATION, action=gym.spaces.Discrete(4), num_envs=8
        )
        play(agent, clock, Bandit(lambda arm: float(arm == 2), 8), 100)
        with torch.no_grad():
            assert float(network_of(agent)(torch.ones(1, 1)).parameters.softmax(1)[0, 2]) > 0.8


@pytest.mark.extended
@pytest.mark.parametrize(
    ("action", "best"),
    [(SWITCHES, np.array([1, 0, 1])), (CHOICES, np.array([1, 2]))],
    ids=["switches", "choices"],
)
@pytest.mark.parametrize("agent_name", ["reinforce", "a2c", "ppo"])
def test_every_component_of_a_composite_action_is_learned(
    agent_name: str, action: gym.Space, best: np.ndarray
) -> None:
    overrides = {
        "reinforce": ["agent.lr=0.02", "agent.episodes=16"],
        "a2c": ["agent.lr=0.01", "agent/optimizer=adam", "agent.horizon=8"],
        "ppo": ["agent.lr=0.01", "agent.horizon=8", "agent.batch_size=32"],
    }[agent_name]
    agent, clock, _ = build(agent_name, *overrides, observation=OBSERVATION, action=action, num_envs=8)
    play(agent, clock, Bandit(lambda tried: float((tried == best).mean()), 8), 200)
    chosen = agent.greedy_action(Observation(np.ones((1, 1), np.float32)))
    assert action.contains(chosen[0])
    np.testing.assert_array_equal(chosen[0], best)


@pytest.mark.extended
@pytest.mark.parametrize("bounds", ["clip", "rescale", "squash", "beta"])
@pytest.mark.parametrize("agent_name", ["reinforce", "a2c", "ppo"])
def test_continuous_actions_are_learned_with_each_kind_of_bounds(agent_name: str, bounds: str) -> None:
    space = gym.spaces.Box(np.array([0], np.float32), np.array([10], np.float32))
    overrides = {
        "reinforce": ["agent.lr=0.02", "agent.episodes=16"],
        "a2c": ["agent.lr=0.01", "agent/optimizer=adam", "agent.horizon=8", "agent.normalize_advantage=true"],
        "ppo": ["agent.lr=0.01", "agent.horizon=8", "agent.batch_size=32"],
    }[agent_name]
    overrides += [] if bounds == "beta" else ["agent.log_std_init=-1"]
    agent, clock, _ = build(
        agent_name,
        *overrides,
        f"agent.action_bounds={bounds}",
        observation=OBSERVATION,
        action=space,
        num_envs=8,
    )
    play(agent, clock, Bandit(lambda a: -abs(float(a[0]) - 2.5), 8), 240)
    chosen = agent.greedy_action(Observation(np.ones((1, 1), np.float32)))
    assert space.contains(chosen[0])
    assert float(chosen[0, 0]) == pytest.approx(2.5, abs=1)


@pytest.mark.extended
def test_session_fails_when_a_rollout_would_fill_the_ram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labrl.memory.workspace.memory_available", lambda: 1000)
    overrides = [
        "agent=reinforce",
        "env=cartpole",
        "env.num_envs=16",
        "env.max_frame=8000",
        "meta.progress=false",
    ]
    overrides += [
        "agent.episodes=500",
        "meta.tensorboard=false",
        "meta.report=false",
        f"hydra.run.dir={tmp_path}/run",
    ]
    assert main(overrides) == 1
    output = capsys.readouterr()
    assert "env.num_envs" in output.out + output.err


def test_run_without_an_update_logs_the_reason(tmp_path: Path) -> None:
    overrides = ["agent=reinforce", "env=cartpole", "preset=none", "agent.episodes=1000", "env.max_frame=200"]
    overrides += ["meta=dev", "meta.max_session=1", "wandb=disabled", "agent.network.torso.mlp.hidden=[8]"]
    overrides += [f"hydra.run.dir={tmp_path / 'run'}"]
    run = labrl.train(overrides)
    assert run.exit_code == 0
    log = (run.folder / "session_0" / "session.log").read_text()
    assert run.sessions[0].opt_step == 0
    assert "env.max_frame" in log
