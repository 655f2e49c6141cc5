"""Recording and repeating of operations on the CPU, as a CUDA graph does it on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITING = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}
"""Operations that need results in Python, for which a GPU would have to be awaited."""


class Operations(TorchDispatchMode):
    """Notes the operations in its context with the tensors that they read and return."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        self.noted.append((operation, args, kwargs or {}, result))
        return result


def record(function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Run a function, and return a function that repeats its operations on the same memory, and its results.

    Like a CUDA graph, the repetition knows nothing of the Python code around the operations: numbers in it
    stay those of the recording. Raises AssertionError if an operation would wait for a GPU.
    """
    with Operations() as operations:
        results = function()
    assert not any(each in WAITING for each, *_ in operations.noted), "the function waits for a result"
    steps = [step for step in operations.noted if not _is_view(*step)]
    first = True

    def repeat() -> None:
        nonlocal first
        if first:  # the recording has computed the operations, which recording a graph does not
            first = False
            return
        with torch.no_grad():
            for operation, args, kwargs, result in steps:
                again = operation(*args, **kwargs)
                for place, value in zip(_tensors(result), _tensors(again), strict=True):
                    if place.data_ptr() != value.data_ptr():
                        place.copy_(value)

    return repeat, results


def _tensors(nested: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(nested) if isinstance(leaf, Tensor)]


def _is_view(operation: Any, args: Any, kwargs: Any, result: Any) -> bool:
    """Return whether the results are views of the arguments, and the operation changes nothing."""
    given = {each.untyped_storage().data_ptr() for each in _tensors((args, kwargs))}
    found = _tensors(result)
    shares = bool(found) and all(each.untyped_storage().data_ptr() in given for each in found)
    return shares and not operation._schema.is_mutable
