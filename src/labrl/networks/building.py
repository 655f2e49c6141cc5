"""How every network of an agent begins, and how many threads share its minibatches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from labrl.networks.compute import Compute
from labrl.networks.spaces import Spaces, sees_images

Built = TypeVar("Built", bound=tuple[nn.Module, ...])


def built(make: Callable[[], Built], seed: int, spaces: Spaces, compute: Compute) -> Built:
    """What `make` builds, its weights drawn from `seed` alone, laid out for the observations."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = make()
    for network in networks:
        if sees_images(spaces.observation):
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in its stubs
        network.to(compute.device)
        if compute.compiled:
            from labrl.networks.compiling import compile_network  # late: few ask for it

            compile_network(network)
    return networks


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
