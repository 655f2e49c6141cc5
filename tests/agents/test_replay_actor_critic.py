"""Tests of off-policy actor-critics: updates follow the papers, and actions stay in bounds."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_cases import (
    BOX,
    CONTINUOUS,
    DISCRETE,
    VECTOR,
    Noise,
    adam,
    assert_same,
    build,
    config_of,
    cpu,
    disturb,
    made_up,
    play,
)
from torch import Tensor

from labrl.agents.agent import Observation
from labrl.agents.tqc import smallest_atoms
from labrl.memory import Transitions
from labrl.networks.critics import Critics
from labrl.spaces import Spaces

LR, TAU = 1e-2, 0.05
BRISK = (f"agent.lr={LR}", f"agent.target.tau={TAU}")


def gaussian(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Compute tanh of a Gaussian sample and its log-density by PyTorch's distributions."""
    mean, log_std = outputs.chunk(2, dim=1)
    base = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    squashed = torch.distributions.TransformedDistribution(
        base, torch.distributions.TanhTransform(cache_size=1)
    )
    action = torch.tanh(base.loc + base.scale * noise)
    return action, squashed.log_prob(action).sum(1)


def taken(critics: Critics, batch: Transitions) -> Tensor:
    """Compute the critics' values of the actions taken. [critics, batch]"""
    values = critics(batch.observation, batch.action)
    if values.dim() == 3:
        return torch.stack([value[torch.arange(len(value)), batch.action] for value in values])
    return values


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def follow(slow: torch.nn.Module, fast: torch.nn.Module) -> None:
    """Move a target network as Polyak averaging does."""
    with torch.no_grad():
        for old, new in zip(slow.parameters(), fast.parameters(), strict=True):
            old.lerp_(new, TAU)


def soft_value(
    policy: Any, critics: Critics, observation: Tensor, noise: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """Compute the soft value of each state, min Q - alpha log pi, and the entropy of its policy. [batch]

    noise: [batch, action size] for one sample per state; empty ([batch, 0]) for a sum over discrete actions.
    """
    outputs = policy(observation)
    if noise.shape[1] == 0:
        probability = torch.softmax(outputs, 1)
        values = critics(observation, probability)
        smaller = torch.minimum(values[0], values[1])
        entropy = -(probability * probability.log()).sum(1)
        return (probability * smaller).sum(1) + alpha * entropy, entropy
    action, log_prob = gaussian(outputs, noise)
    values = critics(observation, action)
    return torch.minimum(values[0], values[1]) - alpha * log_prob, -log_prob


@pytest.mark.parametrize("action", [BOX, DISCRETE], ids=["box", "choice"])
def test_sac_update_follows_the_paper(action: gym.Space) -> None:
    """Compare two updates with a computation from the paper's equations and PyTorch's Adam."""
    agent, _, streams = build("sac", *BRISK, action=action)
    disturb(agent)
    nets = copy.deepcopy(agent.modules())
    policy, critics, target = nets["policy"], nets["critics"], nets["target"]
    log_alpha = torch.zeros(1, requires_grad=True)
    optimizers = adam(policy), adam(critics), torch.optim.Adam([log_alpha], lr=LR)
    target_entropy = -2.0 if action is BOX else 0.6 * math.log(3)
    noises = copy.deepcopy(streams.torch("noise"))
    for update in (1, 2):
        batch = made_up(action, seed=update)
        noise = torch.randn((2, 16, 2), generator=noises) if action is BOX else torch.empty((2, 16, 0))
        alpha = float(log_alpha.detach().exp())
        errors = agent.update(batch)

        with torch.no_grad():
            value, _ = soft_value(policy, target, batch.next_observation, noise[0], alpha)
            target_value = batch.reward + batch.discount * value
        error = taken(critics, batch) - target_value
        step(optimizers[1], (0.5 * error.square().sum(0) * batch.weight).mean())
        value, entropy = soft_value(policy, critics, batch.observation, noise[1], alpha)
        step(optimizers[0], -value.mean())
        step(optimizers[2], (log_alpha * (entropy.detach().mean() - target_entropy)).sum())
        follow(target, critics)
        torch.testing.assert_close(errors, error.detach().abs().mean(0), rtol=1e-3, atol=1e-4)
    for name, module in agent.modules().items():
        assert_same(module, nets[name])
    assert agent.metrics()["temperature"] == pytest.approx(float(log_alpha.detach().exp()), rel=1e-5)


def test_fixed_temperature_is_not_learned() -> None:
    agent, clock, _ = build("sac", "agent.temperature=0.3")
    play(agent, clock, Noise(), 20)
    assert agent.metrics()["temperature"] == 0.3


@pytest.mark.parametrize("name", ["td3", "ddpg", "td3_bc"])
def test_td3_ddpg_and_td3_bc_updates_follow_the_papers(name: str) -> None:
    """Compare three updates; the policy and the targets of TD3 and TD3+BC change in the second only."""
    agent, _, streams = build(name, *BRISK)
    disturb(agent)
    nets = copy.deepcopy(agent.modules())
    policy, critics = nets["policy"], nets["critics"]
    optimizers = adam(policy), adam(critics)
    noises = copy.deepcopy(streams.torch("noise"))
    for update in (1, 2, 3):
        batch = made_up(BOX, seed=update)
        agent.update(batch)
        with torch.no_grad():
            action = torch.tanh(nets["target_policy"](batch.next_observation))
            if name != "ddpg":
                noise = (0.2 * torch.randn((16, 2), generator=noises)).clamp(-0.5, 0.5)
                action = (action + noise).clamp(-1, 1)
            values = nets["target_critics"](batch.next_observation, action)
            target_value = batch.reward + batch.discount * values.min(0).values
        error = critics(batch.observation, batch.action) - target_value
        assert len(error) == (1 if name == "ddpg" else 2)
        step(optimizers[1], (error.square().sum(0) * batch.weight).mean())
        if name != "ddpg" and update != 2:
            continue
        chosen = torch.tanh(policy(batch.observation))
        value = critics(batch.observation, chosen)[0]
        loss = -value.mean()
        if name == "td3_bc":
            loss = 2.5 / value.detach().abs().mean() * loss + (chosen - batch.action).square().mean()
        step(optimizers[0], loss)
        follow(nets["target_policy"], policy)
        follow(nets["target_critics"], critics)
    for module_name, module in agent.modules().items():
        assert_same(module, nets[module_name])


@pytest.mark.parametrize("action", [BOX, DISCRETE], ids=["box", "choice"])
def test_crossq_update_uses_one_pass_for_both_steps_and_no_target(action: gym.Space) -> None:
    agent, _, streams = build("crossq", f"agent.lr={LR}", action=action)
    disturb(agent)
    assert set(agent.modules()) == {"policy", "critics"}
    critics, policy = (copy.deepcopy(agent.modules()[name]) for name in ("critics", "policy"))
    batch, optimizer = made_up(action), torch.optim.Adam(critics.parameters(), lr=LR, betas=(0.5, 0.999))
    noise = torch.randn((2, 16, 2), generator=copy.deepcopy(streams.torch("noise")))
    agent.update(batch)
    with torch.no_grad():
        outputs = policy(batch.next_observation)
        if action is BOX:
            choice, log_prob = gaussian(outputs, noise[0])
            actions = torch.cat([batch.action, choice])
        else:
            choice, actions = torch.softmax(outputs, 1), batch.action
            log_prob = (choice * choice.log()).sum(1)
    values = critics(torch.cat([batch.observation, batch.next_observation]), actions)
    now, after = values[:, :16], values[:, 16:].detach()
    smaller = torch.minimum(after[0], after[1])
    if action is DISCRETE:
        now = now[:, torch.arange(16), batch.action]
        smaller = (smaller * choice).sum(1)
    target_value = batch.reward + batch.discount * (smaller - log_prob)
    (0.5 * (now - target_value).square().sum(0) * batch.weight).mean().backward()
    optimizer.step()
    assert_same(agent.modules()["critics"], critics)
    assert_same(agent.modules()["policy"], policy)  # the policy learns at every third update only
    for own, other in zip(agent.modules()["critics"].buffers(), critics.buffers(), strict=True):
        torch.testing.assert_close(own, other)
    for _ in range(2):
        agent.update(batch)
    with pytest.raises(AssertionError):
        assert_same(agent.modules()["policy"], policy)


def test_crossq_policy_loss_leaves_the_critics_statistics_unchanged() -> None:
    agent, clock, _ = build("crossq")
    play(agent, clock, Noise(), 30)
    policy, critics = agent.modules()["policy"], agent.modules()["critics"]
    before = copy.deepcopy(critics)
    noise = torch.zeros((16, 2))
    batch = replace(made_up(BOX), noise=noise)
    loss, _ = agent.policy_loss(policy, batch)
    loss.backward()
    after = critics.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.state_dict().items())
    with torch.no_grad():
        value, _ = soft_value(policy, before.eval(), batch.observation, noise, agent.metrics()["temperature"])
    torch.testing.assert_close(loss.detach(), -value.mean())


TQC = (*BRISK, "agent.critics=3", "agent.quantiles=4", "agent.dropped=1")


def test_targets_leave_out_the_largest_quantiles_of_all_critics_together() -> None:
    of_one, of_other = [[3.0, 1.0, 9.0], [0.0, 0.0, 1.0]], [[2.0, 8.0, 7.0], [5.0, 6.0, 7.0]]
    quantiles = torch.tensor([of_one, of_other])
    assert smallest_atoms(quantiles, 1).tolist() == [[1.0, 2.0, 3.0, 7.0], [0.0, 0.0, 1.0, 5.0]]
    assert smallest_atoms(quantiles, 0).shape == (2, 6)


def paper_loss(quantiles: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Sum eq. 14 with one term for each critic, row, quantile and target sample.

    quantiles: [critics, batch, quantiles]; target: [batch, samples]; weight: [batch]. Returns a scalar.
    """
    total = torch.zeros(())
    critics, batch, count = quantiles.shape
    for row in range(batch):
        for n in range(critics):
            for m in range(count):
                u = target[row] - quantiles[n, row, m]
                huber = torch.where(u.abs() <= 1, 0.5 * u**2, u.abs() - 0.5)
                level = ((2 * m + 1) / (2 * count) - (u < 0).float()).abs()
                total = total + weight[row] * (level * huber).mean() / count
    return total / batch


def test_tqc_updates_follow_the_paper() -> None:
    """Compare two updates with ones computed here from the equations and with PyTorch's Adam."""
    agent, _, streams = build("tqc", *TQC)
    disturb(agent)
    nets = copy.deepcopy(agent.modules())
    policy, critics, target = nets["policy"], nets["critics"], nets["target"]
    log_alpha = torch.zeros(1, requires_grad=True)
    optimizers = adam(policy), adam(critics), torch.optim.Adam([log_alpha], lr=LR)
    noises = copy.deepcopy(streams.torch("noise"))
    for update in (1, 2):
        batch = made_up(BOX, seed=update)
        noise = torch.randn((2, 16, 2), generator=noises)
        alpha = float(log_alpha.detach().exp())
        errors = agent.update(batch)

        with torch.no_grad():
            action, log_prob = gaussian(policy(batch.next_observation), noise[0])
            pooled = target(batch.next_observation, action).permute(1, 0, 2).reshape(16, 12)
            kept = pooled.sort(1).values[:, :9] - alpha * log_prob.unsqueeze(1)
            goal = batch.reward.unsqueeze(1) + batch.discount.unsqueeze(1) * kept
        quantiles = critics(batch.observation, batch.action)
        step(optimizers[1], paper_loss(quantiles, goal, batch.weight))
        action, log_prob = gaussian(policy(batch.observation), noise[1])
        values = critics(batch.observation, action).mean((0, 2))
        step(optimizers[0], (alpha * log_prob - values).mean())
        step(optimizers[2], (log_alpha * (-log_prob.detach().mean() + 2)).sum())
        follow(target, critics)
        off = (quantiles.mean(2) - goal.mean(1)).detach().abs().mean(0)
        torch.testing.assert_close(errors, off, rtol=1e-3, atol=1e-4)
    for name, module in agent.modules().items():
        assert_same(module, nets[name])
    assert agent.metrics()["temperature"] == pytest.approx(float(log_alpha.detach().exp()), rel=1e-5)


def log_density(outputs: Tensor, action: Tensor) -> Tensor:
    """Compute log pi(a|s) by PyTorch's distributions."""
    if not action.is_floating_point():
        return torch.distributions.Categorical(logits=outputs).log_prob(action)
    mean, log_std = outputs.chunk(2, dim=1)
    return torch.distributions.Normal(mean.tanh(), log_std.clamp(-5, 2).exp()).log_prob(action).sum(1)


@pytest.mark.parametrize("action", [BOX, DISCRETE], ids=["box", "choice"])
def test_iql_update_follows_the_paper(action: gym.Space) -> None:
    """Compare two updates with a computation from the paper's equations and PyTorch's Adam."""
    agent, _, _ = build("iql", *BRISK, "agent.expectile=0.8", "agent.max_weight=2", action=action)
    disturb(agent)
    nets = copy.deepcopy(agent.modules())
    optimizers = {name: adam(nets[name]) for name in ("value", "policy", "critics")}
    for update in (1, 2):
        batch = made_up(action, seed=update)
        errors = agent.update(batch)

        with torch.no_grad():
            value = taken(nets["target"], batch).min(0).values
        error = value - nets["value"](batch.observation).squeeze(1)
        step(optimizers["value"], (torch.where(error > 0, 0.8, 0.2) * error**2 * batch.weight).mean())
        with torch.no_grad():
            advantage = value - nets["value"](batch.observation).squeeze(1)
            target = batch.reward + batch.discount * nets["value"](batch.next_observation).squeeze(1)
        weight = torch.exp(3.0 * advantage).clamp(max=2)
        density = log_density(nets["policy"](batch.observation), batch.action)
        step(optimizers["policy"], -(weight * density).mean())
        critic_error = taken(nets["critics"], batch) - target
        step(optimizers["critics"], (critic_error.square().sum(0) * batch.weight).mean())
        follow(nets["target"], nets["critics"])
        torch.testing.assert_close(errors, critic_error.detach().abs().mean(0), rtol=1e-3, atol=1e-4)
    for name, module in agent.modules().items():
        assert_same(module, nets[name])


@pytest.mark.parametrize("name", CONTINUOUS)
def test_actions_fill_their_box_and_stay_inside(name: str) -> None:
    """Check random, exploring and best actions; stored actions must lie in [-1, 1]."""
    box = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
    agent, clock, _ = build(name, action=box)
    disturb(agent)
    with torch.no_grad():
        for weight in agent.modules()["policy"].parameters():
            weight.mul_(100)  # large outputs, far into the tails of tanh
    observation = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    kinds = []
    for frame in (0, 10_000):
        clock.tick(frame)
        kinds.append(np.concatenate([agent.act(Observation(observation)) for _ in range(200)]))
        assert np.abs(agent.decision()["action"]).max() <= 1
    kinds.append(agent.evaluation_action(Observation(observation), np.random.default_rng(0)))
    for actions in kinds:
        assert actions.dtype == np.float32
        assert all(box.contains(action) for action in actions)
    assert np.allclose([kinds[0].min(0), kinds[0].max(0)], [box.low, box.high], atol=0.2)


@pytest.mark.parametrize(
    ("name", "action"),
    [("sac", BOX), ("sac", DISCRETE), ("td3_bc", BOX), ("tqc", BOX)],
)
def test_two_threads_on_halves_of_the_rows_compute_the_gradient_of_one(name: str, action: gym.Space) -> None:
    """Split large products, computed by kernels, into halves of a minibatch of an odd size.

    The result must be close to that of one thread and exactly repeatable. The loss sees the whole minibatch,
    which TD3+BC needs.
    """
    overrides = ["agent.network.torso.mlp.hidden=[128,128]", "agent.batch_size=512"]
    overrides += ["agent.policy_delay=1"] if name.startswith("td3") else []
    gradients: list[list[Tensor]] = []
    for num_threads in (1, 2, 2):
        agent, _, _ = build(name, *overrides, action=action, compute=cpu(num_threads))
        disturb(agent)
        errors = agent.update(made_up(action, 511))
        nets = agent.modules()
        weights = [*nets["critics"].parameters(), *nets["policy"].parameters()]
        # Small entries of a gradient are sums that nearly cancel, so errors are relative to the largest.
        gradients.append([errors, *(weight.grad / weight.grad.abs().max() for weight in weights)])
        agent.close()
    for one, other, repeated in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        assert torch.equal(other, repeated)


def test_stacked_critics_equal_separate_perceptrons() -> None:
    """Compare stacked critics, each with its own weights, with a computation of one at a time.

    Critics with layer normalization are not stacked.
    """
    config = config_of("sac").agent.config.network
    spaces = Spaces(VECTOR, BOX, 1)
    stacked = Critics(config, spaces, 3)
    assert stacked.perceptrons is not None
    observation, action = torch.randn(5, 3), torch.randn(5, 2)
    values = stacked(observation, action)
    for i, value in enumerate(values):
        x = torch.cat([observation, action], 1)
        for weight, bias in zip(stacked.perceptrons.weights, stacked.perceptrons.biases, strict=True):
            last = x @ weight[i] + bias[i]
            x = torch.relu(last)
        torch.testing.assert_close(value, last.squeeze(1))
    assert len(values.unique()) == 15
    torch.testing.assert_close(stacked(observation, action, first=True), values[:1])
    normalized = Critics(
        config_of("sac", "agent.network.torso.mlp.layer_norm=true").agent.config.network, spaces, 2
    )
    assert normalized.perceptrons is None
    assert normalized(observation, action).shape == (2, 5)
