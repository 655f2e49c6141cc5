"""How every network of an agent begins, and how many threads share its minibatches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from labrl.errors import InputError
from labrl.networks.compute import Compute
from labrl.networks.spaces import Spaces, sees_images
from labrl.networks.torso import BY_THE_MINIBATCH

DRAWS = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout
"""Layers that draw what they drop, or none where their `p` is 0."""
DROPS = nn.RNNBase, nn.MultiheadAttention
"""Layers with the same inside them, where their `dropout` is not 0."""

UNSEEDED = "which draws from PyTorch's global generator, so that the run would not be reproducible"

Built = TypeVar("Built", bound=tuple[nn.Module, ...])


def built(
    make: Callable[[], Built], seed: int, spaces: Spaces, compute: Compute, whole_minibatches: bool = False
) -> Built:
    """What `make` builds, its weights drawn from `seed` alone, laid out for the observations.

    whole_minibatches: as for `check_torso`. Raises InputError for layers with which a run would not repeat.
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
            from labrl.networks.compiling import compile_network  # late: few ask for it

            compile_network(network)
    return networks


def _check_layers(network: nn.Module, whole_minibatches: bool) -> None:
    """Raises InputError for layers of a user's network that draw numbers, mix the rows of a batch or keep
    something of it: copies of the network, for other threads and as a target, would not have the same."""
    for name, layer in network.named_modules():
        told = f"{name} of {type(network).__name__} is a {type(layer).__name__}"
        if isinstance(layer, DRAWS) and layer.p > 0:
            raise _unsupported(f"{told}, {UNSEEDED}. Leave it out, or set its p to 0.")
        if isinstance(layer, DROPS) and layer.dropout > 0:
            raise _unsupported(f"{told} with dropout, {UNSEEDED}. Set dropout to 0.")
        if isinstance(layer, nn.RReLU):
            raise _unsupported(f"{told}, {UNSEEDED}. Use nn.LeakyReLU.")
        if isinstance(layer, _BatchNorm) and not whole_minibatches:
            raise _unsupported(
                f"{told}: it {BY_THE_MINIBATCH}. Use nn.LayerNorm or nn.GroupNorm, or set agent=crossq."
            )
    for torso in network.modules():
        habits = getattr(torso, "habits", None)
        told = f"the forward pass of {type(torso).__name__}"
        if habits is not None and habits.draws:
            raise _unsupported(f"{told} draws random numbers, {UNSEEDED}. Leave them out.")
        if habits is not None and habits.changes and not whole_minibatches:
            raise _unsupported(
                f"{told} changes its buffer {habits.changes[0]}, which would differ between the threads that "
                "learn and the target network. Compute with weights and constants alone, such as weight_norm "
                "or LayerNorm instead of spectral_norm."
            )


def _unsupported(what: str) -> InputError:
    return InputError(f"agent.network.torso: {what}", code="unsupported", key="agent.network.torso")


def precise(spaces: Spaces, compute: Compute) -> Compute:
    """`compute`, but in float32 where no pixels are seen.

    Values of hundreds with differences of one need all digits; bfloat16 has three.
    """
    if sees_images(spaces.observation):
        return compute
    return dataclasses.replace(compute, precision=torch.float32)


def num_workers(spaces: Spaces, compute: Compute) -> int:
    """Threads that share a minibatch: two inside one small matrix product cost more than they bring."""
    return compute.num_threads if compute.device.type == "cpu" and sees_images(spaces.observation) else 1
