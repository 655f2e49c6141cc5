"""IQL and TD3+BC: each update is the paper's, and what they learn from a known task is known."""

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
from refusals import refused
from replay_actor_critic_cases import BOX, CHOICE, build, config_of, disturb, made_up
from test_replay_actor_critic import adam, assert_same, taken
from test_restoring import changed_futures, session_in
from torch import Tensor

import labrl
from labrl.agents.agent import Observation
from labrl.agents.iql import advantage_weight, expectile_losses
from labrl.agents.td3_bc import EPSILON, cloning_loss
from labrl.config.compose import compose, resolve
from labrl.memory.replay import Transitions
from labrl.spaces import Spaces

LR, TAU = 1e-2, 0.05
BRISK = (f"agent.lr={LR}", f"agent.target.tau={TAU}")
PENDULUM = ["env=pendulum", *QUIET, "env.num_envs=4", "env.max_frame=320", "meta.log_frequency=64"]
PENDULUM += ["meta.eval_frequency=92", "meta.rigorous_eval=1"]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of SAC on Pendulum."""
    overrides = [*PENDULUM, "agent=sac", *SMALL["labrl.agents.sac.SAC"], "agent.memory.capacity=1000"]
    return labrl.train([*overrides, f"hydra.run.dir={tmp_path_factory.mktemp('from') / 'run'}"]).folder


def offline(agent: str, source: Path) -> list[str]:
    """The overrides of a small run that learns from `source` alone."""
    overrides = [f"agent={agent}", *PENDULUM, "agent.batch_size=8", "agent.updates_per_frame=0.25"]
    return [*overrides, "agent/offline=run", f"agent.offline.folder={source}", "agent.collect_until=0"]


def test_losses_of_iql_by_hand() -> None:
    found = expectile_losses(torch.tensor([2.0, -1.0]), 0.7)
    assert found.tolist() == pytest.approx([0.7 * 4, 0.3 * 1])
    weight = advantage_weight(torch.tensor([0.5, -1.0, 9.0]), 2.0, 100.0)
    assert weight.tolist() == pytest.approx([math.e, math.exp(-2), 100.0])


def test_the_loss_of_td3_bc_by_hand() -> None:
    """lambda = 2.5 / 3 times a mean value of -1, and squared distances 0.25 and 1."""
    action, stored = torch.tensor([[0.5], [0.0]]), torch.tensor([[0.0], [1.0]])
    found = cloning_loss(torch.tensor([2.0, -4.0]), action, stored, alpha=2.5)
    assert float(found) == pytest.approx(0.625 + 2.5 / 3)
    assert float(cloning_loss(torch.tensor([2.0]), action[:1], stored[:1], alpha=0.0)) == 0.25


def log_density(outputs: Tensor, action: Tensor) -> Tensor:
    """log pi(a|s) by torch's own distributions."""
    if not action.is_floating_point():
        return torch.distributions.Categorical(logits=outputs).log_prob(action)
    mean, log_std = outputs.chunk(2, dim=1)
    return torch.distributions.Normal(mean.tanh(), log_std.clamp(-5, 2).exp()).log_prob(action).sum(1)


@pytest.mark.parametrize("action", [BOX, CHOICE], ids=["box", "choice"])
def test_an_update_of_iql_is_the_papers(action: gym.Space) -> None:
    """Two updates, computed here from the equations alone, with torch's Adam."""
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
            goal = batch.reward + batch.discount * nets["value"](batch.next_observation).squeeze(1)
        weight = torch.exp(3.0 * advantage).clamp(max=2)
        density = log_density(nets["policy"](batch.observation), batch.action)
        learn("policy", -(weight * density).mean())
        off = taken(nets["critics"], batch) - goal
        learn("critics", (off.square().sum(0) * batch.weight).mean())
        with torch.no_grad():
            for slow, fast in zip(nets["target"].parameters(), nets["critics"].parameters(), strict=True):
                slow.lerp_(fast, TAU)
        torch.testing.assert_close(errors, off.detach().abs().mean(0), rtol=1e-3, atol=1e-4)
    for name, module in agent.modules().items():
        assert_same(module, nets[name])


def test_an_update_of_td3_bc_is_the_papers() -> None:
    """The second update is the first of the policy."""
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
            goal = batch.reward + batch.discount * values.min(0).values
        error = critics(batch.observation, batch.action) - goal
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


def of_two_actions(share: float) -> Transitions:
    """One state, where action 1 pays 1 and action 0 nothing, and then it ends; `share` of them are 1."""
    action = (torch.arange(64) < 64 * share).long()
    look = torch.ones((64, 3))
    return Transitions(look, action, action.float(), look, torch.zeros(64), torch.ones(64), np.arange(64))


@pytest.mark.parametrize("inverse_temperature", [0.0, 2.0])
def test_iql_comes_to_the_expectile_and_to_the_weighted_probabilities(inverse_temperature: float) -> None:
    """V is the m with tau p (1 - m) = (1 - tau) (1 - p) m, and pi(1) : pi(0) = p exp(beta) : (1 - p)."""
    share, expectile = 0.25, 0.8
    falling = "agent.lr={kind: linear, start: 1e-2, end: 1e-4, horizon: 600}"
    overrides = [f"agent.inverse_temperature={inverse_temperature}", f"agent.expectile={expectile}", falling]
    agent, clock, _ = build(config_of("iql", *overrides, "agent.target.tau=0.1"), gym.spaces.Discrete(2))
    batch = of_two_actions(share)
    for _ in range(600):
        agent.update(batch)
        clock.tick(1)
    better, worse = expectile * share, (1 - expectile) * (1 - share)
    assert agent.metrics()["value_mean"] == pytest.approx(better / (better + worse), abs=0.02)
    drawn = agent.act(Observation(np.ones((4, 3), np.float32)))
    assert set(drawn.tolist()) <= {0, 1}
    with torch.no_grad():
        found = torch.softmax(agent.modules()["policy"](batch.observation[:1]), 1)[0, 1]
    ratio = share * math.exp(inverse_temperature) / (1 - share)
    assert float(found) == pytest.approx(ratio / (1 + ratio), abs=0.02)


@pytest.mark.parametrize("agent", ["iql", "td3_bc"])
def test_a_run_that_only_learns_from_another_goes_on_exactly(
    agent: str, collected: Path, tmp_path: Path
) -> None:
    assert changed_futures(tmp_path, offline(agent, collected)) == []


def test_observations_are_normalized_by_the_data(collected: Path, tmp_path: Path) -> None:
    session = session_in(tmp_path / "run", resolve(compose(offline("td3_bc", collected))))
    agent: Any = session.agent
    held = state(collected / "session_0")["agent"]["experience"]["memory"]["transitions"]
    assert int((held["steps"] - held["oldest"]).sum()) == 320
    normalization = agent.acting_modules()["normalization"]
    looks = np.array([[1, 0, 0], [0.5, 0.5, -8], [0, -1, 2]], np.float32)
    seen = (looks - normalization.mean.numpy()) / normalization.deviation.numpy()
    assert 0 < float(normalization.deviation[0]) - EPSILON < 1
    assert np.abs(seen).max() < 20
    with torch.no_grad():
        wanted = 2 * agent.modules()["policy"](torch.from_numpy(seen)).tanh().numpy()
    np.testing.assert_allclose(agent.greedy_action(Observation(looks)), wanted, rtol=1e-4, atol=1e-5)
    session.close()


def test_a_copy_that_evaluates_beside_training_normalizes_too(collected: Path, tmp_path: Path) -> None:
    overrides = offline("td3_bc", collected)
    scores = []
    for name, beside in (("beside", "true"), ("inside", "false")):
        run = labrl.train([*overrides, f"meta.async_eval={beside}", f"hydra.run.dir={tmp_path / name}"])
        lines = (run.folder / "session_0" / "eval.csv").read_text().splitlines()
        column = lines[0].split(",").index("return_mean")
        scores.append([line.split(",")[column] for line in lines[1:]])
    assert scores[0] == scores[1]


def test_only_arrays_of_numbers_are_normalized() -> None:
    overrides = ["agent=td3_bc", "env=pendulum", "preset=none"]
    image = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    for more, allowed in (("true", False), ("false", True)):
        config = resolve(compose([*overrides, f"agent.normalize_observations={more}"])).agent
        if allowed:
            config.load().check(config.config, Spaces(image, BOX, 1))
            continue
        with refused("unsupported", "agent.normalize_observations", "agent.normalize_observations=false"):
            config.load().check(config.config, Spaces(image, BOX, 1))
