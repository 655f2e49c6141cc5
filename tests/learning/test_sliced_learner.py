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
    Rows,
    autocast,
    compute,
    gradients,
    loss_of_rows,
    mean_loss,
    reference,
    without_amx,  # noqa: F401
)
from torch import Tensor, nn

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
