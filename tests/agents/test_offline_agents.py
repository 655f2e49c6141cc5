"""Tests of IQL and TD3+BC: updates follow the papers' equations and reach known values on a small task."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from exact_cases import QUIET, SMALL, state
from replay_actor_critic_cases import (
    BOX,
    CHOICE,
    adam,
    assert_same,
    build,
    config_of,
    disturb,
    made_up,
    taken,
)
from restoring import changed_futures, session_in
from torch import Tensor

import labrl
from labrl.agents.agent import Observation
from labrl.agents.iql import advantage_weight, expectile_losses
from labrl.agents.td3_bc import EPSILON, cloning_loss
from labrl.config.compose import compose, resolve
from labrl.memory import Transitions

LR, TAU = 1e-2, 0.05
BRISK = (f"agent.lr={LR}", f"agent.target.tau={TAU}")
PENDULUM = ["env=pendulum", *QUIET, "env.num_envs=4", "env.max_frame=320", "meta.log_frequency=64"]
PENDULUM += ["meta.eval_frequency=92", "meta.rigorous_eval=1"]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train SAC on Pendulum and return the run folder."""
    overrides = [*PENDULUM, "agent=sac", *SMALL["labrl.agents.sac.SAC"], "agent.memory.capacity=1000"]
    return labrl.train([*overrides, f"hydra.run.dir={tmp_path_factory.mktemp('from') / 'run'}"]).folder


def offline(agent: str, source: Path) -> list[str]:
    """Return the overrides of a small run that learns only from the data of the run `source`."""
    overrides = [f"agent={agent}", *PENDULUM, "agent.batch_size=8", "agent.updates_per_frame=0.25"]
    return [*overrides, "agent/offline=run", f"agent.offline.folder={source}", "agent.collect_until=0"]


def test_iql_losses_equal_hand_computed_values() -> None:
    found = expectile_losses(torch.tensor([2.0, -1.0]), 0.7)
    assert found.tolist() == pytest.approx([0.7 * 4, 0.3 * 1])
    weight = advantage_weight(torch.tensor([0.5, -1.0, 9.0]), 2.0, 100.0)
    assert weight.tolist() == pytest.approx([math.e, math.exp(-2), 100.0])


def test_td3_bc_loss_equals_hand_computed_value() -> None:
    """Expect lambda = 2.5 / mean|Q| = 2.5 / 3, a mean value of -1, and squared distances 0.25 and 1."""
    action, stored = torch.tensor([[0.5], [0.0]]), torch.tensor([[0.0], [1.0]])
    found = cloning_loss(torch.tensor([2.0, -4.0]), action, stored, alpha=2.5)
    assert float(found) == pytest.approx(0.625 + 2.5 / 3)
    assert float(cloning_loss(torch.tensor([2.0]), action[:1], stored[:1], alpha=0.0)) == 0.25


def log_density(outputs: Tensor, action: Tensor) -> Tensor:
    """Compute log pi(a|s) by PyTorch's distributions."""
    if not action.is_floating_point():
        return torch.distributions.Categorical(logits=outputs).log_prob(action)
    mean, log_std = outputs.chunk(2, dim=1)
    return torch.distributions.Normal(mean.tanh(), log_std.clamp(-5, 2).exp()).log_prob(action).sum(1)


@pytest.mark.parametrize("action", [BOX, CHOICE], ids=["box", "choice"])
def test_iql_update_follows_the_paper(action: gym.Space) -> None:
    """Compare two updates with a computation from the paper's equations and PyTorch's Adam."""
    agent, _, _ = build(config_of("iql", *BRISK, "agent.expectile=0.8", "agent.max_weight=2"), action)
    disturb(agent)
    nets = copy.deepcopy(agent.modules())
    optimizers = {name: adam(nets[name]) for name in ("value", "policy", "critics")}
    for update in (1, 2):
        batch = made_up(action, seed=update)
        errors = agent.update(batch)

        def learn(name: str, loss: Tensor) -> None:
            optimizers[name].zero_grad()
            loss.backward()
            optimizers[name].step()

        with torch.no_grad():
            value = taken(nets["target"], batch).min(0).values
        error = value - nets["value"](batch.observation).squeeze(1)
        learn("value", (torch.where(error > 0, 0.8, 0.2) * error**2 * batch.weight).mean())
        with torch.no_grad():
            advantage = value - nets["value"](batch.observation).squeeze(1)
            target = batch.reward + batch.discount * nets["value"](batch.next_observation).squeeze(1)
        weight = torch.exp(3.0 * advantage).clamp(max=2)
        density = log_density(nets["policy"](batch.observation), batch.action)
        learn("policy", -(weight * density).mean())
        critic_error = taken(nets["critics"], batch) - target
        learn("critics", (critic_error.square().sum(0) * batch.weight).mean())
        with torch.no_grad():
            for slow, fast in zip(nets["target"].parameters(), nets["critics"].parameters(), strict=True):
                slow.lerp_(fast, TAU)
        torch.testing.assert_close(errors, critic_error.detach().abs().mean(0), rtol=1e-3, atol=1e-4)
    for name, module in agent.modules().items():
        assert_same(module, nets[name])


def test_td3_bc_update_follows_the_paper() -> None:
    """Compare two updates, only the second of which changes the policy."""
    agent, _, streams = build(config_of("td3_bc", *BRISK))
    disturb(agent)
    nets = copy.deepcopy(agent.modules())
    policy, critics = nets["policy"], nets["critics"]
    optimizers = adam(policy), adam(critics)
    noises = copy.deepcopy(streams.torch("noise"))
    for update in (1, 2):
        batch = made_up(BOX, seed=update)
        agent.update(batch)
        with torch.no_grad():
            noise = (0.2 * torch.randn((16, 2), generator=noises)).clamp(-0.5, 0.5)
            action = (torch.tanh(nets["target_policy"](batch.next_observation)) + noise).clamp(-1, 1)
            values = nets["target_critics"](batch.next_observation, action)
            target = batch.reward + batch.discount * values.min(0).values
        error = critics(batch.observation, batch.action) - target
        optimizers[1].zero_grad()
        (error.square().sum(0) * batch.weight).mean().backward()
        optimizers[1].step()
    optimizers[0].zero_grad()
    chosen = torch.tanh(policy(batch.observation))
    value = critics(batch.observation, chosen)[0]
    scale = 2.5 / value.detach().abs().mean()
    (-scale * value.mean() + (chosen - batch.action).square().mean()).backward()
    optimizers[0].step()
    assert_same(agent.modules()["policy"], policy)
    assert_same(agent.modules()["critics"], critics)


def two_action_batch(share: float) -> Transitions:
    """Make 64 one-step episodes from one state: action 1 is rewarded by 1, action 0 by 0.

    `share` is the fraction of episodes with action 1.
    """
    action = (torch.arange(64) < 64 * share).long()
    observation = torch.ones((64, 3))
    return Transitions(
        observation, action, action.float(), observation, torch.zeros(64), torch.ones(64), np.arange(64)
    )


@pytest.mark.extended
@pytest.mark.parametrize("inverse_temperature", [0.0, 2.0])
def test_iql_converges_to_the_expectile_and_the_weighted_policy(inverse_temperature: float) -> None:
    """Check the fixed point for a fraction p of action 1.

    V is the m with tau p (1 - m) = (1 - tau) (1 - p) m, and pi(1) : pi(0) = p exp(beta) : (1 - p).
    """
    share, expectile = 0.25, 0.8
    falling = "agent.lr={kind: linear, start: 1e-2, end: 1e-4, horizon: 600}"
    overrides = [f"agent.inverse_temperature={inverse_temperature}", f"agent.expectile={expectile}", falling]
    agent, clock, _ = build(config_of("iql", *overrides, "agent.target.tau=0.1"), gym.spaces.Discrete(2))
    batch = two_action_batch(share)
    for _ in range(600):
        agent.update(batch)
        clock.tick(1)
    better, worse = expectile * share, (1 - expectile) * (1 - share)
    assert agent.metrics()["value_mean"] == pytest.approx(better / (better + worse), abs=0.02)
    actions = agent.act(Observation(np.ones((4, 3), np.float32)))
    assert set(actions.tolist()) <= {0, 1}
    with torch.no_grad():
        found = torch.softmax(agent.modules()["policy"](batch.observation[:1]), 1)[0, 1]
    ratio = share * math.exp(inverse_temperature) / (1 - share)
    assert float(found) == pytest.approx(ratio / (1 + ratio), abs=0.02)


@pytest.mark.extended
@pytest.mark.parametrize("agent", ["iql", "td3_bc"])
def test_interrupted_offline_run_resumes_exactly(agent: str, collected: Path, tmp_path: Path) -> None:
    assert changed_futures(tmp_path, offline(agent, collected)) == []


@pytest.mark.extended
def test_observations_are_normalized_by_statistics_of_the_data(collected: Path, tmp_path: Path) -> None:
    session = session_in(tmp_path / "run", resolve(compose(offline("td3_bc", collected))))
    agent: Any = session.agent
    held = state(collected / "session_0")["agent"]["experience"]["memory"]["transitions"]
    assert int((held["steps"] - held["oldest"]).sum()) == 320
    normalization = agent.acting_modules()["normalization"]
    observations = np.array([[1, 0, 0], [0.5, 0.5, -8], [0, -1, 2]], np.float32)
    normalized = (observations - normalization.mean.numpy()) / normalization.deviation.numpy()
    assert 0 < float(normalization.deviation[0]) - EPSILON < 1
    assert np.abs(normalized).max() < 20
    with torch.no_grad():
        expected = 2 * agent.modules()["policy"](torch.from_numpy(normalized)).tanh().numpy()
    np.testing.assert_allclose(agent.greedy_action(Observation(observations)), expected, rtol=1e-4, atol=1e-5)
    session.close()


@pytest.mark.extended
def test_asynchronous_evaluation_normalizes_observations_too(collected: Path, tmp_path: Path) -> None:
    overrides = offline("td3_bc", collected)
    scores = []
    for name, async_eval in (("async", "true"), ("sync", "false")):
        run = labrl.train([*overrides, f"meta.async_eval={async_eval}", f"hydra.run.dir={tmp_path / name}"])
        lines = (run.folder / "session_0" / "eval.csv").read_text().splitlines()
        column = lines[0].split(",").index("return_mean")
        scores.append([line.split(",")[column] for line in lines[1:]])
    assert scores[0] == scores[1]
