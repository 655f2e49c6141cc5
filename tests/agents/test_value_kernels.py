"""Tests that action values and critics learn the same with kernels as with torch's own gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import dqn_cases
import gymnasium as gym
import pytest
import replay_actor_critic_cases as cases
import torch
from dqn_cases import Noise
from replay_actor_critic_cases import BOX, CHOICE, disturb, made_up
from torch import Tensor

from labrl.learning.compute import Compute


def set_kernels(monkeypatch: pytest.MonkeyPatch, notes: list[str], kernels: bool) -> None:
    """Make `Compute.choose` switch kernels on or off and append its notes to `notes`."""
    choose: Callable[..., Compute] = Compute.choose

    def choose_with_kernels(cls: type[Compute], *overrides: Any, **named: Any) -> Compute:
        return dataclasses.replace(choose(*overrides, **named), kernels=kernels, note=notes.append)

    monkeypatch.setattr(Compute, "choose", classmethod(choose_with_kernels))


def weights(agent: Any) -> dict[str, Tensor]:
    return {
        name: torch.cat([weight.detach().flatten() for weight in module.parameters()])
        for name, module in agent.modules().items()
    }


@pytest.mark.parametrize(
    ("name", "action"),
    [("sac", BOX), ("tqc", BOX), ("td3", BOX), ("td3_bc", BOX), ("ddpg", BOX), ("sac", CHOICE)],
)
def test_actor_critic_weights_after_100_updates_equal_those_of_autograd(
    name: str, action: gym.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for kernels in (True, False):
        with monkeypatch.context() as patch:
            notes: list[str] = []
            set_kernels(patch, notes, kernels)
            agent, _, _ = cases.build(cases.config_of(name), action)
            disturb(agent)
            for i in range(100):
                agent.update(made_up(action, seed=i))
            assert not notes
            found.append(weights(agent))
    for network, expected in found[1].items():
        assert float((found[0][network] - expected).norm()) <= 1e-5 * float(expected.norm()), network


EARLY = (
    "agent.learning_starts=8", "agent.batch_size=16", "agent.exploration.epsilon=1", "agent.target.every=40"
)  # fmt: skip
FAMILY = [
    ("dqn",),
    ("double_dqn", "agent.value.loss=squared"),
    ("dueling_dqn", "agent/memory=prioritized", "agent.n_step=3"),
    ("c51",),
    ("qr_dqn",),
]


@pytest.mark.parametrize("overrides", FAMILY, ids=[overrides[0] for overrides in FAMILY])
def test_dqn_family_weights_after_100_updates_equal_those_of_autograd(
    overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for kernels in (True, False):
        with monkeypatch.context() as patch:
            notes: list[str] = []
            set_kernels(patch, notes, kernels)
            # Actions are random, so that both agents learn from the same minibatches.
            config = dqn_cases.config_of(*overrides, *EARLY)
            agent, clock, _ = dqn_cases.build(config, cases.VECTOR)
            assert dqn_cases.play(agent, clock, Noise(cases.VECTOR, 4), 115) >= 100
            assert not notes
            found.append(weights(agent))
    for network, expected in found[1].items():
        assert float((found[0][network] - expected).norm()) <= 1e-5 * float(expected.norm()), network


@pytest.mark.parametrize(
    "overrides",
    [("sac", "agent.network.torso.mlp.layer_norm=true"), ("crossq",)],
    ids=["layer_norm", "crossq"],
)
def test_networks_without_a_kernel_learn_by_autograd_and_are_noted(
    overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    set_kernels(monkeypatch, notes, kernels=True)
    agent, _, _ = cases.build(cases.config_of(*overrides))
    for i in range(6):
        agent.update(made_up(BOX, seed=i))
    assert sorted(note.split()[0] for note in notes) == ["Critics", "PolicyNetwork"]
