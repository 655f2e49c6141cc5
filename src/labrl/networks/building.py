"""Build networks, check their torsos and layers, and summarize them.

A torso is a module that turns a batch of observations into a batch of features. It is built from the
observation space, has `forward(observation) -> [batch, num_features]`, and may have `layout(observation)`.
This method is called once, when raw observations are collected, and converts them to the layout that
`forward` reads fastest. A user's own `nn.Module` needs only `forward`; `build_torso` checks it before a run
begins.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from labrl.component import Component
from labrl.errors import Code, InputError, LabrlError, described
from labrl.networks.layers import ConcatInputs
from labrl.spaces import Spaces, example, sees_images

Built = TypeVar("Built", bound=tuple[nn.Module, ...])

TORSO = "agent.network.torso"
UNSEEDED = "which draws from PyTorch's global generator, so that the run would not be reproducible"
BY_THE_MINIBATCH = (
    "normalizes over the minibatch, but when acting this agent would have only the statistics of its few "
    "environments"
)
DRAWS = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout
"""Layers that draw random numbers unless their `p` is 0."""
DROPS = nn.RNNBase, nn.MultiheadAttention
"""Layers that use dropout unless their `dropout` is 0."""

_COMPUTED = torch.float32, torch.bfloat16

AS_THEY_ARE: Any = operator.itemgetter(...)
"""Default `layout` of a torso; it returns an array or a tensor unchanged."""


@dataclass(frozen=True)
class TorsoTraits:
    """Capabilities of a torso class. A class declares `TRAITS` if its capabilities are not the defaults."""

    several_inputs: bool = False
    """Whether the torso accepts a Dict space with images. Its `layout` converts the inputs to one array."""
    recurrent: bool = False
    """Whether the torso has a `state_size` and is called as `torso(observation, state, lengths)`."""
    batch_statistics: bool = False
    """Whether, in training mode, the features of a sample depend on the other samples of the minibatch."""


def traits_of(torso: Component) -> TorsoTraits:
    """Return the traits that the class of a torso declares."""
    return getattr(torso.load(), "TRAITS", TorsoTraits())


def refusal(what: str, code: Code = "unsupported", key: str = TORSO) -> InputError:
    """Return the error for a torso that cannot be used."""
    return InputError.about(key, what, code=code)


def build_torso(torso: Component, space: gym.Space[Any], key: str = TORSO) -> Any:
    """Return the torso for observations of `space`. Raises InputError if the module is not a usable torso.

    The module has `layout`, which converts observations, [batch, *obs], to the one array that it reads;
    `num_features`; `state_size`, 0 unless it is recurrent; and `changes`, the names of the buffers that its
    forward pass writes to. key: key of the torso, for messages.
    """
    layout = ConcatInputs(space) if isinstance(space, gym.spaces.Dict) and not sees_images(space) else None
    code: Code = "unsupported" if torso.target.startswith("labrl.") else "target"
    try:
        built = torso.build(observation_space=space if layout is None else layout.space)
        if not isinstance(built, nn.Module):
            raise TypeError("it is not a torch.nn.Module")
        made: Any = built
        made.layout = layout or getattr(made, "layout", AS_THEY_ARE)
        made.state_size = made.state_size if traits_of(torso).recurrent else 0
        made.num_features, made.changes = _examine(made, made.layout(example(space)))
    except LabrlError as error:
        if key == TORSO:
            raise
        message, given = error.message.replace(TORSO, key), error.key and error.key.replace(TORSO, key)
        raise InputError(message, code=error.code, key=given) from error.__cause__
    except Exception as error:  # a user's own code may raise anything
        why = f"{torso.target} does not work with observations of {space}: {described(error)}"
        raise refusal(why, code, key) from error
    return made


def _examine(torso: nn.Module, seen: NDArray) -> tuple[int, tuple[str, ...]]:
    """Return the number of features and the names of the buffers that a forward pass changes.

    The buffers and the state of torch's generator are restored afterwards. Raises an exception if the module
    does not work as a torso.
    """
    one = torch.as_tensor(seen.astype(np.float32) if seen.dtype == np.float64 else seen)  # as agents do
    torso.eval()
    with torch.no_grad():
        size = _count_features(torso, one)
    if any(weight.dtype != torch.float32 for weight in torso.parameters()):
        raise ValueError("its weights must be in float32; meta.precision=bf16 computes in bfloat16 with them")
    torso.train()
    generator, before = torch.get_rng_state(), {n: buffer.clone() for n, buffer in torso.named_buffers()}
    _count_features(torso, torch.cat([one, one]))
    if not torch.equal(generator, torch.get_rng_state()):
        torch.set_rng_state(generator)
        raise refusal(
            f"the forward pass of {type(torso).__name__} draws from PyTorch's global generator, {UNSEEDED}"
        )
    changes = []
    with torch.no_grad():
        for name, buffer in torso.named_buffers():
            if name not in before or not torch.equal(buffer, before[name]):
                changes.append(name)
                buffer.copy_(before.get(name, buffer))
    return size, tuple(changes)


def _count_features(torso: Any, batch: Tensor) -> int:
    """Return the number of features. Raises an exception if the module does not work as a torso."""
    version = batch._version
    features = torso(batch)[0] if torso.state_size else torso(batch)
    if batch._version != version:
        raise ValueError("it modifies its input, which is stored for later updates")
    if features.shape != (len(batch), features.shape[-1]) or features.dtype not in _COMPUTED:
        given, dtype = list(features.shape), features.dtype
        why = f"it must turn {list(batch.shape)} into features [{len(batch)}, features] in float32"
        raise ValueError(f"{why}, not {given} in {dtype}")
    return int(features.shape[1])


def is_recurrent(settings: Any) -> bool:
    """Return whether a torso anywhere in the settings carries a state from step to step."""
    found = (traits_of(part) for part in components_in(settings))
    return any(isinstance(traits, TorsoTraits) and traits.recurrent for traits in found)


def components_in(settings: Any) -> Iterator[Component]:
    """Yield all components in the settings, including nested ones."""
    if isinstance(settings, Component):
        yield settings
        yield from components_in(settings.config)
    elif is_dataclass(settings):
        for inner in vars(settings).values():
            yield from components_in(inner)
    elif isinstance(settings, dict):
        for inner in settings.values():
            yield from components_in(inner)


def build_networks(
    make: Callable[[], Built], seed: int, spaces: Spaces, whole_minibatches: bool = False
) -> Built:
    """Return the networks that `make` builds, with weights drawn from `seed` alone.

    whole_minibatches: see `check_torso`. Raises InputError for layers that would make a run irreproducible.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = make()
    for network in networks:
        _check_layers(network, whole_minibatches)
        if sees_images(spaces.observation):
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in its stubs
    return networks


def _check_layers(network: nn.Module, whole_minibatches: bool) -> None:
    """Raise InputError for layers that draw random numbers, mix the rows of a batch or keep statistics.

    The copies of the network, for other threads and as a target network, would compute different outputs.
    """
    for name, layer in network.named_modules():
        found = f"{name} of {type(network).__name__} is a {type(layer).__name__}"
        if isinstance(layer, DRAWS) and layer.p > 0:
            raise refusal(f"{found}, {UNSEEDED}. Leave it out, or set its p to 0.")
        if isinstance(layer, DROPS) and layer.dropout > 0:
            raise refusal(f"{found} with dropout, {UNSEEDED}. Set dropout to 0.")
        if isinstance(layer, nn.RReLU):
            raise refusal(f"{found}, {UNSEEDED}. Use nn.LeakyReLU.")
        if whole_minibatches:
            continue
        if isinstance(layer, _BatchNorm):
            raise refusal(
                f"{found}: it {BY_THE_MINIBATCH}. Use nn.LayerNorm or nn.GroupNorm, or set agent=crossq."
            )
        if changes := vars(layer).get("changes"):
            raise refusal(
                f"the forward pass of {type(layer).__name__} changes its buffer {changes[0]}, which would "
                "differ between the threads that learn and the target network. Use only weights and "
                "constants, such as weight_norm or LayerNorm instead of spectral_norm."
            )


def count(module: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def summary(modules: Mapping[str, nn.Module]) -> str:
    """Return a table for each network: its layers, and the name, shape and size of each parameter."""
    parts = []
    for title, module in modules.items():
        rows = [
            (name, " x ".join(map(str, parameter.shape)) or "1", f"{parameter.numel():,}")
            for name, parameter in module.named_parameters()
        ]
        rows.append(("", "parameters", f"{count(module):,}"))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
        parts.append("\n".join([f"{title}: {module}", "", *lines]))
    return "\n\n".join(parts) + "\n"
