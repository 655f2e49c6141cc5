"""Tests of policy kernels: losses, gradients and learned weights equal those of autograd."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import Noise
from hypothesis import given, settings
from hypothesis import strategies as st
from on_policy_cases import (
    BOX,
    CHOICES,
    DISCRETE,
    SWITCHES,
    VECTOR,
    assert_continues_exactly,
    build,
    network_of,
    noise,
    play,
)
from torch import Tensor, nn

import labrl
from labrl.agents.a2c import policy_objective
from labrl.agents.parts.self_imitation import imitation_gradient, imitation_losses
from labrl.agents.policy_agent import OutputGradients, policy_gradient
from labrl.agents.ppo import clipped_policy_gradient, clipped_surrogate, value_loss
from labrl.learning.compute import Compute
from labrl.learning.learner import Learner
from labrl.networks.distributions import distribution_for, masked
from labrl.step import Step

SPACES: dict[str, tuple[gym.Space, Any]] = {
    "categorical": (DISCRETE, None),
    "multi-categorical": (CHOICES, None),
    "switches": (SWITCHES, None),
    "gaussian": (BOX, "clip"),
    "rescaled": (BOX, "rescale"),
    "squashed": (BOX, "squash"),
}
COEFFICIENTS = st.sampled_from([0.0, 0.01, 0.5])


@dataclasses.dataclass
class Case:
    """Random network outputs for a few rows, and the other inputs of a loss, in single precision."""

    distribution: Any
    parameters: Any
    action: Any
    value: Any
    columns: list[Any]
    mask: Any

    @classmethod
    def of(cls, name: str, rows: int, seed: int, with_mask: bool) -> Case:
        space, bounds = SPACES[name]
        rng = np.random.default_rng(seed)
        distribution = distribution_for(space, "ppo", bounds)
        parameters = rng.standard_normal((rows, distribution.num_parameters), np.float32)
        mask = None
        if with_mask and name in ("categorical", "multi-categorical"):
            mask = rng.random(parameters.shape) < 0.6
            mask[:, [0, -1]] = True  # each choice needs at least one valid action
            parameters = masked(parameters, mask)
        action = distribution.sample(parameters, rng).astype(
            np.float32 if name not in ("categorical", "multi-categorical") else np.int64
        )
        value = rng.standard_normal(rows, np.float32)
        columns = list(rng.standard_normal((4, rows), np.float32))
        return cls(distribution, parameters, action, value, columns, mask)

    def by_torch(self) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
        """Convert the case to PyTorch in double precision.

        Returns parameters and values (both with gradients), log-probabilities, entropies and columns.
        """
        parameters = torch.from_numpy(self.parameters).double().requires_grad_()
        value = torch.from_numpy(self.value).double().requires_grad_()
        masked_parameters = (
            parameters if self.mask is None else masked(parameters, torch.from_numpy(self.mask))
        )
        action = torch.from_numpy(self.action)
        log_prob, entropy = self.distribution.log_prob_entropy(masked_parameters, action)
        return (
            parameters,
            value,
            log_prob,
            entropy,
            [torch.from_numpy(each).double() for each in self.columns],
        )

    def evaluated(self) -> Any:
        parameters = self.parameters if self.mask is None else masked(self.parameters, self.mask)
        return self.distribution.derived(parameters, self.action)

    def assert_gradients(
        self, loss: Tensor, parameters: Tensor, value: Tensor, found: OutputGradients
    ) -> None:
        loss.backward()
        for gradient, reference in zip(found, (parameters.grad, value.grad), strict=True):
            expected = np.zeros(gradient.shape) if reference is None else reference.numpy()
            assert gradient.dtype == np.float32
            scale = max(float(np.linalg.norm(expected)), 1e-6)
            assert np.linalg.norm(gradient - expected) <= 1e-5 * scale


def cases(function: Any) -> Any:
    drawn = given(
        st.sampled_from(sorted(SPACES)), st.integers(1, 40), st.integers(0, 2**16), st.booleans(),
        COEFFICIENTS, COEFFICIENTS, st.data(),
    )  # fmt: skip
    return settings(max_examples=100, deadline=None)(drawn(function))


@cases
def test_ppo_loss_and_gradients_equal_autograd(
    name: str, rows: int, seed: int, with_mask: bool, value_coef: float, entropy_coef: float, data: Any
) -> None:
    case = Case.of(name, rows, seed, with_mask)
    clip = data.draw(st.sampled_from([0.0, 0.1, 0.3]))
    value_clip = data.draw(st.sampled_from([None, 0.0, 0.2, 1.0]))
    parameters, value, log_prob, entropies, columns = case.by_torch()
    advantage, target, old_value, change = columns
    old = (log_prob.detach() + 0.3 * change).float()
    ratio = (log_prob - old.double()).exp()
    policy = -clipped_surrogate(ratio, advantage, clip)
    error = value_loss(value, old_value, target, value_clip)
    entropy = entropies.mean()
    found, gradients = clipped_policy_gradient(
        case.evaluated(), case.value, case.columns[0], case.columns[1], old_log_prob=old.numpy(),
        old_value=case.columns[2], clip=clip, value_clip=value_clip, value_coef=value_coef,
        entropy_coef=entropy_coef,
    )  # fmt: skip
    kl = (ratio - 1 - ratio.log()).mean()
    clipped = ((ratio - 1).abs() > clip).double().mean()
    expected = torch.stack([policy, error, entropy, kl, clipped]).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    case.assert_gradients(policy + value_coef * error - entropy_coef * entropy, parameters, value, gradients)


@cases
def test_a2c_and_reinforce_loss_and_gradients_equal_autograd(
    name: str, rows: int, seed: int, with_mask: bool, value_coef: float, entropy_coef: float, data: Any
) -> None:
    case = Case.of(name, rows, seed, with_mask)
    parameters, value, log_prob, entropies, (advantage, target, *_) = case.by_torch()
    policy, error = -policy_objective(log_prob, advantage), 0.5 * (target - value).square().mean()
    entropy = entropies.mean()
    found, gradients = policy_gradient(
        case.evaluated(), case.value, case.columns[0], case.columns[1], value_coef, entropy_coef
    )
    expected = torch.stack([policy, error, entropy]).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    case.assert_gradients(policy + value_coef * error - entropy_coef * entropy, parameters, value, gradients)


@cases
def test_self_imitation_loss_and_gradients_equal_autograd(
    name: str, rows: int, seed: int, with_mask: bool, value_coef: float, policy_coef: float, data: Any
) -> None:
    case = Case.of(name, rows, seed, with_mask)
    weights = data.draw(st.sampled_from([0.0, 1.0]))
    parameters, value, log_prob, _, (worth, weight, *_) = case.by_torch()
    weight = weight.abs() * weights
    policy, error = imitation_losses(log_prob, value, worth)
    found, gradients = imitation_gradient(
        case.evaluated(), case.value, case.columns[0], weight.float().numpy(), policy_coef, value_coef
    )
    underrated = (worth - value).clamp(min=0)
    expected = torch.stack([policy, error, underrated, (underrated > 0).double()]).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    loss = torch.dot(policy_coef * policy + value_coef * error, weight) / rows
    case.assert_gradients(loss, parameters, value, gradients)


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


class Rewarding(Noise):
    """Environment with random observations whose reward depends on the first component of the action."""

    def step(self, action: Any) -> Step:
        return super().step(action.reshape(len(action), -1)[:, 0])


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


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "autograd"])
@pytest.mark.parametrize("name", AGENTS)
def test_restored_agent_continues_exactly(name: str, kernels: bool) -> None:
    assert_continues_exactly(lambda: make_agent(name, kernels), noise(), 11)


WITHOUT_KERNEL = {
    "Mish": ("ppo", "agent/network=mlp", "agent.network.torso.activation=Mish"),
    "recurrent": ("recurrent_ppo",),
    "NoisyLinear": ("dqn", "agent.network.noisy=0.5", "agent/exploration=noise"),
}
"""Overrides of agents whose network has no kernel, by the reason that the log gives."""


@pytest.mark.parametrize("named", WITHOUT_KERNEL)
def test_missing_kernel_is_logged_once(named: str) -> None:
    notes: list[str] = []
    compute = dataclasses.replace(Compute.choose("cpu", "fp32", 1), note=notes.append)
    build(*WITHOUT_KERNEL[named], compute=compute)
    assert len(notes) == 1
    assert named in notes[0]
    build(*WITHOUT_KERNEL[named], compute=dataclasses.replace(compute, kernels=False))
    assert len(notes) == 1, "meta.kernels=torch must not log missing kernels"


def test_custom_loss_uses_autograd_and_is_logged_once() -> None:
    notes: list[str] = []
    compute = dataclasses.replace(Compute.choose("cpu", "fp32", 1), note=notes.append)
    network = network_of(build("ppo", compute=compute)[0])
    learner = Learner(network, compute, lambda flat: NoStep())

    def loss(module: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor]:
        value = module(rows).parameters.square().mean()
        return value, value.detach().reshape(1)

    for _ in range(2):
        learner.gradient(loss, torch.ones(4, 3))
    assert learner.flat.gradient.count_nonzero() > 0
    assert len(notes) == 1
    assert type(network).__name__ in notes[0]


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
        "agent.network.torso.activation=Mish", "meta=dev",
    ]  # fmt: skip
    for kernels, expected in (("auto", True), ("torch", False)):
        folder = tmp_path / kernels
        labrl.train([*overrides, f"hydra.run.dir={folder}", f"meta.kernels={kernels}"], raise_on_failure=True)
        log = folder / "session_0" / "session.log"
        assert (log.exists() and "Mish" in log.read_text()) == expected
