"""Tests that agents learn the same with kernels and derived gradients as with torch's own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from agent_cases import (
    BOX,
    CHOICES,
    DISCRETE,
    Noise,
    build,
    cpu,
    disturb,
    made_up,
    network_of,
    play,
    weights_of,
)
from torch import Tensor, nn

import labrl
from labrl.errors import InputError
from labrl.learning.learner import Learner

ROLLOUT = ("agent.horizon=8", "agent.batch_size=16")
CLIPPED = ("agent.value_clip_range=0.1", "agent.entropy_coef=0", "agent.network.shared=true")
EPISODES = ("agent.episodes=2",)
# Actions are random, so that both agents learn from the same minibatches.
REPLAY = ("agent.learning_starts=8", "agent.exploration.epsilon=1", "agent.target.every=40")
POLICIES = [
    ("ppo", *ROLLOUT, "agent.entropy_coef=0.01"),
    ("ppo", *ROLLOUT, *CLIPPED),
    ("a2c", "agent.normalize_advantage=true"),
    ("a2c", "agent.value_lr=1e-3"),
    ("reinforce", *EPISODES),
    ("reinforce", *EPISODES, "agent.baseline=value", "agent.value_coef=0.5"),
    ("sil_ppo", *ROLLOUT),
]
CASES = [
    *((overrides, DISCRETE) for overrides in POLICIES),
    *((POLICIES[0], action) for action in (CHOICES, BOX)),
    *(
        pytest.param(overrides, action, marks=pytest.mark.matrix)
        for overrides in POLICIES[1:]
        for action in (CHOICES, BOX)
    ),
    (("dqn", *REPLAY), DISCRETE),
    (("double_dqn", *REPLAY, "agent.value.loss=squared"), DISCRETE),
    (("dueling_dqn", *REPLAY, "agent/memory=prioritized", "agent.n_step=3"), DISCRETE),
    (("c51", *REPLAY), DISCRETE),
    (("qr_dqn", *REPLAY), DISCRETE),
    *(((agent,), BOX) for agent in ("sac", "tqc", "td3", "td3_bc", "ddpg")),
    (("sac",), DISCRETE),
]


def taught(agent: str, *overrides: str, action: gym.Space, kernels: bool, notes: list[str]) -> Any:
    """Return an agent before and after 100 updates, the first as a vector of its weights."""
    compute = dataclasses.replace(cpu(), kernels=kernels, note=notes.append)
    player, clock, _ = build(agent, *overrides, action=action, compute=compute)
    if "critics" in player.modules():
        disturb(player)
        before = weights_of(player)
        for i in range(100):
            player.update(made_up(action, seed=i))
        return before, player
    before, world, updates = weights_of(player), Noise(), 0
    while updates < 100:
        updates += play(player, clock, world, 8)
    return before, player


@pytest.mark.parametrize(("overrides", "action"), CASES)
def test_weights_after_100_updates_equal_those_of_autograd(
    overrides: tuple[str, ...], action: gym.Space
) -> None:
    notes: list[str] = []
    before, one = taught(*overrides, action=action, kernels=True, notes=notes)
    _, other = taught(*overrides, action=action, kernels=False, notes=notes)
    assert not notes
    distance = float((weights_of(one) - before).norm())
    assert distance > 0
    policy, error = "actor_critic" in one.modules(), float((weights_of(one) - weights_of(other)).norm())
    assert error <= (1e-3 * distance if policy else 1e-5 * float(weights_of(other).norm()))
    if policy:
        for name, metric in one.metrics().items():
            assert metric == pytest.approx(other.metrics()[name], rel=1e-2, abs=1e-3, nan_ok=True), name


WITHOUT_KERNEL = [
    (["Mish"], DISCRETE, ("ppo", "agent/network=mlp", "agent.network.torso.activation=Mish")),
    (["recurrent"], DISCRETE, ("recurrent_ppo",)),
    (["ExploringHead"], BOX, ("ppo", "agent.sde={steps: 4, log_std_init: -2}")),
    (["NoisyLinear"], DISCRETE, ("dqn", "agent.network.noisy=0.5", "agent/exploration=noise")),
    (["Critics", "PolicyNetwork"], BOX, ("sac", "agent.network.torso.mlp.layer_norm=true")),
    (["Critics", "PolicyNetwork"], BOX, ("crossq",)),
]


@pytest.mark.parametrize(("named", "action", "overrides"), WITHOUT_KERNEL)
def test_missing_kernel_is_noted_once_unless_kernels_are_switched_off(
    named: list[str], action: gym.Space, overrides: tuple[str, ...]
) -> None:
    for kernels in (False, True):
        notes: list[str] = []
        compute = dataclasses.replace(cpu(), kernels=kernels, note=notes.append)
        build(*overrides, action=action, compute=compute)
        assert len(notes) == (len(named) if kernels else 0)
        assert all(name in note for name, note in zip(named, sorted(notes), strict=False))


def test_missing_kernel_is_in_the_session_log(tmp_path: Path) -> None:
    overrides = ["agent=a2c", "env=cartpole", "preset=none", "env.max_frame=64", "agent/network=mlp"]
    overrides += ["agent.network.torso.activation=Mish", "agent.network.torso.hidden=[8]", "meta=dev"]
    labrl.train([*overrides, "wandb=disabled", f"hydra.run.dir={tmp_path}"], raise_on_failure=True)
    assert "Mish" in (tmp_path / "session_0" / "session.log").read_text()


class NoStep:
    """An optimizer that changes nothing."""

    def step(self, lr: float) -> float:
        return 0.0


def test_loss_of_ones_own_is_computed_with_the_kernel() -> None:
    network = network_of(build("ppo")[0])
    learner = Learner(network, cpu(), lambda flat: NoStep())

    def loss(module: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor]:
        value = module(rows).parameters.square().mean()
        return value, value.detach().reshape(1)

    learner.gradient(loss, torch.ones(4, 3))
    found = learner.flat.gradient.clone()
    learner.flat.gradient.zero_()
    loss(network, torch.ones(4, 3))[0].backward()
    assert found.count_nonzero() > 0
    torch.testing.assert_close(found, learner.flat.gradient)
    assert "Evaluate" in learner.forward_network(torch.ones(4, 3)).parameters.grad_fn.name()


def test_loss_that_differentiates_by_weights_names_the_key() -> None:
    learner = Learner(network_of(build("ppo")[0]), cpu(), lambda flat: NoStep())

    def loss(module: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
        value = module(rows).parameters.square().mean()
        (slope, *_) = torch.autograd.grad(value, list(module.parameters()), create_graph=True)
        return value + slope.square().sum(), value.detach().reshape(1)

    with pytest.raises(InputError) as error:
        learner.gradient(loss, torch.ones(4, 3))
    assert error.value.key == "meta.kernels"
