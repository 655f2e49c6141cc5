"""Convert nested state to plain data and tensors, which `torch.load(weights_only=True)` can read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

LARGE = 2**26
"""Minimum size in bytes of an array that stays mapped to its file instead of being copied to memory."""

# An OrderedDict represents a NumPy array or scalar, or bytes. All other mappings are packed as dicts.


def pack(state: Any) -> Any:
    """Pack a nested state: copy its containers, and convert NumPy arrays to tensors of their bytes.

    Accepts dicts, lists, tuples, text, bytes, numbers, None, NumPy arrays and scalars of any dtype except
    object, and dense tensors of any dtype on any device. Arrays and tensors share memory with the state where
    possible. Raises TypeError, with the place in the state, for anything else.
    """
    return _pack(state, "")


def unpack(packed: Any) -> Any:
    """Restore the state that was passed to `pack`, with tensors on the CPU.

    Raises ValueError, TypeError or KeyError if another program has written the data.
    """
    if isinstance(packed, OrderedDict):
        return packed["bytes"].encode("latin-1") if "bytes" in packed else _unpack_array(packed)
    if isinstance(packed, dict):
        return {unpack(key): unpack(value) for key, value in packed.items()}
    if isinstance(packed, list | tuple):
        return type(packed)(map(unpack, packed))
    if isinstance(packed, Tensor):
        return packed if packed.nbytes >= LARGE else packed.clone()
    return packed


def num_bytes(packed: Any) -> int:
    """Return the total size of all tensors in a packed state, in bytes."""
    return sum(tensor.nbytes for tensor in _tensors(packed))


def _tensors(packed: Any) -> Iterator[Tensor]:
    if isinstance(packed, Tensor):
        yield packed
    elif isinstance(packed, dict | list | tuple):
        for inner in packed.values() if isinstance(packed, dict) else packed:
            yield from _tensors(inner)


def _pack(value: Any, place: str) -> Any:
    if isinstance(value, Tensor):
        return _pack_tensor(value, place)
    if isinstance(value, np.ndarray | np.generic):  # checked before float, because np.float64 is a float
        return _pack_array(value, place)
    if isinstance(value, Mapping):
        return {_pack_key(key, place): _pack(item, f"{place}/{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_pack(item, f"{place}/{index}") for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, bytes):
        return OrderedDict(bytes=value.decode("latin-1"))  # torch.load refuses empty bytes
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)  # a subclass would not load with weights_only
    if value is None:
        return None
    raise TypeError(
        f"state at {place or '/'} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint "
        "contains only plain data: dict, list, tuple, str, bytes, numbers, None, NumPy arrays, tensors"
    )


def _pack_key(key: Any, place: str) -> Any:
    if isinstance(key, np.generic | Tensor):  # its hash differs from that of the loaded plain value
        raise TypeError(
            f"state at {place or '/'} has the key {key!r}: keys must be text, numbers, None or tuples"
        )
    return _pack(key, place)


def _pack_tensor(tensor: Tensor, place: str) -> Tensor:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise TypeError(
            f"state at {place or '/'} is a tensor that is not dense: a checkpoint contains only dense tensors"
        )
    tensor = tensor.detach().cpu()
    # torch.save would write the whole storage behind a view.
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _pack_array(value: np.ndarray | np.generic, place: str) -> OrderedDict[str, Any]:
    array = np.asarray(value)
    if _is_opaque(array.dtype):
        raise TypeError(
            f"state at {place or '/'} is an array of {array.dtype}, which a checkpoint cannot contain"
        )
    flat = np.ascontiguousarray(array).reshape(-1)
    if not flat.flags.writeable:
        flat = flat.copy()  # torch warns about read-only memory
    return OrderedDict(
        array=torch.from_numpy(flat.view(np.uint8)),  # as bytes, because torch lacks some dtypes of NumPy
        dtype=array.dtype.descr if array.dtype.names else array.dtype.str,
        shape=array.shape,
        scalar=isinstance(value, np.generic),
    )


def _unpack_array(packed: Mapping[str, Any]) -> Any:
    dtype = np.dtype(packed["dtype"])
    if _is_opaque(dtype):
        raise ValueError(f"it contains an array of {dtype}")
    array = unpack(packed["array"]).numpy().view(dtype).reshape(packed["shape"])
    return array[()] if packed["scalar"] else array


def _is_opaque(dtype: np.dtype) -> bool:
    return dtype.hasobject or (dtype.kind == "V" and not dtype.names)
