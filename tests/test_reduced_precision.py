"""Tests of faster bfloat16: weights rounded once, packed weights, and layer outputs kept from acting."""

from __future__ import annotations

import copy
from dataclasses import replace
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
    mean_loss,
    reference,
    without_amx,  # noqa: F401
)
from options import options
from torch import Tensor, nn
from torch.nn.utils import parametrize

from labrl.learning.learner import Learner
from labrl.learning.make import make_learner
from labrl.learning.reduced_precision import (
    SMALLEST_MATRIX,
    FastNatureCNN,
    NarrowWeights,
    PackedLayers,
    install_packed,
)
from labrl.networks.layers import Output
from labrl.networks.torso import NatureCNN, NatureCNNConfig
from labrl.spaces import Spaces

pytestmark = pytest.mark.usefixtures("without_amx")
BF16 = compute(2, torch.bfloat16)
SPACE = gym.spaces.Box(0, 255, (4, 44, 36), np.uint8)
ROWS = Rows(torch.from_numpy(np.random.default_rng(0).integers(0, 256, (36, 44, 36, 4), np.uint8)))
IMAGES_OF_ROWS = ROWS.inputs.numpy()
PLAIN = options("agent.network.torso", "agent/network=nature_cnn", features=2048)
"""A Nature CNN whose weights are large and whose layers can be packed."""
TANH = replace(PLAIN, activation="Tanh")
"""A Nature CNN whose layers cannot be packed, because of their activation."""
ROWS_PER_CALL: list[int] = []
"""Number of rows of each forward pass of an ImageNetwork."""


class ImageNetwork(nn.Module):
    """Network of two outputs on a Nature CNN that records the rows of each forward pass."""

    def __init__(self, config: NatureCNNConfig = PLAIN, space: gym.spaces.Box = SPACE) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.torso = NatureCNN(config, space)
        for layer in self.torso.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.normal_(layer.bias, std=0.1)  # a zero bias would hide that it is left out
        with torch.no_grad():
            self.output = Output(self.torso(torch.zeros(1, 44, 36, 4)).shape[1], 2)

    def forward(self, x: Tensor) -> Tensor:
        ROWS_PER_CALL.append(len(x))
        return self.output(self.torso(x))


def learner_of(network: nn.Module, num_workers: int = 1) -> Learner[Any]:
    ROWS_PER_CALL.clear()
    return make_learner(
        network, Spaces(SPACE, gym.spaces.Discrete(2), 4), compute(num_workers, torch.bfloat16), ADAM
    )


def autocast_output(network: nn.Module) -> Tensor:
    with torch.no_grad(), autocast():
        return network(ROWS.inputs).float()


def packed_of(network: nn.Module) -> FastNatureCNN:
    """Return the replacement for the torso of a copy of a network."""
    found = install_packed([copy.deepcopy(network)])
    if not found:
        pytest.skip("this build of torch has no oneDNN")
    return found[0]


def assert_close(found: Any, expected: Tensor) -> None:
    tensor = torch.as_tensor(found).float()
    torch.testing.assert_close(tensor, expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))


# Rounded weights (NarrowWeights).


def test_rounded_weights_equal_autocast_bit_for_bit() -> None:
    learner = learner_of(ImageNetwork(TANH))
    for _ in range(3):  # the weights change after each pass
        expected, means = reference(learner.network, ROWS, autocast())
        assert np.array_equal(learner.forward(IMAGES_OF_ROWS), autocast_output(learner.network))
        assert torch.equal(learner.gradient(mean_loss, ROWS), means)
        found = gradients(learner)
        assert all(each.dtype == torch.float32 for each in (*found, *learner.network.parameters()))
        assert all(map(torch.equal, found, expected))
        learner.step(0.01)
    learner.close()


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("config", [TANH, PLAIN], ids=["narrow", "packed"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_the_weights_takes_effect(
    change: Any, config: NatureCNNConfig, num_workers: int
) -> None:
    learner = learner_of(ImageNetwork(config), num_workers)
    first = learner.forward(IMAGES_OF_ROWS)
    learner.gradient(mean_loss, ROWS)
    change(learner, ROWS)
    output = learner.forward(IMAGES_OF_ROWS)
    assert not np.array_equal(output, first)
    assert_close(output, autocast_output(learner.network))
    expected, _ = reference(learner.network, ROWS, autocast())
    learner.gradient(mean_loss, ROWS)
    for found, gradient in zip(gradients(learner), expected, strict=True):
        assert_close(found, gradient)
    learner.close()


def test_copies_share_the_large_rounded_weights_of_image_torsos() -> None:
    network = ImageNetwork(TANH)
    narrow, copies = NarrowWeights(network), [copy.deepcopy(network) for _ in range(2)]
    assert narrow
    for each in copies:
        narrow.give_to(each)
    large = [each.torso.linear[0].weight for each in copies]  # type: ignore[index]
    assert large[0].dtype == torch.bfloat16
    assert large[0].data_ptr() == large[1].data_ptr()
    others = [weight.dtype for weight in copies[0].parameters() if weight.numel() < SMALLEST_MATRIX]
    assert set(others) == {torch.float32}
    assert not narrow.behind
    with torch.no_grad():
        network.torso.linear[0].weight.mul_(1.5)  # type: ignore[index]
    assert narrow.behind
    narrow.refresh()
    assert torch.equal(large[0], network.torso.linear[0].weight.to(torch.bfloat16))  # type: ignore[index]
    assert not NarrowWeights(ImageNetwork(replace(TANH, features=3)))


class Exact(nn.Module):
    """User-defined network with one large layer that computes in float32 and one that may be rounded."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.torso = NatureCNN(TANH, SPACE)
        self.large = nn.Linear(2048, SMALLEST_MATRIX // 2048)

    def forward(self, x: Tensor) -> Tensor:
        features = self.torso(x)
        with torch.autocast("cpu", enabled=False):
            return self.large(features.float())


def test_weights_used_in_float32_are_not_rounded() -> None:
    learner = learner_of(Exact())
    expected, _ = reference(learner.network, ROWS, autocast())
    learner.gradient(mean_loss, ROWS)
    assert all(map(torch.equal, gradients(learner), expected))
    assert np.array_equal(learner.forward(IMAGES_OF_ROWS), autocast_output(learner.network))
    learner.close()


@pytest.mark.parametrize(
    ("config", "size", "slices"),
    [
        *((TANH, size, slices) for size, slices in ((1, 1), (16, 1), (31, 1), (32, 2), (36, 2))),
        *((PLAIN, size, slices) for size, slices in ((1, 1), (15, 1), (16, 2))),
    ],
)
def test_small_minibatches_are_computed_by_one_worker(
    config: NatureCNNConfig, size: int, slices: int
) -> None:
    network = ImageNetwork(config)
    if config is PLAIN:
        packed_of(network)
    learner = learner_of(network, 2)
    learner.forward(IMAGES_OF_ROWS[:size])
    assert len(ROWS_PER_CALL) == slices
    assert sum(ROWS_PER_CALL) == size
    learner.close()


# Packed weights (PackedLayers).


@pytest.mark.parametrize("features", [2048, 3, None])
def test_packed_layers_are_close_to_autocast(features: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    network = ImageNetwork(replace(PLAIN, features=features))
    fast = packed_of(network)
    with torch.no_grad(), autocast():
        expected = network.torso(ROWS.inputs).float()
    fast.packed.refresh()
    monkeypatch.setattr(NatureCNN, "forward", None)  # the layers themselves must not be called
    with torch.inference_mode(), autocast():
        found = fast(ROWS.inputs)
    assert found.shape == expected.shape
    assert_close(found, expected)
    assert expected.std() > 0.1


@pytest.mark.parametrize(("low", "high"), [(0, 100), (55, 255), (np.arange(36), 255)])
def test_packed_layers_scale_pixels_of_any_range(low: Any, high: int) -> None:
    bounds = np.broadcast_arrays(low, high, np.zeros(SPACE.shape))[:2]
    network = ImageNetwork(space=gym.spaces.Box(*bounds, dtype=np.uint8))
    packed_of(network)
    learner = learner_of(network)
    assert_close(learner.forward(IMAGES_OF_ROWS), autocast_output(network))
    learner.close()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_act_with_packed_weights_and_learn_with_the_layers(
    num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = ImageNetwork()
    packed_of(network)
    learner = learner_of(network, num_workers)
    expected, forward = autocast_output(network), NatureCNN.forward
    monkeypatch.setattr(NatureCNN, "forward", None)
    assert_close(learner.forward(IMAGES_OF_ROWS), expected)
    monkeypatch.setattr(NatureCNN, "forward", forward)
    expected_gradients, means = reference(network, ROWS, autocast())
    torch.testing.assert_close(learner.gradient(mean_loss, ROWS), means)
    for found, gradient in zip(gradients(learner), expected_gradients, strict=True):
        assert_close(found, gradient)
    assert network.torso.first.weight.grad is not None
    assert network.torso.first.weight.grad.any()
    learner.close()


def test_layers_compute_when_stale_differentiated_or_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast = packed_of(ImageNetwork())
    calls: list[bool] = []
    outputs = PackedLayers.outputs

    def spy(packed: PackedLayers, x: Tensor) -> list[Tensor]:
        calls.append(True)
        return outputs(packed, x)

    monkeypatch.setattr(PackedLayers, "outputs", spy)
    with torch.inference_mode(), autocast():
        fast(ROWS.inputs)  # the weights have not been packed yet
    fast.packed.refresh()
    with autocast():
        fast(ROWS.inputs)
    with torch.inference_mode():
        fast(ROWS.inputs)
    assert not calls
    with torch.inference_mode(), autocast():
        fast(ROWS.inputs)
        assert calls == [True]


class Derived(NatureCNN):
    """User-defined torso derived from NatureCNN."""


def network_with(change: str) -> ImageNetwork:
    if change in ("activation", "layer norm"):
        return ImageNetwork(TANH if change == "activation" else replace(PLAIN, layer_norm=True))
    network = ImageNetwork()
    torso: Any = network.torso
    if change == "extra layer":
        torso.linear = nn.Sequential(torso.linear[0], nn.Tanh())
    elif change == "no activation":
        torso.linear = torso.linear[0]
    elif change == "padding":
        torso.convolutions[1].padding = (1, 1)
    elif change == "no bias":
        torso.first.bias = None
    elif change == "parametrization":
        parametrize.register_parametrization(torso.first, "weight", Doubled())
    elif change == "two torsos":
        network.add_module("other", NatureCNN(PLAIN, SPACE))
    elif change == "derived class":
        network.torso.__class__ = Derived
    return network


@pytest.mark.parametrize(
    "change",
    [
        "activation",
        "layer norm",
        "extra layer",
        "no activation",
        "padding",
        "no bias",
        "parametrization",
        "two torsos",
        "derived class",
    ],
)
def test_torsos_that_differ_from_plain_nature_cnn_are_not_packed(change: str) -> None:
    network = network_with(change)
    assert install_packed([copy.deepcopy(network)]) == []
    if change != "padding":  # with padding the shapes of the later layers do not fit
        learner = learner_of(network)
        assert_close(learner.forward(IMAGES_OF_ROWS), autocast_output(network))
        learner.close()


def test_layers_are_not_packed_when_torch_lacks_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise RuntimeError("not compiled with it")

    monkeypatch.setattr(PackedLayers, "refresh", missing)
    network = ImageNetwork()
    assert install_packed([copy.deepcopy(network)]) == []
    learner = learner_of(network)
    assert np.array_equal(learner.forward(IMAGES_OF_ROWS), autocast_output(network))
    learner.close()


@pytest.mark.parametrize("config", [TANH, PLAIN], ids=["narrow", "packed"])
def test_hooks_and_parametrizations_added_later_take_effect(config: NatureCNNConfig) -> None:
    learner = learner_of(ImageNetwork(config), 2)
    network = learner.network
    before = learner.forward(IMAGES_OF_ROWS)
    calls: list[int] = []

    def halved(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        calls.append(len(output))
        return output / 2

    hook = network.torso.linear.register_forward_hook(halved)
    for doubled in (False, True):
        calls.clear()
        if doubled:
            parametrize.register_parametrization(network.torso.convolutions[1], "weight", Doubled())
        assert np.array_equal(learner.forward(IMAGES_OF_ROWS), autocast_output(network))
        expected, means = reference(network, ROWS, autocast())
        calls_before = len(calls)
        assert torch.equal(learner.gradient(mean_loss, ROWS), means)
        assert calls[calls_before:] == [len(ROWS)]
        assert all(map(torch.equal, gradients(learner), expected))
    parametrize.remove_parametrizations(network.torso.convolutions[1], "weight", leave_parametrized=False)
    hook.remove()
    assert np.array_equal(learner.forward(IMAGES_OF_ROWS), before)
    learner.close()
