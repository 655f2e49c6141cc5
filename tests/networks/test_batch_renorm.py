"""Tests of batch renormalization and of the networks and agents that use it."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from options import component, options
from refusals import refused
from torch import nn

from labrl.config.compose import compose, resolve
from labrl.envs.make import describe
from labrl.networks.batch_renorm import (
    BatchRenorm,
    RenormalizedCNN,
    RenormalizedMLP,
)
from labrl.networks.building import build_torso
from labrl.spaces import Spaces
from labrl.trial.contradictions import check_spaces

TORSO = "agent.network.torso"
RENORM = f"{TORSO}.renorm"


def minibatch(seed: int) -> torch.Tensor:
    return torch.randn((64, 5), generator=torch.Generator().manual_seed(seed)) * 3 + 2


def test_batch_renorm_equals_batch_norm_during_warmup() -> None:
    own, other = BatchRenorm(options(RENORM, "agent=crossq"), 5), nn.BatchNorm1d(5, eps=1e-3, momentum=0.01)
    for layer in (own, other):
        nn.init.constant_(layer.weight, 1.5)
        nn.init.constant_(layer.bias, 0.5)
    for seed in range(5):
        inputs = [minibatch(seed).requires_grad_() for _ in range(2)]
        outputs = [layer(x) for layer, x in zip((own, other), inputs, strict=True)]
        torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
        for y in outputs:
            (y**3).sum().backward()
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(own.weight.grad, other.weight.grad, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(own.mean, other.running_mean)
    torch.testing.assert_close(own.variance, other.running_var)
    assert int(own.minibatches) == 5
    torch.testing.assert_close(own.eval()(minibatch(9)), other.eval()(minibatch(9)), rtol=1e-4, atol=1e-5)


def test_batch_renorm_equals_algorithm_1_of_paper_after_warmup() -> None:
    config = options(RENORM, "agent=crossq", warmup=0, r_max=1.2, d_max=0.3, momentum=0.1)
    layer = BatchRenorm(config, 5)
    for seed in range(3):
        x, y = minibatch(seed).requires_grad_(), minibatch(seed).requires_grad_()
        mean, variance = layer.mean.clone(), layer.variance.clone()
        batch_mean, batch_std = y.mean(0), (y.var(0, correction=0) + 1e-3).sqrt()
        std = (variance + 1e-3).sqrt()
        r = (batch_std / std).detach().clamp(1 / 1.2, 1.2)
        d = ((batch_mean - mean) / std).detach().clamp(-0.3, 0.3)
        expected, found = (y - batch_mean) / batch_std * r + d, layer(x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        found.pow(3).sum().backward()
        expected.pow(3).sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-3)


def test_evaluation_keeps_state_and_ignores_rest_of_minibatch() -> None:
    layer = BatchRenorm(options(RENORM, "agent=crossq", warmup=0), 5)
    layer(minibatch(0))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    layer.eval()
    whole = layer(minibatch(1))
    torch.testing.assert_close(layer(minibatch(1)[:1]), whole[:1])
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


def test_each_position_of_feature_maps_counts_as_a_row() -> None:
    own, other = BatchRenorm(options(RENORM, "agent=crossq"), 5), nn.BatchNorm2d(5, eps=1e-3, momentum=0.01)
    maps = [minibatch(0)[:, :, None, None].expand(-1, -1, 3, 4) + torch.arange(4) for _ in range(2)]
    for x in maps:
        x.requires_grad_()
    outputs = [layer(x) for layer, x in zip((own, other), maps, strict=True)]
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
    for y in outputs:
        (y**3).sum().backward()
    torch.testing.assert_close(maps[0].grad, maps[1].grad, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(own.variance, other.running_var)
    torch.testing.assert_close(own.eval()(maps[0]), other.eval()(maps[0]), rtol=1e-4, atol=1e-5)


IMAGE = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
VECTOR = gym.spaces.Box(-1, 1, (3,), np.float32)


@pytest.mark.parametrize(
    ("space", "kinds"),
    [
        (VECTOR, {RenormalizedMLP}),
        (gym.spaces.Box(0, 255, (4, 20, 20), np.uint8), {RenormalizedMLP}),
        (IMAGE, {RenormalizedCNN}),
        (gym.spaces.Dict(picture=IMAGE, mark=VECTOR), {RenormalizedCNN, RenormalizedMLP}),
    ],
)
def test_torso_fits_the_observation_space(space: gym.Space, kinds: set[type[nn.Module]]) -> None:
    torso = build_torso(component(TORSO, "agent=crossq", hidden=[16], features=8), space)
    assert {type(part) for part in torso.modules()} & {RenormalizedMLP, RenormalizedCNN} == kinds
    renorms = [part for part in torso.modules() if isinstance(part, BatchRenorm)]
    assert renorms, "the torso has no batch renormalization"
    assert all(int(part.minibatches) == 0 for part in renorms), "building the torso counted as a minibatch"


RENORMALIZED = ("agent/network=batch_renorm",)
RECURRENT = ("agent/network=gru", "agent/network@agent.network.torso=batch_renorm")
IN_CRITICS = (
    "agent.network.critic_torso={_target_: labrl.networks.batch_renorm.RenormalizedMLP, hidden: [8], "
    "activation: ReLU, initialization: uniform, "
    "renorm: {momentum: 0.01, warmup: 100, r_max: 3.0, d_max: 5.0, eps: 1e-3}}",
)


@pytest.mark.parametrize(
    ("agent", "overrides"),
    [(agent, RENORMALIZED) for agent in ("sac", "td3", "ppo", "dqn", "sarsa")]
    + [("recurrent_ppo", RECURRENT), ("ddpg", IN_CRITICS)],
)
def test_agents_other_than_crossq_reject_batch_renorm(agent: str, overrides: tuple[str, ...]) -> None:
    env = "pendulum" if agent in ("td3", "ddpg") else "cartpole"
    config = resolve(compose([f"agent={agent}", f"env={env}", "preset=none", *overrides]))
    key = "agent.network.critic_torso" if overrides == IN_CRITICS else TORSO
    with refused("unsupported", key, "agent=crossq"):
        check_spaces(config, "", Spaces(*describe(config.env), 1), masked=False)


def test_crossq_accepts_batch_renorm_in_policy_and_critics() -> None:
    config = resolve(compose(["agent=crossq", "env=pendulum", "preset=none", *IN_CRITICS]))
    check_spaces(config, "", Spaces(*describe(config.env), 1), masked=False)
