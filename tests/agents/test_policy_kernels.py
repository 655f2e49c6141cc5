"""Tests that policies learn the same with kernels and derived gradients as with torch's own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from dqn_cases import Rewarding, play
from on_policy_cases import BOX, CHOICES, DISCRETE, VECTOR, build, network_of
from torch import Tensor, nn

import labrl
from labrl.errors import InputError
from labrl.learning.compute import Compute
from labrl.learning.learner import Learner

AGENTS: dict[str, tuple[str, ...]] = {
    "ppo": ("ppo", "agent.horizon=8", "agent.batch_size=16", "agent.entropy_coef=0.01"),
    "ppo with clipped values": (
        "ppo", "agent.horizon=8", "agent.batch_size=8", "agent.value_clip_range=0.1", "agent.entropy_coef=0",
        "agent.network.shared=true",
    ),
    "a2c": ("a2c", "agent.horizon=5", "agent.normalize_advantage=true"),
    "a2c with two learning rates": ("a2c", "agent.horizon=5", "agent.value_lr=1e-3"),
    "reinforce": ("reinforce", "agent.episodes=2"),
    "reinforce with values": (
        "reinforce", "agent.episodes=2", "agent.baseline=value", "agent.value_coef=0.5",
    ),
    "self-imitation": ("sil_ppo", "agent.horizon=8", "agent.batch_size=16"),
}  # fmt: skip


def make_agent(name: str, kernels: bool, action: gym.Space = DISCRETE) -> Any:
    notes: list[str] = []
    compute = dataclasses.replace(Compute.choose("cpu", "fp32", 1), kernels=kernels, note=notes.append)
    agent, clock, streams = build(*AGENTS[name], action=action, compute=compute)
    assert notes == []
    return agent, clock, streams


def weights(agent: Any) -> Tensor:
    return torch.cat([each.detach().flatten() for each in network_of(agent).parameters()])


ACTIONS = {"discrete": DISCRETE, "choices": CHOICES, "box": BOX}


@pytest.mark.parametrize(
    ("name", "action"),
    [
        pytest.param(
            name,
            space,
            id=f"{name}-{kind}",
            marks=() if kind == "discrete" or name == "ppo" else pytest.mark.matrix,
        )
        for name in AGENTS
        for kind, space in ACTIONS.items()
    ],
)
def test_weights_after_100_updates_equal_those_of_autograd(name: str, action: gym.Space) -> None:
    (agent, clock, _), (other, other_clock, _) = (
        make_agent(name, kernels, action) for kernels in (True, False)
    )
    before = weights(agent)
    torch.testing.assert_close(before, weights(other))
    worlds, updates = (Rewarding(VECTOR, 4), Rewarding(VECTOR, 4)), 0
    while updates < 100:
        updates += play(agent, clock, worlds[0], 8)
        play(other, other_clock, worlds[1], 8)
    distance = float((weights(agent) - before).norm())
    assert distance > 0
    assert float((weights(agent) - weights(other)).norm()) <= 1e-3 * distance
    for name, metric in agent.metrics().items():
        assert metric == pytest.approx(other.metrics()[name], rel=1e-2, abs=1e-3, nan_ok=True), name


WITHOUT_KERNEL = {
    "Mish": ("ppo", "agent/network=mlp", "agent.network.torso.activation=Mish"),
    "recurrent": ("recurrent_ppo",),
    "ExploringHead": ("ppo", "agent.sde={steps: 4, log_std_init: -2}"),
    "NoisyLinear": ("dqn", "agent.network.noisy=0.5", "agent/exploration=noise"),
}
"""Overrides of agents whose network has no kernel, by the reason that the log gives."""


@pytest.mark.parametrize("named", WITHOUT_KERNEL)
def test_missing_kernel_is_logged_once(named: str) -> None:
    notes: list[str] = []
    compute = dataclasses.replace(Compute.choose("cpu", "fp32", 1), note=notes.append)
    action = BOX if named == "ExploringHead" else DISCRETE
    build(*WITHOUT_KERNEL[named], action=action, compute=compute)
    assert len(notes) == 1
    assert named in notes[0]
    plain = dataclasses.replace(compute, kernels=False)
    build(*WITHOUT_KERNEL[named], action=action, compute=plain)
    assert len(notes) == 1, "meta.kernels=torch must not log missing kernels"


def test_loss_of_ones_own_is_computed_with_the_kernel() -> None:
    notes: list[str] = []
    compute = dataclasses.replace(Compute.choose("cpu", "fp32", 1), note=notes.append)
    network = network_of(build("ppo", compute=compute)[0])
    learner = Learner(network, compute, lambda flat: NoStep())

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
    assert not notes


def test_loss_that_differentiates_by_weights_names_the_key() -> None:
    compute = Compute.choose("cpu", "fp32", 1)
    network = network_of(build("ppo", compute=compute)[0])
    learner = Learner(network, compute, lambda flat: NoStep())

    def loss(module: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
        value = module(rows).parameters.square().mean()
        (slope, *_) = torch.autograd.grad(value, list(module.parameters()), create_graph=True)
        return value + slope.square().sum(), value.detach().reshape(1)

    with pytest.raises(InputError) as error:
        learner.gradient(loss, torch.ones(4, 3))
    assert error.value.key == "meta.kernels"


class NoStep:
    """An optimizer that changes nothing."""

    def step(self, lr: float) -> float:
        return 0.0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def test_missing_kernel_is_in_the_session_log_unless_kernels_is_torch(tmp_path: Path) -> None:
    overrides = [
        "agent=a2c", "env=cartpole", "preset=none", "env.max_frame=64", "agent/network=mlp", "wandb=disabled",
        "agent.network.torso.activation=Mish", "agent.network.torso.hidden=[8]", "meta=dev",
    ]  # fmt: skip
    for kernels, expected in (("auto", True), ("torch", False)):
        folder = tmp_path / kernels
        labrl.train([*overrides, f"hydra.run.dir={folder}", f"meta.kernels={kernels}"], raise_on_failure=True)
        log = folder / "session_0" / "session.log"
        assert (log.exists() and "Mish" in log.read_text()) == expected
