"""Tests of user-defined torsos: an unsuitable one is refused with its key before the run starts."""

from __future__ import annotations

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


class Own(nn.Module):
    """Torso with 3 inputs and 6 features whose layers or forward pass may have a fault."""

    def __init__(self, observation_space: gym.Space, fault: str) -> None:  # type: ignore[type-arg]
        super().__init__()
        if fault == "fails":
            raise KeyError("left")
        self.layer, self._fault = nn.Linear(5 if fault == "five inputs" else 3, 6), fault
        if fault == "spectral":
            self.layer = nn.utils.parametrizations.spectral_norm(self.layer)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        if self._fault == "raises":
            raise KeyError("left")
        if self._fault == "in place":
            observation.div_(2)
        features = self.layer(observation)
        if self._fault == "counts" and torch.is_grad_enabled():
            self.seen.add_(len(observation))  # type: ignore[operator]  # a buffer
        changed = {
            "double": lambda: features.double(),
            "one row": lambda: features.mean(0, keepdim=True),
            "matrices": lambda: features.reshape(-1, 2, 3),
            "numbers": lambda: features.flatten(),
            "draws": lambda: nn.functional.dropout(features, 0.1, self.training),
        }
        return changed.get(self._fault, lambda: features)()


class NoModule:
    def __init__(self, observation_space: gym.Space) -> None:  # type: ignore[type-arg]
        pass


def build(target: str, **settings: object) -> Any:
    """Build a torso for three observed numbers."""
    return build_torso(dataclass_of(Component, {"_target_": target, **settings}, TORSO), SEEN)


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("torch.nn.Flatten", "observation_space"),
        ("test_own_torso.NoModule", "torch.nn.Module"),
        ("test_own_torso.Own", "'fault'"),
    ],
)
def test_class_that_is_no_torso_is_refused(target: str, named: str) -> None:
    with refused(None, TORSO, target, named):
        build(target)


def test_lazy_layers_are_initialized() -> None:
    torso = build("test_own_torso.Lazy")
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
        *((fault, "target") for fault in ("fails", "raises", "in place")),
        *((fault, "target") for fault in ("five inputs", "double", "one row", "matrices", "numbers")),
    ],
)
def test_torso_with_a_fault_is_refused(fault: str, code: Code) -> None:
    own = f"+agent.network.torso={{_target_: test_own_torso.Own, fault: {fault}}}"
    overrides = ["~agent.network.torso", own]
    config = resolve(compose(["preset=none", *overrides]))
    env = Spaces(SEEN, gym.spaces.Discrete(2), 1)
    compute = Compute(torch.device("cpu"), torch.float32, 1)
    with refused(code, TORSO):
        config.agent.build(spaces=env, clock=Clock(1), streams=Streams(0), compute=compute)


def test_building_a_torso_leaves_buffers_and_generators_unchanged() -> None:
    torso = build("test_own_torso.Own", fault="counts")
    assert torso.num_features == 6
    assert torso.changes == ("seen",)
    assert float(torso.seen) == 0
    before = torch.get_rng_state()
    with refused("unsupported", TORSO, "Own"):
        build("test_own_torso.Own", fault="draws")
    drawn = torch.get_rng_state()
    torch.set_rng_state(before)
    Own(SEEN, "draws")
    assert torch.equal(torch.get_rng_state(), drawn), "the global generator drew more than the weights"


def test_layers_without_randomness_are_accepted() -> None:
    build_with_layer("Dropout", p=0.0)
    build_with_layer("GRU", input_size=6, hidden_size=6)
    build_with_layer("BatchNorm1d", whole_minibatches=True, num_features=6)
