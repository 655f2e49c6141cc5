"""Initialization of networks: draws weights from the seed, and refuses layers that are not reproducible."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from labrl.networks.spaces import Spaces, sees_images
from labrl.networks.torso import BY_THE_MINIBATCH, UNSEEDED, refusal

if TYPE_CHECKING:
    from labrl.learning.compute import Compute

DRAWS = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout
"""Layers that draw what they drop, or none where their `p` is 0."""
DROPS = nn.RNNBase, nn.MultiheadAttention
"""Layers with the same inside them, where their `dropout` is not 0."""

Built = TypeVar("Built", bound=tuple[nn.Module, ...])


def build_networks(
    make: Callable[[], Built], seed: int, spaces: Spaces, compute: Compute, whole_minibatches: bool = False
) -> Built:
    """Return what `make` builds, its weights drawn from `seed` alone, laid out for the observations.

    whole_minibatches: as for `check_torso`. With meta.compile, they and copies of them compute by code that
    torch.compile makes at their first call. Raise InputError for layers with which a run would not repeat.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = make()
    for network in networks:
        _check_layers(network, whole_minibatches)
        if sees_images(spaces.observation):
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in its stubs
        network.to(compute.device)
        if compute.compiled:
            # The class is changed and not the object: a compiled method that an object carries would, in a
            # copy of it, still compute with the weights of the original.
            network.__class__ = _compiled(type(network))  # type: ignore[arg-type]  # a class can be hashed
    return networks


def _check_layers(network: nn.Module, whole_minibatches: bool) -> None:
    """Raise InputError for layers of a user's network that draw numbers, mix the rows of a batch or keep
    something of it: copies of the network, for other threads and as a target, would not have the same."""
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
                "differ between the threads that learn and the target network. Compute with weights and "
                "constants alone, such as weight_norm or LayerNorm instead of spectral_norm."
            )


@functools.cache
def _compiled(kind: type[nn.Module]) -> Any:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**names, "forward": torch.compile(kind.forward)})
