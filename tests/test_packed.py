"""Convolutional networks that act by packed weights: what they give, and when they may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from options import options
from torch import Tensor, nn

from labrl.networks.compute import Compute
from labrl.networks.gradient import GradientWorkers
from labrl.networks.packed import Packed
from labrl.networks.torso import NatureCNN, NatureCNNConfig

NARROW = Compute(torch.device("cpu"), torch.bfloat16, num_threads=2)
SPACE = gym.spaces.Box(0, 255, (4, 44, 36), np.uint8)
PICTURES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (18, 44, 36, 4), np.uint8))
DEFAULT = options("agent.network.torso", "agent/network=nature_cnn", features=2048)
"""Features enough for their weights to be large."""


def torso(config: NatureCNNConfig = DEFAULT, space: gym.spaces.Box = SPACE) -> NatureCNN:
    torch.manual_seed(1)
    made = NatureCNN(config, space)
    for layer in made.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.normal_(layer.bias, std=0.1)  # that one is left out would not be seen otherwise
    return made


def by_torch(network: NatureCNN) -> Tensor:
    with torch.no_grad(), NARROW.autocast():
        return network(PICTURES).float()


def by_workers(workers: GradientWorkers[NatureCNN], changed: bool) -> Tensor:
    def work(network: NatureCNN, share: slice) -> Tensor:
        with torch.inference_mode(), NARROW.autocast():
            return network(PICTURES[share]).float()

    return torch.cat(workers.map(work, len(PICTURES), changed))


def packed_of(network: NatureCNN) -> Packed:
    packed = network.pack()
    if packed is None:
        pytest.skip("this build of torch has no oneDNN")
    return packed


@pytest.mark.parametrize("features", [2048, 3, None])
def test_packed_layers_give_what_autocast_gives(features: int | None) -> None:
    network = torso(replace(DEFAULT, features=features))
    expected = by_torch(network)
    network.packed = packed_of(network)
    with torch.inference_mode(), NARROW.autocast():
        assert network.packed.usable
        found = network(PICTURES).float()
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    assert expected.std() > 0.1


@pytest.mark.parametrize(("low", "high"), [(0, 100), (55, 255), (np.arange(36), 255)])
def test_packed_layers_read_the_bytes_of_any_range(low: Any, high: int) -> None:
    network = torso(
        space=gym.spaces.Box(*np.broadcast_arrays(low, high, np.zeros(SPACE.shape))[:2], dtype=np.uint8)
    )
    expected = by_torch(network)
    network.packed = packed_of(network)
    with torch.inference_mode(), NARROW.autocast():
        found = network(PICTURES).float()
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02 * float(expected.std()))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_act_by_packed_weights_and_follow_every_change(num_workers: int) -> None:
    network = torso()
    packed_of(network)
    workers = GradientWorkers(network, num_workers, NARROW)
    first = by_workers(workers, changed=True)
    torch.testing.assert_close(first, by_torch(network), rtol=0.02, atol=0.02)

    workers.flat.vector.data.mul_(1.5)  # as an optimizer does
    second = by_workers(workers, changed=True)
    torch.testing.assert_close(second, by_torch(network), rtol=0.02, atol=0.02)
    assert (second - first).abs().max() > 0.5

    with torch.no_grad():
        network.first.bias.add_(1.0)  # as whoever loads saved weights
    third = by_workers(workers, changed=False)
    torch.testing.assert_close(third, by_torch(network), rtol=0.02, atol=0.02)
    assert (third - second).abs().max() > 0.5
    workers.close()


def test_what_is_differentiated_or_stale_or_not_rounded_is_computed_by_the_layers() -> None:
    network = torso()
    packed = packed_of(network)
    with NARROW.autocast():
        assert not packed.usable
        with torch.inference_mode():
            assert packed.usable
            packed.fresh = False
            assert not packed.usable
    packed.refresh()
    with torch.inference_mode():
        assert not packed.usable


def test_workers_learn_with_the_layers_themselves() -> None:
    network = torso()
    workers = GradientWorkers(network, 2, NARROW)
    by_workers(workers, changed=True)

    def loss(replica: NatureCNN, share: slice) -> tuple[Tensor, Tensor]:
        with NARROW.autocast():
            mean = replica(PICTURES[share]).float().mean()
        return mean, mean.detach().reshape(1)

    workers.backward(loss, len(PICTURES))
    assert network.first.weight.grad is not None
    assert network.first.weight.grad.abs().sum() > 0
    workers.close()


@pytest.mark.parametrize("change", [{"activation": "Tanh"}, {"layer_norm": True}])
def test_layers_that_do_more_are_not_packed(change: dict[str, object]) -> None:
    assert torso(replace(DEFAULT, **change)).pack() is None  # type: ignore[arg-type]


class Derived(NatureCNN):
    def __init__(self) -> None:
        super().__init__(DEFAULT, SPACE)
        self.linear = nn.Sequential(self.linear[0], nn.LayerNorm(2048), nn.Tanh())  # type: ignore[index]


def changed(change: str) -> NatureCNN:
    network = torso()
    if change == "a part more":
        network.linear = nn.Sequential(network.linear[0], nn.Tanh())  # type: ignore[index]
    elif change == "no activation":
        network.linear = network.linear[0]  # type: ignore[index]
    elif change == "padding":
        network.convolutions[1].padding = (1, 1)  # type: ignore[assignment]
    elif change == "no bias":
        network.first.bias = None
    return network


@pytest.mark.parametrize("change", ["a part more", "no activation", "padding", "no bias"])
def test_a_network_whose_parts_were_changed_is_not_packed(change: str) -> None:
    assert changed(change).pack() is None


def test_a_class_of_ones_own_acts_by_what_it_learns_with() -> None:
    assert Derived().pack() is None


def test_a_build_of_torch_that_cannot_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> Tensor:
        raise RuntimeError("not compiled with it")

    monkeypatch.setattr(Packed, "_pack", staticmethod(missing))
    assert torso().pack() is None
