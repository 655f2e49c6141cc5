"""Tests of TQC: truncated targets, the quantile loss, and updates against the equations of the paper."""

from __future__ import annotations

import copy

import pytest
import torch
from replay_actor_critic_cases import BOX, adam, assert_same, build, config_of, disturb, gaussian, made_up
from torch import Tensor

from labrl.agents.tqc import quantile_losses, smallest_atoms
from labrl.config.compose import compose

LR, TAU = 1e-2, 0.05
SMALL = (f"agent.lr={LR}", f"agent.target.tau={TAU}", "agent.critics=3", "agent.quantiles=4")


def test_targets_leave_out_the_largest_quantiles_of_all_critics_together() -> None:
    of_one, of_other = [[3.0, 1.0, 9.0], [0.0, 0.0, 1.0]], [[2.0, 8.0, 7.0], [5.0, 6.0, 7.0]]
    quantiles = torch.tensor([of_one, of_other])
    assert smallest_atoms(quantiles, 1).tolist() == [[1.0, 2.0, 3.0, 7.0], [0.0, 0.0, 1.0, 5.0]]
    assert smallest_atoms(quantiles, 0).shape == (2, 6)


def test_quantile_loss_matches_values_computed_by_hand() -> None:
    """The fractions are 1/4 and 3/4; the Huber losses of errors 1, 3.5, -1 and 1.5 are 0.5, 3, 0.5 and 1."""
    quantiles, target = torch.tensor([[[0.0, 2.0]]]), torch.tensor([[1.0, 3.5]])
    first = (0.25 * 0.5 + 0.25 * 3) / 2
    second = (0.25 * 0.5 + 0.75 * 1) / 2
    found = quantile_losses(quantiles, target, torch.tensor([2.0]))
    assert found.tolist() == [pytest.approx(2 * (first + second) / 2)]
    both = quantile_losses(quantiles.expand(2, -1, -1), target, torch.tensor([2.0]))
    assert both.tolist() == [pytest.approx(2 * (first + second))]


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


def test_updates_match_the_equations_of_the_paper() -> None:
    """Compare two updates with ones computed here from the equations and with PyTorch's Adam."""
    agent, _, streams = build(config_of("tqc", *SMALL, "agent.dropped=1"))
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
        optimizers[1].zero_grad()
        paper_loss(quantiles, goal, batch.weight).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        action, log_prob = gaussian(policy(batch.observation), noise[1])
        values = critics(batch.observation, action).mean((0, 2))
        (alpha * log_prob - values).mean().backward()
        optimizers[0].step()
        optimizers[2].zero_grad()
        (log_alpha * (-log_prob.detach().mean() + 2)).sum().backward()
        optimizers[2].step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), critics.parameters(), strict=True):
                slow.lerp_(fast, TAU)
        off = (quantiles.mean(2) - goal.mean(1)).detach().abs().mean(0)
        torch.testing.assert_close(errors, off, rtol=1e-3, atol=1e-4)
    for name, module in agent.modules().items():
        assert_same(module, nets[name])
    assert agent.metrics()["temperature"] == pytest.approx(float(log_alpha.detach().exp()), rel=1e-5)


def test_reported_loss_is_right_at_values_of_30000() -> None:
    agent, _, streams = build(config_of("tqc", *SMALL, "agent.dropped=1"))
    disturb(agent)
    with torch.no_grad():
        for name in ("critics", "target"):
            list(agent.modules()[name].parameters())[-1].add_(30_000)
    nets = copy.deepcopy(agent.modules())
    noise = torch.randn((2, 16, 2), generator=copy.deepcopy(streams.torch("noise")))[0]
    batch = made_up(BOX)
    batch.discount[:], batch.reward[:] = 1, 0
    agent.update(batch)
    with torch.no_grad():
        action, log_prob = gaussian(nets["policy"](batch.next_observation), noise)
        pooled = nets["target"](batch.next_observation, action).permute(1, 0, 2).reshape(16, 12)
        goal = pooled.sort(1).values[:, :9].double() - log_prob.unsqueeze(1)
        quantiles = nets["critics"](batch.observation, batch.action)
        expected = paper_loss(quantiles.double(), goal, batch.weight.double())
    assert agent.metrics()["loss_critic"] == pytest.approx(float(expected), rel=0.02)


def test_presets_have_the_values_of_the_paper() -> None:
    dropped = {
        env: compose(["agent=tqc", f"env={env}"]).agent.dropped for env in ("hopper", "half_cheetah", "ant")
    }
    assert dropped == {"hopper": 5, "half_cheetah": 0, "ant": 2}
    assert compose(["agent=tqc", "env=ant"]).agent.network.critic_torso.hidden == [512, 512, 512]
    assert compose(["agent=tqc", "env=pendulum"]).agent.lr == compose(["agent=sac", "env=pendulum"]).agent.lr
