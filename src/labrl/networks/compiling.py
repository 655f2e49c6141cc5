"""Networks whose forward and backward pass torch.compile turns into fewer, larger kernels."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn


def compile_network(network: nn.Module) -> None:
    """Let `network`, and copies that are made of it, compute by compiled code from their first call on.

    The class is changed and not the object: a compiled method that an object carried would, in a copy, still
    compute with the weights of the original.
    """
    network.__class__ = _compiled(type(network))  # type: ignore[arg-type]  # a class can be hashed


@functools.cache
def _compiled(kind: type[nn.Module]) -> Any:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**names, "forward": torch.compile(kind.forward)})
