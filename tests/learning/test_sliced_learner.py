"""Tests of learners whose workers compute slices of a minibatch: their sum is the gradient of the whole."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

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
    updated,
    without_amx,  # noqa: F401
)
from torch import Tensor, nn
from torch.nn.utils import parametrize

from labrl.learning.compute import Compute
from labrl.learning.learner import Learner
from labrl.learning.make import make_learner
from labrl.spaces import Spaces

pytestmark = pytest.mark.usefixtures("without_amx")
SPACES = Spaces(gym.spaces.Box(0, 255, (3, 36, 36), np.uint8), gym.spaces.Discrete(2), 4)
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
    for _ in range(2):  # the second gradient must not contain the first
        SEEN.clear()
        statistics = learner.gradient(mean_loss, ROWS)
    assert sum(rows for rows, *_ in SEEN) == len(ROWS)
    assert len(SEEN) == num_workers
    assert len({thread for _, thread, *_ in SEEN}) >= min(num_workers, 2)
    for found, gradient in zip(gradients(learner), expected, strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(statistics, means)
    learner.close()


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_statistics_of_rows_keep_the_order_of_the_rows(num_workers: int) -> None:
    learner = learner_of(compute(num_workers))
    statistics = learner.gradient(loss_of_rows, ROWS)
    with torch.no_grad():
        outputs = learner.network(ROWS.inputs)
    expected = torch.stack([(outputs - ROWS.targets).square().mean(1), outputs.mean(1)])
    torch.testing.assert_close(statistics, expected)
    assert statistics.shape == (2, 31)
    learner.close()


def test_repeated_gradients_are_equal_bit_for_bit() -> None:
    learner = learner_of(compute(2))
    found = []
    for _ in range(5):
        learner.gradient(mean_loss, ROWS)
        found.append(learner.flat.gradient.clone())
    assert all(torch.equal(found[0], other) for other in found[1:])
    learner.close()


class Pair(NamedTuple):
    first: Tensor
    second: Tensor | None


class Two(nn.Module):
    """Network with several inputs, options and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor, factor: Tensor | None = None, *, half: bool = False) -> Pair:
        outputs = self.layer(x) if factor is None else self.layer(x) * factor
        return Pair(outputs.float(), None if half else outputs.sum(1).float())


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_forward_has_the_inputs_and_outputs_of_the_network(precision: torch.dtype) -> None:
    torch.manual_seed(0)
    learner = learner_of(compute(2, precision), Two())
    x, factor = np.random.default_rng(0).normal(size=(9, 3)), np.arange(9.0).reshape(9, 1)
    for inputs, options in (((x,), {}), ((x, factor), {}), ((x, None), {"half": True})):
        found = learner.forward(*inputs, **options)
        tensors = [None if each is None else torch.from_numpy(each).float() for each in inputs]
        with torch.inference_mode(), autocast() if precision == torch.bfloat16 else torch.no_grad():
            expected = learner.network(*tensors, **options)
        assert type(found) is Pair
        assert (found.second is None) == ("half" in options)
        for array, tensor in zip(found, expected, strict=True):
            assert (array is None) == (tensor is None)
            if tensor is not None:
                assert isinstance(array, np.ndarray)
                np.testing.assert_allclose(array, tensor, rtol=1e-5, atol=1e-6)
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


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_twin_and_frozen_networks_compute_in_the_same_precision(precision: torch.dtype) -> None:
    learner = learner_of(compute(2, precision))
    twin, _ = learner.copy_network()
    context = autocast() if precision == torch.bfloat16 else torch.no_grad()
    with context:
        expected = learner.network(ROWS.inputs)
    assert torch.equal(learner.forward_network(ROWS.inputs), expected)
    for net in (twin, learner.frozen()):
        assert torch.equal(learner.accelerate(net)(ROWS.inputs), expected)
        assert not any(parameter.requires_grad for parameter in net.parameters())
    updated(learner, ROWS)
    assert torch.equal(learner.accelerate(twin)(ROWS.inputs), expected)
    assert not torch.equal(learner.forward_network(ROWS.inputs), expected)
    learner.close()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_forward_hooks_are_called_once_with_all_rows(precision: torch.dtype) -> None:
    learner = learner_of(compute(2, precision))
    learner.gradient(mean_loss, ROWS)
    before = learner.forward(ROWS.inputs.numpy()), learner.flat.gradient.clone()
    calls: list[int] = []

    def halved(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        calls.append(len(output))
        return output * 0

    layer = learner.network[3]
    hook = layer.register_forward_hook(halved)
    outputs = learner.forward(ROWS.inputs.numpy())
    learner.gradient(mean_loss, ROWS)
    assert calls == [31, 31]
    np.testing.assert_allclose(outputs, np.broadcast_to(learner.network[5].bias.detach(), (31, 2)), rtol=0.01)
    assert not layer.weight.grad.any()
    assert learner.network[5].bias.grad.any()
    hook.remove()
    learner.gradient(mean_loss, ROWS)
    assert np.array_equal(learner.forward(ROWS.inputs.numpy()), before[0])
    assert torch.equal(learner.flat.gradient, before[1])
    learner.close()


def test_backward_hooks_are_called_and_change_the_gradient() -> None:
    learner = learner_of(compute(2))
    calls: list[int] = []

    def nothing(module: nn.Module, inputs: Any, outputs: Any) -> Any:
        calls.append(len(outputs[0]))
        return tuple(torch.zeros_like(each) for each in inputs)

    hook = learner.network[4].register_full_backward_hook(nothing)
    learner.gradient(mean_loss, ROWS)
    assert calls == [31]
    assert not learner.network[0].weight.grad.any()
    hook.remove()
    learner.gradient(mean_loss, ROWS)
    assert calls == [31]
    assert learner.network[0].weight.grad.any()
    learner.close()


@pytest.mark.parametrize("before", [False, True], ids=["later", "from the beginning"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_parametrizations_are_applied(precision: torch.dtype, before: bool) -> None:
    module = network()
    if before:
        parametrize.register_parametrization(module[0], "weight", Doubled())
    learner = learner_of(compute(2, precision), module)
    if not before:
        updated(learner, ROWS)
        parametrize.register_parametrization(module[0], "weight", Doubled())
    context = autocast() if precision == torch.bfloat16 else None
    exact = 1e-5 if precision == torch.float32 else 0.02
    for _ in range(2):
        expected, means = reference(module, ROWS, context)
        torch.testing.assert_close(learner.gradient(mean_loss, ROWS), means, rtol=exact, atol=exact)
        for found, gradient in zip(gradients(learner), expected, strict=True):
            torch.testing.assert_close(found, gradient, rtol=exact, atol=exact)
        outputs = learner.forward(ROWS.inputs.numpy())
        with torch.no_grad():
            wanted = learner.forward_network(ROWS.inputs)
        np.testing.assert_allclose(outputs, wanted, rtol=exact, atol=exact)
        learner.step(0.1)
    learner.close()
