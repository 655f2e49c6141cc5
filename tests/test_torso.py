"""Every space that is one array or number has a network; others are refused before a run begins."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from labrl.clock import Clock
from labrl.config.component import Component
from labrl.config.compose import compose, resolve
from labrl.config.errors import ConfigError
from labrl.envs.make import describe
from labrl.networks.building import built
from labrl.networks.compute import Compute
from labrl.networks.impala import ImpalaCNN, ImpalaCNNConfig, Residual
from labrl.networks.inputs import Habits, SideBySide, build_torso, num_features
from labrl.networks.layers import Activation, Initialization
from labrl.networks.spaces import Spaces
from labrl.networks.torso import MLP, AutoTorsoConfig, MLPConfig, NatureCNN, NatureCNNConfig, check_torso
from labrl.seeding import Streams

ONE_ARRAY = [
    spaces.Box(-1, 1, (3,)),
    spaces.Box(-1, 1, (2, 2), np.float64),
    spaces.Box(-1, 1, ()),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([3, 2]),
    spaces.MultiDiscrete([[3, 2], [2, 4]], start=[[1, 0], [0, 2]]),
    spaces.MultiBinary(3),
]


class Odd(gym.Env):  # type: ignore[type-arg]
    """Observations in parts, one of which is no array."""

    observation_space = spaces.Tuple((spaces.Discrete(2), spaces.Text(3)))
    action_space = spaces.Discrete(2)


@pytest.mark.parametrize("space", ONE_ARRAY, ids=str)
def test_mlp_tells_the_observations_of_a_space_apart(space: gym.Space) -> None:  # type: ignore[type-arg]
    torch.manual_seed(0)
    space.seed(1)
    mlp = MLP(MLPConfig(hidden=[8]), space)
    batch = np.stack([np.asarray(space.sample()) for _ in range(16)])
    features = mlp(torch.as_tensor(batch))
    assert features.shape == (16, 8)
    distinct = {row.tobytes() for row in batch}
    assert len({tuple(row) for row in features.detach().numpy().round(5).tolist()}) == len(distinct)


@pytest.mark.parametrize("activation", get_args(Activation))
def test_every_activation_acts_on_each_element_by_itself(activation: str) -> None:
    mlp = MLP(MLPConfig(hidden=[8], activation=activation), spaces.Box(-1, 1, (3,)))  # type: ignore[arg-type]
    batch = torch.linspace(-1, 1, 12).reshape(4, 3)
    assert torch.allclose(mlp(batch)[:1], mlp(batch[:1]), atol=1e-6)
    assert torch.equal(mlp(batch), mlp(batch))


def test_bytes_are_shares_of_255_unless_they_count_something() -> None:
    """As they are, they drove nearly every hyperbolic tangent to its limit."""
    pixels, few = spaces.Box(0, 255, (10, 10, 3), np.uint8), spaces.Box(0, 1, (4,), np.uint8)
    mlp = MLP(MLPConfig(hidden=[16]), pixels)
    seen = np.stack([pixels.sample() for _ in range(8)])
    shares = torch.as_tensor(seen.reshape(8, -1) / np.float32(255))
    expected = torch.tanh(mlp.layers[0](shares))
    torch.testing.assert_close(mlp(torch.as_tensor(seen)), expected)
    assert mlp.layers_in_numpy() is None
    counts = MLP(MLPConfig(hidden=[16]), few)
    ones = torch.ones(2, 4, dtype=torch.uint8)
    torch.testing.assert_close(counts(ones), torch.tanh(counts.layers[0](ones.float())))
    side_by_side = SideBySide(spaces.Dict(ram=spaces.Box(0, 255, (3,), np.uint8), few=few))
    rows = np.zeros(1, [("ram", np.uint8, 3), ("few", np.uint8, 4)])
    rows["ram"], rows["few"] = 255, 1
    assert side_by_side(rows).tolist() == [[1.0] * 7]


def test_observations_that_are_no_arrays_are_refused_by_name() -> None:
    node = {"_target_": "labrl.envs.gym.GymnasiumEnv", "name": "odd", "make": {"_target_": "test_torso.Odd"}}
    with pytest.raises(ConfigError, match=r"env\.name=odd: its observations at 1 are Text.*Wrap"):
        describe(Component.parse(node, "env"))


@pytest.mark.parametrize("kind", ["orthogonal", "uniform"])
def test_weights_begin_as_they_are_asked_to(kind: Initialization) -> None:
    torch.manual_seed(0)
    mlp = MLP(MLPConfig(hidden=[16], initialization=kind), spaces.Box(-1, 1, (64,)))
    cnn = NatureCNN(NatureCNNConfig(initialization=kind), spaces.Box(0, 255, (4, 36, 36), np.uint8))
    for layer in (mlp.layers[0], cnn.first):
        weight, bias = layer.weight.detach().flatten(1), layer.bias.detach()  # type: ignore[union-attr, operator]
        if kind == "orthogonal":
            torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(len(weight)), atol=1e-4, rtol=0)
            assert not bias.any()
        else:
            bound = weight.shape[1] ** -0.5
            assert 0.9 * bound < float(weight.abs().max()) <= bound
            assert bias.any()


@pytest.mark.parametrize(
    ("kind", "variance"), [("xavier", 2 / (64 * 49 + 512)), ("kaiming", 2 / (64 * 49))], ids=str
)
@pytest.mark.parametrize("shape", ["uniform", "normal"])
def test_weights_have_the_variance_of_the_papers(kind: str, shape: str, variance: float) -> None:
    torch.manual_seed(0)
    named: Initialization = f"{kind}_{shape}"  # type: ignore[assignment]
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    layer = NatureCNN(NatureCNNConfig(initialization=named), space).linear[0]  # type: ignore[index]
    weight = layer.weight.detach()  # type: ignore[union-attr, operator]
    assert float(weight.var()) == pytest.approx(variance, rel=0.01)
    assert float(weight.abs().max() / weight.std()) == pytest.approx(3**0.5, rel=0.01) or shape == "normal"
    assert not layer.bias.any()  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("cnn", [NatureCNN, ImpalaCNN])
def test_convolutions_have_the_activation_that_is_asked_for(cnn: Any) -> None:
    """Features of a Softsign lie within 1 of 0, on both sides; those of a ReLU do not."""
    torch.manual_seed(0)
    space = spaces.Box(0, 255, (4, 40, 40), np.uint8)
    image = torch.as_tensor(np.random.default_rng(0).integers(0, 256, (2, 40, 40, 4), np.uint8))
    for_all = [cnn(cnn.Config(activation=name), space)(image) for name in ("Softsign", "ReLU")]
    assert float(for_all[0].detach().min()) < 0 < float(for_all[0].detach().max()) < 1
    assert float(for_all[1].detach().min()) == 0


def test_what_convolutions_make_can_be_normalized() -> None:
    torch.manual_seed(0)
    cnn = NatureCNN(NatureCNNConfig(layer_norm=True), spaces.Box(0, 255, (4, 84, 84), np.uint8))
    normed: list[torch.Tensor] = []
    norms = [part for part in cnn.modules() if isinstance(part, nn.GroupNorm | nn.LayerNorm)]
    for part in norms:  # a copy, for the activation acts where these numbers lie
        part.register_forward_hook(lambda module, inputs, output: normed.append(output.clone()))
    cnn(torch.as_tensor(np.random.default_rng(0).integers(0, 256, (3, 84, 84, 4), np.uint8)))
    assert [part.shape[1:] for part in normed] == [(32, 20, 20), (64, 9, 9), (64, 7, 7), (512,)]
    for part in normed:
        std, mean = torch.std_mean(part.detach().flatten(1), dim=1, correction=0)
        torch.testing.assert_close(mean, torch.zeros(3), atol=1e-4, rtol=0)
        torch.testing.assert_close(std, torch.ones(3), atol=1e-2, rtol=0)


def test_convolutions_alone_give_their_flattened_maps() -> None:
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    cnn = NatureCNN(NatureCNNConfig(features=None), space)
    assert cnn(torch.as_tensor(cnn.layout(space.sample()[None]))).shape == (1, 64 * 7 * 7)


@pytest.mark.parametrize("shape", [(4, 84, 84), (17, 33, 3), (1, 16, 16)])
def test_the_residual_network_reads_images_of_any_layout(shape: tuple[int, int, int]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    space.seed(0)
    torch.manual_seed(0)
    torso = ImpalaCNN(ImpalaCNNConfig(channels=[4, 8], features=16), space)
    images = torch.as_tensor(torso.layout(np.stack([space.sample() for _ in range(3)])))
    features = torso(images)
    assert features.shape == (3, 16)
    assert len({tuple(row) for row in features.tolist()}) == 3
    features.square().sum().backward()
    assert all(weight.grad is not None for weight in torso.parameters())


def test_residual_blocks_begin_as_the_identity() -> None:
    block = Residual(4, "orthogonal")
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(block(x), x)


def test_the_residual_network_is_the_one_of_the_paper() -> None:
    torso = ImpalaCNN(ImpalaCNNConfig(), spaces.Box(0, 255, (4, 84, 84), np.uint8))
    convolutions = [layer for layer in torso.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert len(convolutions) == 15
    assert [layer.out_channels for layer in torso.convolutions] == [16, 32, 32]  # type: ignore[union-attr]
    assert torso.linear[0].in_features == 11 * 11 * 32  # type: ignore[index, union-attr]


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (3,)), spaces.Box(0, 255, (15, 40, 3), np.uint8)], ids=str
)
def test_what_is_no_image_for_the_residual_network_is_refused(space: gym.Space) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError, match=r"agent\.network\.torso: ImpalaCNN needs images"):
        ImpalaCNN.check(ImpalaCNNConfig(), space)


def test_layers_can_be_normalized() -> None:
    torch.manual_seed(0)
    mlp = MLP(MLPConfig(hidden=[64], activation="ReLU", layer_norm=True), spaces.Box(-1, 1, (3,)))
    before = []
    mlp.norms[0].register_forward_hook(lambda module, inputs, output: before.append(output.clone()))
    mlp(100 * torch.randn(5, 3))
    assert before[0].mean(1).tolist() == pytest.approx([0] * 5, abs=1e-5)
    assert before[0].std(1, correction=0).tolist() == pytest.approx([1] * 5, abs=1e-3)


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
        features = self.layer(observation)
        if self._habit == "counts" and torch.is_grad_enabled():
            self.seen.add_(len(observation))  # type: ignore[operator]  # a buffer
        if self._habit == "one_row":
            return features.mean(0, keepdim=True)
        return nn.functional.dropout(features, 0.1, self.training) if self._habit == "draws" else features


class NoModule:
    def __init__(self, observation_space: gym.Space) -> None:  # type: ignore[type-arg]
        pass


def own(**settings: object) -> nn.Module:
    torso = Component.parse({"_target_": "test_torso.Own", **settings}, "agent.network.torso")
    return build_torso(torso, spaces.Box(-1, 1, (3,), np.float64))


def test_a_torso_of_ones_own_is_asked_as_agents_will() -> None:
    assert num_features(own(shape=[-1, 6]), spaces.Box(-1, 1, (3,), np.float64)) == 6


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"shape": [-1, 2, 3]}, r"Own must make \[batch, features\].* of \[1, 3\] it made \[1, 2, 3\]"),
        ({"shape": [-1]}, r"of \[1, 3\] it made \[6\]"),
        ({"shape": [2, 3]}, r"of \[1, 3\] it made \[2, 3\]"),
        ({"shape": [-1, 6], "inputs": 5}, r"fails on \[1, 3\]: RuntimeError: .*multiplied"),
    ],
    ids=str,
)
def test_features_that_no_layer_can_follow_are_refused(settings: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"agent\.network\.torso: .*{told}"):
        num_features(own(**settings), spaces.Box(-1, 1, (3,), np.float64))


@pytest.mark.parametrize(
    ("target", "told"),
    [("torch.nn.Flatten", "takes no observation_space"), ("test_torso.NoModule", r"is no torch\.nn\.Module")],
)
def test_what_is_no_torso_is_refused_by_its_name(target: str, told: str) -> None:
    torso = Component.parse({"_target_": target}, "agent.network.torso")
    with pytest.raises(ConfigError, match=rf"agent\.network\.torso: {target} .*{told}"):
        build_torso(torso, spaces.Box(-1, 1, (3,), np.float32))


@pytest.mark.parametrize(
    ("kind", "told"),
    [("Wide", r"must make .* as float32, it made torch\.float64"), ("Broken", "fails on .*KeyError: 'left'")],
)
def test_whatever_a_torso_of_ones_own_does_is_told(kind: str, told: str) -> None:
    torso = Component.parse({"_target_": f"test_torso.{kind}", "shape": [-1, 6]}, "agent.network.torso")
    with pytest.raises(ConfigError, match=rf"agent\.network\.torso: .*{told}"):
        num_features(build_torso(torso, SEEN), SEEN)


def test_an_argument_that_nobody_gives_is_told() -> None:
    torso = Component.parse({"_target_": "test_torso.Own"}, "agent.network.torso")
    with pytest.raises(ConfigError, match=r"test_torso\.Own: missing a required argument: 'shape'. Set it"):
        build_torso(torso, SEEN)


def test_weights_that_wait_for_the_first_observation_have_seen_one() -> None:
    torso = build_torso(Component.parse({"_target_": "test_torso.Lazy"}, "agent.network.torso"), SEEN)
    assert [list(weight.shape) for weight in torso.parameters()] == [[6, 3], [6]]


def all_built(layer: str, whole_minibatches: bool = False, **options: Any) -> None:
    make = lambda: (Holding(SEEN, layer, options),)  # noqa: E731
    compute = Compute(torch.device("cpu"), torch.float32, 1)
    built(make, 0, Spaces(SEEN, gym.spaces.Discrete(2), 1), compute, whole_minibatches)


@pytest.mark.parametrize(
    ("layer", "options", "told"),
    [
        ("Dropout", {"p": 0.1}, "1 of Holding is a Dropout, whose draws no seed of a run fixes.*p to 0"),
        ("AlphaDropout", {"p": 0.1}, "AlphaDropout, whose draws"),
        ("GRU", {"input_size": 6, "hidden_size": 6, "num_layers": 2, "dropout": 0.1}, "GRU with dropout"),
        ("MultiheadAttention", {"embed_dim": 6, "num_heads": 1, "dropout": 0.1}, "with dropout"),
        ("RReLU", {}, r"RReLU, whose draws.*nn\.LeakyReLU"),
        ("BatchNorm1d", {"num_features": 6}, r"BatchNorm1d: it normalizes by the minibatch.*agent=crossq"),
    ],
    ids=str,
)
def test_layers_by_which_a_run_would_not_repeat_are_refused(
    layer: str, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=rf"agent\.network: .*{told}"):
        all_built(layer, **options)


@pytest.mark.parametrize(
    ("habit", "told"),
    [
        ("draws", "forward pass of Habitual draws random numbers"),
        ("counts", "forward pass of Habitual changes its buffer seen"),
        ("spectral", r"changes its buffer layer\.parametrizations\.weight\.0\._[uv]"),
        ("double", r"test_torso\.Habitual has weights in torch\.float64"),
        ("one_row", r"of \[2, 3\] it made \[1, 6\]"),
        ("fails", r"test_torso\.Habitual cannot be made: KeyError: 'left'"),
    ],
)
def test_a_forward_pass_that_leaves_something_behind_is_refused(habit: str, told: str) -> None:
    words = [
        "~agent.network.torso",
        f"+agent.network.torso={{_target_: test_torso.Habitual, habit: {habit}}}",
    ]
    config = resolve(compose(["preset=none", *words]))
    env = Spaces(SEEN, gym.spaces.Discrete(2), 1)
    compute = Compute(torch.device("cpu"), torch.float32, 1)
    build = partial(config.agent.build, spaces=env, clock=Clock(1), streams=Streams(0), compute=compute)
    with pytest.raises(ConfigError, match=rf"agent\.network\.torso: .*{told}"):
        build()


def test_what_a_forward_pass_would_have_kept_is_not_there_after_the_first_look() -> None:
    torso = Habitual(SEEN, "counts")
    assert num_features(torso, SEEN) == 6
    assert torso.habits == Habits(draws=False, changes=("seen",))
    assert float(torso.seen) == 0  # type: ignore[arg-type]
    before = torch.get_rng_state()
    assert num_features(Habitual(SEEN, "draws"), SEEN) == 6
    drawn = torch.get_rng_state()
    torch.set_rng_state(before)
    Habitual(SEEN, "draws")
    assert torch.equal(torch.get_rng_state(), drawn), "only its weights were drawn"


def test_layers_that_draw_nothing_are_no_obstacle() -> None:
    all_built("Dropout", p=0.0)
    all_built("GRU", input_size=6, hidden_size=6)
    all_built("BatchNorm1d", whole_minibatches=True, num_features=6)


def test_a_residual_network_without_sections_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"channels"):
        Component.parse(
            {"_target_": "labrl.networks.impala.ImpalaCNN", "channels": []}, "agent.network.torso"
        )


def test_stacks_of_pictures_in_colour_are_refused_and_not_taken_for_numbers() -> None:
    space = gym.spaces.Box(0, 255, (4, 84, 84, 3), np.uint8)
    torso = Component("labrl.networks.torso.AutoTorso", AutoTorsoConfig())
    with pytest.raises(ConfigError, match=r"of pictures in colour, \(4, 84, 84, 3\).*grayscale=true"):
        check_torso(torso, Spaces(space, gym.spaces.Discrete(2), 1))


def test_bounds_as_wide_as_a_type_are_no_obstacle() -> None:
    widest = np.finfo(np.float64).max
    space = gym.spaces.Box(-widest, widest, (3,), np.float64)
    assert num_features(MLP(MLPConfig(hidden=[8]), space), space) == 8
