"""Nested state as a JSON tree and a flat table of tensors: plain data that loads without running code."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

# A JSON object is always a tag and its value, so data can never be mistaken for a tag:
#   {"dict": {...}} keys are text    {"items": [[key, value], ...]} any keys    {"tuple": [...]}
#   {"float": "nan"}    {"bytes": base64}    {"tensor": name}    {"array": name, "dtype", "shape"}
#   {"scalar": ...} as array, whose dtype is a list where it has fields.
#   Lists, text, integers of any size, finite floats, booleans and null
#   stand for themselves.


def flatten(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """Split nested plain state into what JSON can hold and a table of tensors by their place.

    Takes dicts, lists, tuples, text, bytes, numbers, None, NumPy arrays and scalars of any dtype but
    object, and dense tensors of any dtype on any device. Tensors are not copied where it can be
    avoided: write the table before the state changes. Raises TypeError naming the place of anything else.
    """
    tensors: dict[str, Tensor] = {}
    return _flatten(state, "", tensors), tensors


def restore(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `flatten` took apart; tensors are on the CPU. Raises ValueError or KeyError on foreign data."""
    if isinstance(tree, list):
        return [restore(value, tensors) for value in tree]
    if not isinstance(tree, dict):
        return tree
    tag = next(iter(tree), None)
    if tag not in _RESTORE:
        raise ValueError(f"unknown tag {tag!r} in a state tree")
    return _RESTORE[tag](tree, tensors)


def _flatten(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return {"tensor": _keep(_storable(value, place), place, tensors)}
    if isinstance(value, np.ndarray | np.generic):  # before float: np.float64 is one
        return _flatten_array(value, place, tensors)
    if isinstance(value, Mapping):
        return _flatten_mapping(value, place, tensors)
    if isinstance(value, list):
        return [_flatten(item, f"{place}/{index}", tensors) for index, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": _flatten(list(value), place, tensors)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, float) and not np.isfinite(value):
        return {"float": repr(float(value))}  # JSON has no nan and no infinity
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"state at {place or '/'} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint "
        "holds only plain data: dict, list, tuple, str, bytes, numbers, None, NumPy arrays, tensors"
    )


def _flatten_mapping(value: Mapping[Any, Any], place: str, tensors: dict[str, Tensor]) -> Any:
    if all(isinstance(key, str) for key in value):
        return {"dict": {key: _flatten(item, f"{place}/{key}", tensors) for key, item in value.items()}}
    items = []
    for key, item in value.items():
        if isinstance(key, np.generic | Tensor):  # hashable, but not as plain data that loads as itself
            raise TypeError(
                f"state at {place or '/'} has the key {key!r}: keys are text, numbers, None or tuples"
            )
        items.append([_flatten(key, place, {}), _flatten(item, f"{place}/{key}", tensors)])
    return {"items": items}


def _flatten_array(value: np.ndarray | np.generic, place: str, tensors: dict[str, Tensor]) -> Any:
    array = np.asarray(value)
    if array.dtype.hasobject or (array.dtype.kind == "V" and not array.dtype.names):
        raise TypeError(
            f"state at {place or '/'} is an array of {array.dtype}: a checkpoint holds no such thing"
        )
    flat = np.ascontiguousarray(array).reshape(-1)
    if not flat.flags.writeable:
        flat = flat.copy()  # torch warns about read-only memory
    # as bytes, because torch lacks some of NumPy's dtypes
    name = _keep(torch.from_numpy(flat.view(np.uint8)), place, tensors)
    tag = "scalar" if isinstance(value, np.generic) else "array"
    dtype = array.dtype.descr if array.dtype.names else array.dtype.str
    return {tag: name, "dtype": dtype, "shape": list(array.shape)}


def _keep(tensor: Tensor, place: str, tensors: dict[str, Tensor]) -> str:
    """Enter `tensor` under a name that says its place; keys such as "a/b" and 1 beside "1" may share one."""
    name = place
    while name in tensors:
        name += "'"
    tensors[name] = tensor
    return name


def _storable(tensor: Tensor, place: str) -> Tensor:
    """The tensor itself where possible; a copy where it is a view of something larger."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise TypeError(
            f"state at {place or '/'} is a tensor that is not dense: a checkpoint holds dense ones"
        )
    tensor = tensor.detach().cpu()
    # torch.save writes the whole storage behind a view
    if tensor.untyped_storage().nbytes() != tensor.nbytes:
        return tensor.clone()
    return tensor


def _restore_array(tree: dict[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    tag = "scalar" if "scalar" in tree else "array"
    dtype = _dtype(tree["dtype"])
    if dtype.hasobject or (dtype.kind == "V" and not dtype.names):
        raise ValueError(f"an array of {dtype} in a state tree")
    array = tensors[tree[tag]].numpy().view(dtype).reshape(tree["shape"])
    return array[()] if tag == "scalar" else array


def _dtype(told: Any) -> np.dtype:
    """From its text, or from the fields of a structured one: name, type and, of several numbers, shape."""
    if isinstance(told, list):
        return np.dtype([(name, _dtype(inner), *map(tuple, shape)) for name, inner, *shape in told])
    return np.dtype(told)


_RESTORE: dict[str, Callable[[dict[str, Any], Mapping[str, Tensor]], Any]] = {
    "dict": lambda tree, tensors: {key: restore(value, tensors) for key, value in tree["dict"].items()},
    "items": lambda tree, tensors: {
        restore(key, tensors): restore(item, tensors) for key, item in tree["items"]
    },
    "tuple": lambda tree, tensors: tuple(restore(tree["tuple"], tensors)),
    "float": lambda tree, tensors: float(tree["float"]),
    "bytes": lambda tree, tensors: base64.b64decode(tree["bytes"], validate=True),
    "tensor": lambda tree, tensors: tensors[tree["tensor"]],
    "array": _restore_array,
    "scalar": _restore_array,
}
