"""Tests of learners whose workers compute slices of a minibatch: their sum is the gradient of the whole."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from learner_cases import (
    ADAM,
    CHANGES,
    Doubled,
    Rows,
    autocast,
    compute,
    gradients,
    loss_of_rows,
    mean_loss,
    reference,
    without_amx,  # noqa: F401
)
from numpy.typing import NDArray
from options import options
from torch import Tensor, nn
from torch.nn.utils import parametrize

from labrl.learning.compute import Compute
from labrl.learning.learner import Learner
from labrl.learning.make import make_learner
from labrl.networks.actor_critic import ActorCritic
from labrl.networks.layers import Float32Linear
from labrl.networks.q_network import QNetwork
from labrl.networks.torso import NatureCNN
from labrl.spaces import Spaces

pytestmark = pytest.mark.usefixtures("without_amx")
TWO, VECTOR = gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (6,))
IMAGE = gym.spaces.Box(0, 255, (4, 44, 36), np.uint8)
SPACES = Spaces(gym.spaces.Box(0, 255, (3, 36, 36), np.uint8), TWO, 4)
ROWS = Rows(
    torch.randn(31, 3, 6, 6, generator=torch.Generator().manual_seed(1)),
    torch.randn(31, 2, generator=torch.Generator().manual_seed(2)),
)
SEEN: list[tuple[int, str, bool, int]] = []
"""Calls of a network: number of rows, name of the thread, training mode, number of PyTorch's threads."""
BF16 = compute(2, torch.bfloat16)


class Watched(nn.Sequential):
    """Network that records its calls in SEEN."""

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append((len(x), threading.current_thread().name, self.training, torch.get_num_threads()))
        return super().forward(x).float()


def network() -> Watched:
    torch.manual_seed(0)
    return Watched(
        nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 16, 7), nn.Tanh(), nn.Linear(7, 2)
    )


def learner_of(of: Compute, module: nn.Module | None = None, **options: Any) -> Learner[Any]:
    SEEN.clear()
    return make_learner(module or network(), SPACES, of, ADAM, **options)


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_gradients_of_slices_add_up_to_that_of_the_minibatch(
    num_workers: int, memory_format: torch.memory_format
) -> None:
    expected, means = reference(network(), ROWS)
    learner = learner_of(compute(num_workers), network().to(memory_format=memory_format))
    repeated = []
    for _ in range(3):  # the second gradient must not contain the first
        SEEN.clear()
        statistics = learner.gradient(mean_loss, ROWS)
        repeated.append(learner.flat.gradient.clone())
    assert all(torch.equal(repeated[0], other) for other in repeated)
    assert sum(rows for rows, *_ in SEEN) == len(ROWS)
    assert len(SEEN) == num_workers
    assert len({thread for _, thread, *_ in SEEN}) >= min(num_workers, 2)
    for found, gradient in zip(gradients(learner), expected, strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(statistics, means)
    of_rows = learner.gradient(loss_of_rows, ROWS)
    torch.testing.assert_close(of_rows, loss_of_rows(learner.network, ROWS)[1])
    learner.close()


@pytest.mark.parametrize("change", CHANGES)
def test_all_workers_use_changed_weights(change: Any) -> None:
    learner = learner_of(compute(3))
    before = learner.forward(ROWS.inputs.numpy())
    change(learner, ROWS)
    expected, _ = reference(learner.network, ROWS)
    learner.gradient(mean_loss, ROWS)
    for found, gradient in zip(gradients(learner), expected, strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-6)
    SEEN.clear()
    after = learner.forward(ROWS.inputs.numpy())
    assert len(SEEN) == 3
    with torch.no_grad():
        np.testing.assert_allclose(after, learner.network(ROWS.inputs), rtol=1e-5, atol=1e-6)
    assert not np.allclose(after, before)
    learner.close()


@pytest.mark.parametrize("failing", ["MainThread", "learner"])
def test_error_of_a_worker_is_raised_and_the_learner_stays_usable(failing: str) -> None:
    learner = learner_of(compute(2))
    threads = torch.get_num_threads()
    learner.gradient(mean_loss, ROWS)
    expected = learner.flat.gradient.clone()

    def broken(net: nn.Module, rows: Rows) -> tuple[Tensor, Tensor]:
        if threading.current_thread().name.startswith(failing):
            raise RuntimeError("in a worker")
        return mean_loss(net, rows)

    with pytest.raises(RuntimeError, match="in a worker"):
        learner.gradient(broken, ROWS)
    assert torch.get_num_threads() == threads
    learner.gradient(mean_loss, ROWS)
    assert torch.equal(learner.flat.gradient, expected)
    learner.close()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_all_workers_follow_the_training_mode_of_the_network(
    num_workers: int, precision: torch.dtype
) -> None:
    # CrossQ normalizes by statistics of the minibatch only in training mode.
    learner = learner_of(compute(num_workers, precision))
    for training in (False, True):
        SEEN.clear()
        learner.network.train(training)
        learner.forward(ROWS.inputs.numpy())
        learner.gradient(mean_loss, ROWS)
        assert [seen for _, _, seen, _ in SEEN] == [training] * 2 * num_workers
    learner.close()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_minibatches_are_not_sliced_with_whole_minibatches(precision: torch.dtype) -> None:
    learner = learner_of(compute(3, precision), whole_minibatches=True)
    learner.gradient(mean_loss, ROWS)
    learner.forward(ROWS.inputs.numpy())
    assert [rows for rows, *_ in SEEN] == [31, 31]
    learner.close()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_worker_without_a_slice_adds_nothing_to_the_gradient(precision: torch.dtype) -> None:
    learner = learner_of(compute(2, precision))
    learner.gradient(mean_loss, ROWS)
    learner.gradient(mean_loss, ROWS[:1])
    context = autocast() if precision == torch.bfloat16 else None
    expected, _ = reference(learner.network, ROWS[:1], context)
    assert all(map(torch.equal, gradients(learner), expected))
    learner.close()


@pytest.mark.parametrize(
    ("capability", "num_workers", "threads"), [("amx_bf16", 1, [2, 1]), ("avx512_bf16", 2, [1, 1, 1, 1])]
)
def test_all_cores_share_each_matrix_product_only_with_amx(
    capability: str, num_workers: int, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {capability: True}, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        learner = learner_of(BF16)
        learner.gradient(mean_loss, ROWS)
        learner.forward(ROWS.inputs.numpy())
        assert [each for *_, each in SEEN] == threads
        assert len({thread for _, thread, *_ in SEEN}) == num_workers
        learner.step(0.1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    learner.close()


def large_network() -> nn.Module:
    """Return a network with weights that are rounded once for all workers in bfloat16."""
    torch.manual_seed(0)
    config = options("agent.network.torso", "agent/network=nature_cnn", features=2048)
    return nn.Sequential(NatureCNN(config, IMAGE), Float32Linear(2048, 2))


def actor_critic() -> nn.Module:
    torch.manual_seed(0)
    config = options("agent.network", "agent/network=nature_cnn")
    return ActorCritic(config, Spaces(IMAGE, TWO, 4), num_outputs=2, log_std_init=None)


def q_network() -> nn.Module:
    torch.manual_seed(0)
    config = options("agent.network", "agent=dqn agent/network=mlp", dueling=True, head=[5])
    return QNetwork(config, Spaces(VECTOR, TWO, 4), num_actions=2, num_outputs=3)


IMAGES = np.random.default_rng(0).integers(0, 256, (36, 44, 36, 4), np.uint8)
LEARNERS: dict[str, tuple[Any, gym.spaces.Box, Compute, NDArray]] = {
    "kernel": (q_network, VECTOR, compute(1), ROWS.inputs[:, 0, 0].numpy()),
    "workers": (actor_critic, IMAGE, compute(2), IMAGES),
    "bfloat16": (large_network, IMAGE, BF16, IMAGES),
}
"""By the way in which outputs are computed: a network, its observation space, and observations."""


def parts(outputs: Any) -> list[Any]:
    """Return the outputs of a network, without the recurrent state."""
    return [each for each in outputs if each is not None] if isinstance(outputs, tuple) else [outputs]


def loss_of_first_output(net: Any, rows: Rows) -> tuple[Tensor, Tensor]:
    error = parts(net(rows.inputs))[0].float().square().mean()
    return error, error.detach().reshape(1)


@pytest.mark.parametrize("kind", LEARNERS)
def test_hooks_take_effect_until_they_are_removed(kind: str) -> None:
    make, space, of, seen = LEARNERS[kind]
    learner, rows = make_learner(make(), Spaces(space, TWO, 4), of, ADAM), Rows(torch.from_numpy(seen))
    learner.gradient(loss_of_first_output, rows)
    before, gradient = parts(learner.forward(seen))[0], learner.flat.gradient.clone()
    calls: list[int] = []

    def nothing(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        calls.append(len(output))
        return output * 0

    layer = next(part for part in learner.network.modules() if isinstance(part, nn.Linear))
    hook = layer.register_forward_hook(nothing)
    assert not np.allclose(parts(learner.forward(seen))[0], before)
    learner.gradient(loss_of_first_output, rows)
    assert calls == [len(seen)] * 2, "it was not called once with all rows"
    assert not layer.weight.grad.any()
    hook.remove()
    hook = layer.weight.register_hook(torch.zeros_like)
    learner.gradient(loss_of_first_output, rows)
    assert not layer.weight.grad.any()
    hook.remove()
    learner.gradient(loss_of_first_output, rows)
    assert np.array_equal(parts(learner.forward(seen))[0], before)
    assert torch.equal(learner.flat.gradient, gradient)
    learner.close()


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("kind", LEARNERS)
def test_parametrizations_take_effect(kind: str, later: bool) -> None:
    make, space, of, seen = LEARNERS[kind]
    module, rows = make(), Rows(torch.from_numpy(seen))
    layer = next(part for part in module.modules() if isinstance(part, nn.Linear))
    if not later:
        parametrize.register_parametrization(layer, "weight", Doubled())
    learner = make_learner(module, Spaces(space, TWO, 4), of, ADAM)
    if later:
        learner.gradient(loss_of_first_output, rows)
        parametrize.register_parametrization(layer, "weight", Doubled())
    exact = 0.02 if kind == "bfloat16" else 1e-5
    for _ in range(2):
        with autocast() if kind == "bfloat16" else torch.enable_grad():
            expected, _ = loss_of_first_output(module, rows)
            outputs = [each.detach().float() for each in parts(module(rows.inputs))]
        wanted = torch.autograd.grad(expected, list(module.parameters()), allow_unused=True)
        for found, output in zip(parts(learner.forward(seen)), outputs, strict=True):
            np.testing.assert_allclose(found, output, rtol=exact, atol=exact)
        learner.gradient(loss_of_first_output, rows)
        for weight, slope in zip(module.parameters(), wanted, strict=True):
            by_autograd = torch.zeros_like(weight) if slope is None else slope
            torch.testing.assert_close(weight.grad, by_autograd, rtol=exact, atol=exact)
        learner.step(0.1)
    learner.close()
