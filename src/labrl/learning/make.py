"""Choice of a learner for a network."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from labrl.component import Component
from labrl.spaces import Spaces, sees_images

if TYPE_CHECKING:
    from labrl.learning.compute import Compute
    from labrl.learning.flat import Network
    from labrl.learning.learner import Learner, NewOptimizer

LARGE_PRODUCTS = 2**23
"""Number of weights times number of samples above which several threads speed up a matrix product."""


def make_learner(
    network: Network,
    spaces: Spaces,
    compute: Compute,
    optimizer: Component | NewOptimizer,
    max_grad_norm: float | None = None,
    *,
    batch_size: int = 0,
    whole_minibatches: bool = False,
) -> Learner[Network]:
    """Return the fastest learner for a network, given the observations and resources of a session.

    optimizer: a component, or a function that makes an optimizer of the flat parameters; max_grad_norm:
    maximum Euclidean norm of a gradient, None for no limit; batch_size: number of rows in a minibatch, 0 if
    the matrix products of a minibatch are too small for several threads; whole_minibatches: whether a
    minibatch must not be sliced.
    """
    if compute.compiled:
        # A compiled method stored on the object would use the weights of the original in a copy of it, so
        # the class is replaced.
        network.__class__ = _compiled(type(network))  # type: ignore[arg-type]  # a class can be hashed
    if isinstance(optimizer, Component):
        build = partial(optimizer.build, max_grad_norm=max_grad_norm)
        optimizer = lambda flat: build(parameters=[flat.vector])  # noqa: E731  # one optimizer for all weights
    images = sees_images(spaces.observation)
    # Use float32, because values in the hundreds that differ by one need more than bfloat16's three digits.
    compute = compute if images else replace(compute, precision=torch.float32)
    if compute.device.type == "cuda" or compute.record is not None:
        from labrl.learning.graphs import DeviceLearner  # each learner is loaded only where it is used

        return DeviceLearner(network, compute, optimizer, images)
    large = images or batch_size * sum(weight.numel() for weight in network.parameters()) >= LARGE_PRODUCTS
    threads = compute.num_threads if large else 1
    from labrl.learning.learner import Learner, has_kernel

    sliced = threads > 1 and not whole_minibatches and not has_kernel(network, compute, images)
    if compute.precision != torch.float32 or sliced:
        from labrl.learning.sliced import SlicedLearner

        return SlicedLearner(network, compute, optimizer, whole_minibatches, images)
    return Learner(network, compute, optimizer, 1 if images else threads, images)


@cache
def _compiled(kind: type[nn.Module]) -> Any:
    """Return a subclass of a network's class whose forward pass torch.compile compiles at its first call."""
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**names, "forward": torch.compile(kind.forward)})
