"""Tests of torsos: which observation spaces they accept, how they scale bytes, and their initialization."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from options import component, options
from refusals import refused
from torch import nn

from labrl.networks.batch_renorm import RenormalizedCNN
from labrl.networks.building import build_torso
from labrl.networks.impala import ImpalaCNN
from labrl.networks.layers import ConcatInputs, Initialization
from labrl.networks.torso import MLP, MLPConfig, NatureCNN
from labrl.spaces import array_dtype

TORSO = "agent.network.torso"
ONE_ARRAY = [
    spaces.Box(-1, 1, (3,)),
    spaces.Box(-1, 1, (2, 2), np.float64),
    spaces.Box(-1, 1, ()),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([3, 2]),
    spaces.MultiDiscrete([[3, 2], [2, 4]], start=[[1, 0], [0, 2]]),
    spaces.MultiBinary(3),
]


def mlp_config(**changes: Any) -> MLPConfig:
    return options(TORSO, "agent/network=mlp", **changes)


def cnn_config(option: str, **changes: Any) -> Any:
    return options(TORSO, f"agent/network={option}", **changes)


@pytest.mark.parametrize("space", ONE_ARRAY, ids=str)
def test_mlp_has_different_features_for_different_observations(space: gym.Space) -> None:  # type: ignore[type-arg]
    torch.manual_seed(0)
    space.seed(1)
    mlp = MLP(mlp_config(hidden=[8]), space)
    batch = np.stack([np.asarray(space.sample()) for _ in range(16)])
    # Agents convert float64 observations to float32.
    features = mlp(torch.as_tensor(batch.astype(np.float32) if batch.dtype == np.float64 else batch))
    assert features.shape == (16, 8)
    distinct = {row.tobytes() for row in batch}
    assert len({tuple(row) for row in features.detach().numpy().round(5).tolist()}) == len(distinct)


def bounded(shape: tuple[int, ...], axis: int | None, low: int, high: int) -> tuple[gym.Space[Any], Any]:
    """Return a space of bytes in [low, high], and arrays of random bounds: 0 or 1 for which, and the bytes.

    With an axis, only the last index of that axis has these bounds; the others have [0, 1].
    """
    lows, highs = np.full(shape, low), np.full(shape, high)
    if axis is not None:
        own = [slice(None)] * len(shape)
        own[axis] = slice(0, -1)
        lows[tuple(own)], highs[tuple(own)] = 0, 1
    space = spaces.Box(lows.astype(np.uint8), highs.astype(np.uint8), shape, np.uint8)
    ends = np.random.default_rng(0).integers(0, 2, (6, *shape))
    return space, (ends, np.where(ends == 1, space.high, space.low).astype(np.uint8))


TORSOS: dict[str, tuple[Any, str]] = {
    "mlp": (MLP, "agent/network=mlp"),
    "nature": (NatureCNN, "agent/network=nature_cnn"),
    "impala": (ImpalaCNN, "agent/network=impala_cnn"),
    "renormalized": (RenormalizedCNN, "agent=crossq"),
}


@pytest.mark.parametrize("torso", TORSOS)
@pytest.mark.parametrize("shape", [(2, 40, 40), (40, 40, 2)])
@pytest.mark.parametrize(
    ("axis", "low", "high"),
    [(None, 0, 1), (None, 100, 101), (None, 0, 0), (0, 3, 255), (2, 0, 255)],
)
def test_bytes_are_scaled_by_the_bounds_of_their_space(
    torso: str, shape: tuple[int, int, int], axis: int | None, low: int, high: int
) -> None:
    """A byte at its lower bound becomes 0 and one at its upper bound becomes 1."""
    space, (ends, seen) = bounded(shape, axis, low, high)
    cls, overrides = TORSOS[torso]
    config = options(TORSO, overrides)
    torch.manual_seed(0)
    network = cls(config, space)
    torch.manual_seed(0)
    usual = cls(config, spaces.Box(0, 255, shape, np.uint8))
    shares = np.where(low == high, 0, ends * 255).astype(np.uint8)
    found, expected = (
        module.eval()(torch.as_tensor(getattr(module, "layout", np.asarray)(each)))
        for module, each in ((network, seen), (usual, shares))
    )
    torch.testing.assert_close(found, expected)
    assert set(network.state_dict()) == set(usual.state_dict()), "the keys of the state dict differ"


def test_pixels_from_0_to_255_are_divided_by_255_exactly() -> None:
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    torso = NatureCNN(cnn_config("nature_cnn"), space)
    seen = torch.randint(0, 256, (3, 84, 84, 4), dtype=torch.uint8)
    pixels = seen.permute(0, 3, 1, 2).to(torch.float32)
    expected = torch.nn.functional.conv2d(pixels, torso.first.weight / 255, torso.first.bias, 4)
    assert (torso.first(seen) == expected).all()


def test_bytes_among_several_inputs_are_scaled_by_their_bounds() -> None:
    inputs: dict[str, Any] = {
        "few": spaces.Box(0, 1, (2, 2), np.uint8),
        "flags": spaces.MultiBinary(2),
        "ram": spaces.Box(0, 255, (3,), np.uint8),
        "shifted": spaces.Box(np.uint8([10, 0]), np.uint8([20, 4]), dtype=np.uint8),
        "wide": spaces.Box(0, 1000, (1,), np.int32),
    }
    rows = np.zeros(1, array_dtype(spaces.Dict(inputs)))
    values: dict[str, Any] = {"ram": 51, "few": 1, "shifted": [15, 1], "wide": 500, "flags": [0, 1]}
    for name, value in values.items():
        rows[name] = value
    read = ConcatInputs(spaces.Dict(inputs))(rows)
    np.testing.assert_allclose(read, [[*[1] * 4, 0, 1, *[0.2] * 3, 0.5, 0.25, 500]], rtol=1e-6)
    assert read.dtype == np.float32


@pytest.mark.parametrize("kind", ["orthogonal", "uniform"])
def test_initialization_of_weights_is_orthogonal_or_uniform_as_configured(kind: Initialization) -> None:
    torch.manual_seed(0)
    mlp = MLP(mlp_config(hidden=[16], initialization=kind), spaces.Box(-1, 1, (64,)))
    cnn = NatureCNN(cnn_config("nature_cnn", initialization=kind), spaces.Box(0, 255, (4, 36, 36), np.uint8))
    for layer in (mlp[0], cnn.first):
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
def test_xavier_and_kaiming_weights_have_the_variance_of_the_papers(
    kind: str, shape: str, variance: float
) -> None:
    torch.manual_seed(0)
    named: Initialization = f"{kind}_{shape}"  # type: ignore[assignment]
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    layer = NatureCNN(cnn_config("nature_cnn", initialization=named), space).linear[0]  # type: ignore[index]
    weight = layer.weight.detach()  # type: ignore[union-attr, operator]
    assert float(weight.var()) == pytest.approx(variance, rel=0.01)
    assert float(weight.abs().max() / weight.std()) == pytest.approx(3**0.5, rel=0.01) or shape == "normal"
    assert not layer.bias.any()  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("option", ["nature_cnn", "impala_cnn"])
def test_convolutions_use_the_configured_activation(option: str) -> None:
    """Features of a Softsign lie in (-1, 1) with both signs, and those of a ReLU are never negative."""
    torch.manual_seed(0)
    space = spaces.Box(0, 255, (4, 40, 40), np.uint8)
    image = torch.as_tensor(np.random.default_rng(0).integers(0, 256, (2, 40, 40, 4), np.uint8))
    features = [
        component(TORSO, f"agent/network={option}", activation=name).build(observation_space=space)(image)
        for name in ("Softsign", "ReLU")
    ]
    assert float(features[0].detach().min()) < 0 < float(features[0].detach().max()) < 1
    assert float(features[1].detach().min()) == 0


def test_outputs_of_convolutions_can_be_layer_normalized() -> None:
    torch.manual_seed(0)
    cnn = NatureCNN(cnn_config("nature_cnn", layer_norm=True), spaces.Box(0, 255, (4, 84, 84), np.uint8))
    normed: list[torch.Tensor] = []
    norms = [part for part in cnn.modules() if isinstance(part, nn.GroupNorm | nn.LayerNorm)]
    for part in norms:  # copied, because the activation works in place
        part.register_forward_hook(lambda module, inputs, output: normed.append(output.clone()))
    cnn(torch.as_tensor(np.random.default_rng(0).integers(0, 256, (3, 84, 84, 4), np.uint8)))
    assert [part.shape[1:] for part in normed] == [(32, 20, 20), (64, 9, 9), (64, 7, 7), (512,)]
    for part in normed:
        std, mean = torch.std_mean(part.detach().flatten(1), dim=1, correction=0)
        torch.testing.assert_close(mean, torch.zeros(3), atol=1e-4, rtol=0)
        torch.testing.assert_close(std, torch.ones(3), atol=1e-2, rtol=0)


@pytest.mark.parametrize("shape", [(4, 84, 84), (17, 33, 3), (1, 16, 16)])
def test_impala_cnn_reads_images_of_any_layout(shape: tuple[int, int, int]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    space.seed(0)
    torch.manual_seed(0)
    torso = ImpalaCNN(cnn_config("impala_cnn", channels=[4, 8], features=16), space)
    images = torch.as_tensor(torso.layout(np.stack([space.sample() for _ in range(3)])))
    features = torso(images)
    assert features.shape == (3, 16)
    assert len({tuple(row) for row in features.tolist()}) == 3
    features.square().sum().backward()
    assert all(weight.grad is not None for weight in torso.parameters())


def test_impala_cnn_has_the_architecture_of_the_paper() -> None:
    torso = ImpalaCNN(cnn_config("impala_cnn"), spaces.Box(0, 255, (4, 84, 84), np.uint8))
    convolutions = [layer for layer in torso.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert len(convolutions) == 15
    assert [layer.out_channels for layer in torso.convolutions] == [16, 32, 32]  # type: ignore[union-attr]
    assert torso.linear[0].in_features == 11 * 11 * 32  # type: ignore[index, union-attr]


def test_layers_of_an_mlp_can_be_normalized() -> None:
    torch.manual_seed(0)
    mlp = MLP(mlp_config(hidden=[64], activation="ReLU", layer_norm=True), spaces.Box(-1, 1, (3,)))
    before = []
    (norm,) = [part for part in mlp.modules() if isinstance(part, nn.LayerNorm)]
    norm.register_forward_hook(lambda module, inputs, output: before.append(output.clone()))
    mlp(100 * torch.randn(5, 3))
    assert before[0].mean(1).tolist() == pytest.approx([0] * 5, abs=1e-5)
    assert before[0].std(1, correction=0).tolist() == pytest.approx([1] * 5, abs=1e-3)


def test_stacked_color_images_are_refused_and_not_flattened() -> None:
    space = gym.spaces.Box(0, 255, (4, 84, 84, 3), np.uint8)
    with refused("unsupported", TORSO, "(4, 84, 84, 3)", "env.grayscale=true"):
        build_torso(component(TORSO), space)


def test_bounds_may_be_the_extremes_of_their_type() -> None:
    widest = np.finfo(np.float64).max
    space = gym.spaces.Box(-widest, widest, (3,), np.float64)
    assert build_torso(component(TORSO, "agent/network=mlp", hidden=[8]), space).num_features == 8
