"""Shortcuts of bfloat16 change no number: narrow weights, packed weights, outputs kept from acting."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import Noise
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
from on_policy_cases import assert_same_future, build, play
from options import options
from torch import Tensor, nn
from torch.nn.utils import parametrize

from labrl.agents.a2c import A2C
from labrl.learning import reduced_precision
from labrl.learning.learner import Learner, make_learner
from labrl.learning.reduced_precision import (
    SMALLEST_MATRIX,
    FastNatureCNN,
    KeptOutputs,
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
PICTURES = ROWS.inputs.numpy()
PLAIN = options("agent.network.torso", "agent/network=nature_cnn", features=2048)
"""Features enough for their weights to be large; layers that can be packed."""
TANH = replace(PLAIN, activation="Tanh")
"""Layers that cannot."""
SEEN: list[int] = []
"""Rows of each call of a network."""


class Pictures(nn.Module):
    """A network on a Nature CNN."""

    def __init__(self, config: NatureCNNConfig = PLAIN, space: gym.spaces.Box = SPACE) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.torso = NatureCNN(config, space)
        for layer in self.torso.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.normal_(layer.bias, std=0.1)  # that one is left out would not be seen otherwise
        with torch.no_grad():
            self.output = Output(self.torso(torch.zeros(1, 44, 36, 4)).shape[1], 2)

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(len(x))
        return self.output(self.torso(x))


def learner_of(network: nn.Module, num_workers: int = 1) -> Learner[Any]:
    SEEN.clear()
    return make_learner(
        network, Spaces(SPACE, gym.spaces.Discrete(2), 4), compute(num_workers, torch.bfloat16), ADAM
    )


def by_torch(network: nn.Module) -> Tensor:
    with torch.no_grad(), autocast():
        return network(ROWS.inputs).float()


def packed_of(network: nn.Module) -> FastNatureCNN:
    """Return the replacement for the torso of a copy of a network."""
    found = install_packed([copy.deepcopy(network)])
    if not found:
        pytest.skip("this build of torch has no oneDNN")
    return found[0]


def assert_near(found: Any, expected: Tensor) -> None:
    tensor = torch.as_tensor(found).float()
    torch.testing.assert_close(tensor, expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))


# Narrow weights.


def test_narrow_weights_give_what_autocast_gives_bit_for_bit() -> None:
    learner = learner_of(Pictures(TANH))
    for _ in range(3):  # the second and third time after a change of the weights
        expected, means = reference(learner.network, ROWS, autocast())
        assert np.array_equal(learner.forward(PICTURES), by_torch(learner.network))
        assert torch.equal(learner.gradient(mean_loss, ROWS), means)
        found = gradients(learner)
        assert all(each.dtype == torch.float32 for each in (*found, *learner.network.parameters()))
        assert all(map(torch.equal, found, expected))
        learner.step(0.01)
    learner.close()


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("config", [TANH, PLAIN], ids=["narrow", "packed"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_the_weights_is_seen(change: Any, config: NatureCNNConfig, num_workers: int) -> None:
    learner = learner_of(Pictures(config), num_workers)
    first = learner.forward(PICTURES)
    learner.gradient(mean_loss, ROWS)
    change(learner, ROWS)
    seen = learner.forward(PICTURES)
    assert not np.array_equal(seen, first)
    assert_near(seen, by_torch(learner.network))
    expected, _ = reference(learner.network, ROWS, autocast())
    learner.gradient(mean_loss, ROWS)
    for found, gradient in zip(gradients(learner), expected, strict=True):
        assert_near(found, gradient)
    learner.close()


def test_copies_share_large_rounded_weights_of_image_torsos() -> None:
    network = Pictures(TANH)
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
    assert not NarrowWeights(Pictures(replace(TANH, features=3)))


class Exact(nn.Module):
    """A network of one's own whose large layer computes in float32, beside one that may be rounded."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.torso = NatureCNN(TANH, SPACE)
        self.large = nn.Linear(2048, SMALLEST_MATRIX // 2048)

    def forward(self, x: Tensor) -> Tensor:
        features = self.torso(x)
        with torch.autocast("cpu", enabled=False):
            return self.large(features.float())


def test_weights_that_may_meet_float32_stay_as_they_are() -> None:
    learner = learner_of(Exact())
    expected, _ = reference(learner.network, ROWS, autocast())
    learner.gradient(mean_loss, ROWS)
    assert all(map(torch.equal, gradients(learner), expected))
    assert np.array_equal(learner.forward(PICTURES), by_torch(learner.network))
    learner.close()


@pytest.mark.parametrize(
    ("config", "size", "slices"),
    [
        *((TANH, size, slices) for size, slices in ((1, 1), (16, 1), (31, 1), (32, 2), (36, 2))),
        *((PLAIN, size, slices) for size, slices in ((1, 1), (15, 1), (16, 2))),
    ],
)
def test_few_rows_are_left_to_one_worker(config: NatureCNNConfig, size: int, slices: int) -> None:
    network = Pictures(config)
    if config is PLAIN:
        packed_of(network)
    learner = learner_of(network, 2)
    learner.forward(PICTURES[:size])
    assert len(SEEN) == slices
    assert sum(SEEN) == size
    learner.close()


# Packed weights.


@pytest.mark.parametrize("features", [2048, 3, None])
def test_packed_layers_give_what_autocast_gives(
    features: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Pictures(replace(PLAIN, features=features))
    fast = packed_of(network)
    with torch.no_grad(), autocast():
        expected = network.torso(ROWS.inputs).float()
    fast.packed.refresh()
    monkeypatch.setattr(NatureCNN, "forward", None)  # the layers are not asked
    with torch.inference_mode(), autocast():
        found = fast(ROWS.inputs)
    assert found.shape == expected.shape
    assert_near(found, expected)
    assert expected.std() > 0.1


@pytest.mark.parametrize(("low", "high"), [(0, 100), (55, 255), (np.arange(36), 255)])
def test_packed_layers_read_the_bytes_of_any_range(low: Any, high: int) -> None:
    bounds = np.broadcast_arrays(low, high, np.zeros(SPACE.shape))[:2]
    network = Pictures(space=gym.spaces.Box(*bounds, dtype=np.uint8))
    packed_of(network)
    learner = learner_of(network)
    assert_near(learner.forward(PICTURES), by_torch(network))
    learner.close()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_act_by_packed_weights_and_learn_with_the_layers(
    num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Pictures()
    packed_of(network)
    learner = learner_of(network, num_workers)
    expected, by_layers = by_torch(network), NatureCNN.forward
    monkeypatch.setattr(NatureCNN, "forward", None)
    assert_near(learner.forward(PICTURES), expected)
    monkeypatch.setattr(NatureCNN, "forward", by_layers)
    slopes, means = reference(network, ROWS, autocast())
    torch.testing.assert_close(learner.gradient(mean_loss, ROWS), means)
    for found, slope in zip(gradients(learner), slopes, strict=True):
        assert_near(found, slope)
    assert network.torso.first.weight.grad is not None
    assert network.torso.first.weight.grad.any()
    learner.close()


def test_what_is_differentiated_or_stale_or_not_rounded_is_computed_by_the_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast = packed_of(Pictures())
    calls: list[bool] = []
    outputs = PackedLayers.outputs

    def spy(packed: PackedLayers, x: Tensor) -> list[Tensor]:
        calls.append(True)
        return outputs(packed, x)

    monkeypatch.setattr(PackedLayers, "outputs", spy)
    with torch.inference_mode(), autocast():
        fast(ROWS.inputs)  # not packed yet
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
    """A torso of one's own."""


def changed(change: str) -> Pictures:
    if change in ("activation", "layer norm"):
        return Pictures(TANH if change == "activation" else replace(PLAIN, layer_norm=True))
    network = Pictures()
    torso: Any = network.torso
    if change == "a part more":
        torso.linear = nn.Sequential(torso.linear[0], nn.Tanh())
    elif change == "no activation":
        torso.linear = torso.linear[0]
    elif change == "padding":
        torso.convolutions[1].padding = (1, 1)
    elif change == "no bias":
        torso.first.bias = None
    elif change == "a parametrization":
        parametrize.register_parametrization(torso.first, "weight", Doubled())
    elif change == "two torsos":
        network.add_module("other", NatureCNN(PLAIN, SPACE))
    elif change == "a class of one's own":
        network.torso.__class__ = Derived
    return network


@pytest.mark.parametrize(
    "change",
    [
        "activation",
        "layer norm",
        "a part more",
        "no activation",
        "padding",
        "no bias",
        "a parametrization",
        "two torsos",
        "a class of one's own",
    ],
)
def test_layers_that_do_more_are_not_packed(change: str) -> None:
    network = changed(change)
    assert install_packed([copy.deepcopy(network)]) == []
    if change != "padding":  # the layers after it do not fit
        learner = learner_of(network)
        assert_near(learner.forward(PICTURES), by_torch(network))
        learner.close()


def test_a_build_of_torch_that_cannot_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise RuntimeError("not compiled with it")

    monkeypatch.setattr(PackedLayers, "refresh", missing)
    network = Pictures()
    assert install_packed([copy.deepcopy(network)]) == []
    learner = learner_of(network)
    assert np.array_equal(learner.forward(PICTURES), by_torch(network))
    learner.close()


@pytest.mark.parametrize("config", [TANH, PLAIN], ids=["narrow", "packed"])
def test_hooks_and_parametrizations_that_come_later_are_respected(config: NatureCNNConfig) -> None:
    learner = learner_of(Pictures(config), 2)
    network = learner.network
    before = learner.forward(PICTURES)
    calls: list[int] = []

    def halved(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        calls.append(len(output))
        return output / 2

    hook = network.torso.linear.register_forward_hook(halved)
    for doubled in (False, True):
        calls.clear()
        if doubled:
            parametrize.register_parametrization(network.torso.convolutions[1], "weight", Doubled())
        assert np.array_equal(learner.forward(PICTURES), by_torch(network))
        expected, means = reference(network, ROWS, autocast())
        calls_before = len(calls)
        assert torch.equal(learner.gradient(mean_loss, ROWS), means)
        assert calls[calls_before:] == [len(ROWS)]
        assert all(map(torch.equal, gradients(learner), expected))
    parametrize.remove_parametrizations(network.torso.convolutions[1], "weight", leave_parametrized=False)
    hook.remove()
    assert np.array_equal(learner.forward(PICTURES), before)
    learner.close()


# Outputs kept from acting.


def keeping(num_workers: int = 1) -> Learner[Any]:
    packed_of(Pictures())
    learner = learner_of(Pictures(), num_workers)
    assert learner.keep_outputs(len(ROWS))
    return learner


def slopes_of(learner: Learner[Any], kept: bool) -> Tensor:
    learner.gradient(mean_loss, ROWS, rows=slice(0, len(ROWS)) if kept else None)
    return learner.flat.gradient.clone()


def act(learner: Learner[Any], *cuts: int) -> None:
    for begin, end in pairwise(cuts):
        learner.forward(PICTURES[begin:end], rows=slice(begin, end))


@pytest.mark.parametrize("cuts", [(0, 36), (0, 3, 20, 36)], ids=["at once", "in turn"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_kept_outputs_give_the_gradient_of_the_layers(
    num_workers: int, cuts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = keeping(num_workers)
    act(learner, *cuts)
    expected = slopes_of(learner, kept=False)
    monkeypatch.setattr(NatureCNN, "forward", None)  # no layer computes forward
    found = slopes_of(learner, kept=True)
    assert_near(found, expected)
    assert expected.abs().max() > 0
    learner.close()


def test_what_other_weights_gave_or_nobody_computed_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = uses_of(monkeypatch)
    learner = keeping()
    slopes_of(learner, kept=True)
    act(learner, 0, len(ROWS) // 2)
    slopes_of(learner, kept=True)
    assert uses == [False, False]
    act(learner, 0, len(ROWS))
    slopes_of(learner, kept=True)
    assert uses == [False, False, True]

    learner.step(0.1)
    assert torch.equal(slopes_of(learner, kept=True), slopes_of(learner, kept=False))
    learner.forward(PICTURES)  # by the new weights, but not kept
    assert torch.equal(slopes_of(learner, kept=True), slopes_of(learner, kept=False))
    assert uses == [False, False, True, False, False]
    learner.close()


def test_hooks_see_all_layers_where_outputs_are_kept() -> None:
    learner = keeping()
    act(learner, 0, len(ROWS))
    calls: list[int] = []
    hook = learner.network.torso.linear.register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(slopes_of(learner, kept=True), slopes_of(learner, kept=False))
    assert len(calls) == 2
    hook.remove()
    learner.close()


def test_nothing_is_kept_of_too_much_or_beside_weights_that_others_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner = keeping()
    monkeypatch.setattr(reduced_precision, "MOST_KEPT_BYTES", 1000)
    assert not learner.keep_outputs(len(ROWS))
    monkeypatch.undo()
    assert learner.keep_outputs(len(ROWS))
    learner.flat.move_to(learner.weights.clone())
    assert not learner.keep_outputs(len(ROWS))
    assert not learner_of(Pictures(TANH)).keep_outputs(len(ROWS))
    learner.close()


IMAGES = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)


def a2c(*overrides: str) -> tuple[A2C, Any, Any]:
    return build("a2c", *overrides, observation=IMAGES, action=gym.spaces.Discrete(3), compute=BF16)


def images() -> Noise:
    return Noise(IMAGES, 4, 0)


def uses_of(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A list that grows whenever kept outputs are asked for, by whether they are there."""
    uses: list[bool] = []
    of = KeptOutputs.of

    def spy(store: KeptOutputs, rows: slice) -> list[Tensor] | None:
        found = of(store, rows)
        uses.append(found is not None)
        return found

    monkeypatch.setattr(KeptOutputs, "of", spy)
    return uses


def test_a2c_learns_from_what_it_acted_by_and_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    packed_of(Pictures())
    uses = uses_of(monkeypatch)
    agent, clock, _ = a2c()
    assert play(agent, clock, images(), 20) == 4
    assert len(uses) >= 4
    assert all(uses)
    monkeypatch.setattr(reduced_precision, "MOST_KEPT_BYTES", 0)
    other, clock, _ = a2c()
    before = len(uses)
    assert play(other, clock, images(), 20) == 4
    assert len(uses) == before
    torch.testing.assert_close(
        agent.weights.vector.detach(), other.weights.vector.detach(), rtol=0.05, atol=1e-3
    )


@pytest.mark.parametrize("steps", [pytest.param(0, marks=pytest.mark.matrix), 13, 15])
def test_a_resume_within_a_rollout_is_exact(steps: int) -> None:
    assert_same_future(a2c, images(), steps, further=12)


@pytest.mark.parametrize(
    "overrides",
    [("a2c", "agent.horizon=null", "agent.episodes=2"), ("recurrent_a2c", "agent.horizon=5")],
    ids=["episodes", "memory"],
)
def test_rollouts_whose_rows_lie_otherwise_are_computed_again(
    overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_of(Pictures())
    uses = uses_of(monkeypatch)
    agent, clock, _ = build(*overrides, observation=IMAGES, compute=BF16)
    assert play(agent, clock, images(), 12) > 0
    assert not uses
