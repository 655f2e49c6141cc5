"""Torsos of a user's own: what agents need of them is asked before a run, and told with the key."""

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
    """A user's torso that may give anything."""

    def __init__(self, observation_space: gym.Space, shape: list[int], inputs: int = 3) -> None:  # type: ignore[type-arg]
        super().__init__()
        self.shape, self.layer = shape, nn.Linear(inputs, 6)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.layer(observation).reshape(self.shape)


class Wide(Own):
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return super().forward(observation).double()


class Broken(Own):
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        raise KeyError("left")


class Lazy(nn.Sequential):
    """Weights whose size the first observation decides."""

    def __init__(self, observation_space: gym.Space) -> None:  # type: ignore[type-arg]
        super().__init__(nn.LazyLinear(6), nn.Tanh())


class Holding(nn.Sequential):
    """A torso with any layer of torch.nn, of one that takes three numbers and gives six."""

    def __init__(self, observation_space: gym.Space, layer: str, options: dict[str, Any]) -> None:  # type: ignore[type-arg]
        super().__init__(nn.Linear(3, 6), getattr(nn, layer)(**options))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        features = self[0](observation)
        return features if isinstance(self[1], nn.RNNBase | nn.MultiheadAttention) else self[1](features)


class Habitual(nn.Module):
    """A torso with a habit: what it does in a forward pass, or is made with, beside six features of three."""

    def __init__(self, observation_space: gym.Space, habit: str) -> None:  # type: ignore[type-arg]
        super().__init__()
        if habit == "fails":
            raise KeyError("left")
        self.layer, self._habit = nn.Linear(3, 6), habit
        if habit == "spectral":
            self.layer = nn.utils.parametrizations.spectral_norm(self.layer)
        if habit == "double":
            self.layer.double()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        if self._habit == "in place":
            observation.div_(2)
        features = self.layer(observation)
        if self._habit == "counts" and torch.is_grad_enabled():
            self.seen.add_(len(observation))  # type: ignore[operator]  # a buffer
        if self._habit == "one_row":
            return features.mean(0, keepdim=True)
        return nn.functional.dropout(features, 0.1, self.training) if self._habit == "draws" else features


class NoModule:
    def __init__(self, observation_space: gym.Space) -> None:  # type: ignore[type-arg]
        pass


def own(**settings: object) -> Any:
    torso = dataclass_of(Component, {"_target_": "test_own_torso.Own", **settings}, TORSO)
    return build_torso(torso, spaces.Box(-1, 1, (3,), np.float64))


def test_a_torso_of_ones_own_is_asked_as_agents_will() -> None:
    assert own(shape=[-1, 6]).num_features == 6


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"shape": [-1, 2, 3]}, ["[batch, features]", "[1, 3]", "[1, 2, 3]"]),
        ({"shape": [-1]}, ["[1, 3]", "[6]"]),
        ({"shape": [2, 3]}, ["[1, 3]", "[2, 3]"]),
        ({"shape": [-1, 6], "inputs": 5}, ["[1, 3]", "RuntimeError"]),
    ],
    ids=str,
)
def test_features_that_no_layer_can_follow_are_refused(settings: dict, named: list[str]) -> None:
    with refused("target", TORSO, "Own", *named):
        own(**settings)


@pytest.mark.parametrize(
    ("target", "named"),
    [("torch.nn.Flatten", "observation_space"), ("test_own_torso.NoModule", "torch.nn.Module")],
)
def test_what_is_no_torso_is_refused_by_its_name(target: str, named: str) -> None:
    torso = dataclass_of(Component, {"_target_": target}, TORSO)
    with refused("target", TORSO, target, named):
        build_torso(torso, spaces.Box(-1, 1, (3,), np.float32))


@pytest.mark.parametrize(("kind", "named"), [("Wide", "torch.float64"), ("Broken", "KeyError: 'left'")])
def test_whatever_a_torso_of_ones_own_does_is_told(kind: str, named: str) -> None:
    torso = dataclass_of(Component, {"_target_": f"test_own_torso.{kind}", "shape": [-1, 6]}, TORSO)
    with refused("target", TORSO, kind, named):
        build_torso(torso, SEEN)


def test_an_argument_that_nobody_gives_is_told() -> None:
    torso = dataclass_of(Component, {"_target_": "test_own_torso.Own"}, TORSO)
    with refused(None, TORSO, "test_own_torso.Own", "'shape'"):
        build_torso(torso, SEEN)


def test_weights_that_wait_for_the_first_observation_have_seen_one() -> None:
    torso = build_torso(dataclass_of(Component, {"_target_": "test_own_torso.Lazy"}, TORSO), SEEN)
    assert [list(weight.shape) for weight in torso.parameters()] == [[6, 3], [6]]


def all_built(layer: str, whole_minibatches: bool = False, **options: Any) -> None:
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
def test_layers_by_which_a_run_would_not_repeat_are_refused(
    layer: str, options: dict[str, Any], way_out: str
) -> None:
    with refused("unsupported", TORSO, "1 of Holding", layer, way_out):
        all_built(layer, **options)


@pytest.mark.parametrize(
    ("habit", "code", "named"),
    [
        ("draws", "unsupported", []),
        ("counts", "unsupported", ["seen"]),
        ("spectral", "unsupported", ["layer.parametrizations.weight.0._"]),
        ("double", "target", ["torch.float64"]),
        ("one_row", "target", ["[2, 3]", "[1, 6]"]),
        ("in place", "target", []),
        ("fails", "target", ["KeyError: 'left'"]),
    ],
)
def test_a_forward_pass_that_leaves_something_behind_is_refused(
    habit: str, code: Code, named: list[str]
) -> None:
    overrides = [
        "~agent.network.torso",
        f"+agent.network.torso={{_target_: test_own_torso.Habitual, habit: {habit}}}",
    ]
    config = resolve(compose(["preset=none", *overrides]))
    env = Spaces(SEEN, gym.spaces.Discrete(2), 1)
    compute = Compute(torch.device("cpu"), torch.float32, 1)
    build = partial(config.agent.build, spaces=env, clock=Clock(1), streams=Streams(0), compute=compute)
    with refused(code, TORSO, "Habitual", *named):
        build()


def test_what_a_forward_pass_would_have_kept_is_not_there_after_the_first_look() -> None:
    counting, drawing = (
        dataclass_of(Component, {"_target_": "test_own_torso.Habitual", "habit": habit}, TORSO)
        for habit in ("counts", "draws")
    )
    torso = build_torso(counting, SEEN)
    assert torso.num_features == 6
    assert torso.changes == ("seen",)
    assert float(torso.seen) == 0
    before = torch.get_rng_state()
    with refused("unsupported", TORSO, "Habitual"):
        build_torso(drawing, SEEN)
    drawn = torch.get_rng_state()
    torch.set_rng_state(before)
    Habitual(SEEN, "draws")
    assert torch.equal(torch.get_rng_state(), drawn), "only its weights were drawn"


def test_layers_that_draw_nothing_are_no_obstacle() -> None:
    all_built("Dropout", p=0.0)
    all_built("GRU", input_size=6, hidden_size=6)
    all_built("BatchNorm1d", whole_minibatches=True, num_features=6)
