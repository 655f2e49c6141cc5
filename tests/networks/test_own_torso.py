"""Tests of user-defined torsos: an unsuitable one is refused with its key before the run starts."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from refusals import refused
from torch import nn

from labrl.clock import Clock
from labrl.component import Component
from labrl.config.compose import compose, resolve
from labrl.config.validate import dataclass_of
from labrl.errors import Code
from labrl.learning.compute import Compute
from labrl.networks.building import build_networks, build_torso
from labrl.seeding import Streams
from labrl.spaces import Spaces

TORSO = "agent.network.torso"
SEEN = spaces.Box(-1, 1, (3,), np.float64)


class Own(nn.Module):
    """User-defined torso whose output has any given shape."""

    def __init__(self, observation_space: gym.Space, shape: list[int], inputs: int = 3) -> None:  # type: ignore[type-arg]
        super().__init__()
        self.shape, self.layer = shape, nn.Linear(inputs, 6)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.layer(observation).reshape(self.shape)


class Double(Own):
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return super().forward(observation).double()


class Broken(Own):
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        raise KeyError("left")


class Lazy(nn.Sequential):
    """Torso whose weights are created by the first observation."""

    def __init__(self, observation_space: gym.Space) -> None:  # type: ignore[type-arg]
        super().__init__(nn.LazyLinear(6), nn.Tanh())


class Holding(nn.Sequential):
    """Torso with 3 inputs and 6 features whose second layer is any layer of torch.nn."""

    def __init__(self, observation_space: gym.Space, layer: str, options: dict[str, Any]) -> None:  # type: ignore[type-arg]
        super().__init__(nn.Linear(3, 6), getattr(nn, layer)(**options))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        features = self[0](observation)
        return features if isinstance(self[1], nn.RNNBase | nn.MultiheadAttention) else self[1](features)


class Faulty(nn.Module):
    """Torso with 3 inputs and 6 features whose layers or forward pass have the given fault."""

    def __init__(self, observation_space: gym.Space, fault: str) -> None:  # type: ignore[type-arg]
        super().__init__()
        if fault == "fails":
            raise KeyError("left")
        self.layer, self._fault = nn.Linear(3, 6), fault
        if fault == "spectral":
            self.layer = nn.utils.parametrizations.spectral_norm(self.layer)
        if fault == "double":
            self.layer.double()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        if self._fault == "in place":
            observation.div_(2)
        features = self.layer(observation)
        if self._fault == "counts" and torch.is_grad_enabled():
            self.seen.add_(len(observation))  # type: ignore[operator]  # a buffer
        if self._fault == "one_row":
            return features.mean(0, keepdim=True)
        return nn.functional.dropout(features, 0.1, self.training) if self._fault == "draws" else features


class NoModule:
    def __init__(self, observation_space: gym.Space) -> None:  # type: ignore[type-arg]
        pass


def build_own(**settings: object) -> Any:
    """Build the torso `Own` with these settings for three observed numbers."""
    torso = dataclass_of(Component, {"_target_": "test_own_torso.Own", **settings}, TORSO)
    return build_torso(torso, spaces.Box(-1, 1, (3,), np.float64))


def test_number_of_features_is_found_by_a_forward_pass() -> None:
    assert build_own(shape=[-1, 6]).num_features == 6


@pytest.mark.parametrize(
    "settings",
    [{"shape": [-1, 2, 3]}, {"shape": [-1]}, {"shape": [2, 3]}, {"shape": [-1, 6], "inputs": 5}],
    ids=str,
)
def test_features_of_a_wrong_shape_are_refused(settings: dict) -> None:
    with refused("target", TORSO):
        build_own(**settings)


@pytest.mark.parametrize(
    ("target", "named"),
    [("torch.nn.Flatten", "observation_space"), ("test_own_torso.NoModule", "torch.nn.Module")],
)
def test_class_that_is_no_torso_is_refused(target: str, named: str) -> None:
    torso = dataclass_of(Component, {"_target_": target}, TORSO)
    with refused("target", TORSO, named):
        build_torso(torso, spaces.Box(-1, 1, (3,), np.float32))


@pytest.mark.parametrize(("kind", "named"), [("Double", "torch.float64"), ("Broken", "KeyError: 'left'")])
def test_wrong_dtype_or_exception_of_a_forward_pass_is_reported(kind: str, named: str) -> None:
    torso = dataclass_of(Component, {"_target_": f"test_own_torso.{kind}", "shape": [-1, 6]}, TORSO)
    with refused("target", TORSO, kind, named):
        build_torso(torso, SEEN)


def test_missing_argument_is_reported() -> None:
    torso = dataclass_of(Component, {"_target_": "test_own_torso.Own"}, TORSO)
    with refused(None, TORSO, "test_own_torso.Own", "'shape'"):
        build_torso(torso, SEEN)


def test_lazy_layers_are_initialized() -> None:
    torso = build_torso(dataclass_of(Component, {"_target_": "test_own_torso.Lazy"}, TORSO), SEEN)
    assert [list(weight.shape) for weight in torso.parameters()] == [[6, 3], [6]]


def build_with_layer(layer: str, whole_minibatches: bool = False, **options: Any) -> None:
    make = lambda: (Holding(SEEN, layer, options),)  # noqa: E731
    build_networks(make, 0, Spaces(SEEN, gym.spaces.Discrete(2), 1), whole_minibatches)


@pytest.mark.parametrize(
    ("layer", "options", "way_out"),
    [
        ("Dropout", {"p": 0.1}, "0"),
        ("AlphaDropout", {"p": 0.1}, "0"),
        ("GRU", {"input_size": 6, "hidden_size": 6, "num_layers": 2, "dropout": 0.1}, "dropout"),
        ("MultiheadAttention", {"embed_dim": 6, "num_heads": 1, "dropout": 0.1}, "dropout"),
        ("RReLU", {}, "nn.LeakyReLU"),
        ("BatchNorm1d", {"num_features": 6}, "agent=crossq"),
    ],
    ids=str,
)
def test_layers_that_make_runs_irreproducible_are_refused(
    layer: str, options: dict[str, Any], way_out: str
) -> None:
    with refused("unsupported", TORSO, "1 of Holding", layer, way_out):
        build_with_layer(layer, **options)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        *((fault, "unsupported") for fault in ("draws", "counts", "spectral")),
        *((fault, "target") for fault in ("double", "one_row", "in place", "fails")),
    ],
)
def test_forward_pass_with_side_effects_is_refused(fault: str, code: Code) -> None:
    overrides = [
        "~agent.network.torso",
        f"+agent.network.torso={{_target_: test_own_torso.Faulty, fault: {fault}}}",
    ]
    config = resolve(compose(["preset=none", *overrides]))
    env = Spaces(SEEN, gym.spaces.Discrete(2), 1)
    compute = Compute(torch.device("cpu"), torch.float32, 1)
    build = partial(config.agent.build, spaces=env, clock=Clock(1), streams=Streams(0), compute=compute)
    with refused(code, TORSO):
        build()


def test_building_a_torso_leaves_buffers_and_generators_unchanged() -> None:
    counting, drawing = (
        dataclass_of(Component, {"_target_": "test_own_torso.Faulty", "fault": fault}, TORSO)
        for fault in ("counts", "draws")
    )
    torso = build_torso(counting, SEEN)
    assert torso.num_features == 6
    assert torso.changes == ("seen",)
    assert float(torso.seen) == 0
    before = torch.get_rng_state()
    with refused("unsupported", TORSO, "Faulty"):
        build_torso(drawing, SEEN)
    drawn = torch.get_rng_state()
    torch.set_rng_state(before)
    Faulty(SEEN, "draws")
    assert torch.equal(torch.get_rng_state(), drawn), "the global generator drew more than the weights"


def test_layers_without_randomness_are_accepted() -> None:
    build_with_layer("Dropout", p=0.0)
    build_with_layer("GRU", input_size=6, hidden_size=6)
    build_with_layer("BatchNorm1d", whole_minibatches=True, num_features=6)
