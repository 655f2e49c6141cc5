"""Convert nested state to plain data and tensors, which `torch.load(weights_only=True)` can read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

LARGE = 2**26
"""Minimum size in bytes of an array that stays mapped to its file instead of being copied to memory."""

PLAIN = frozenset({bool, int, float, str, type(None)})
"""Types whose values are stored as they are."""

# An OrderedDict represents a NumPy array or scalar, or bytes. All other mappings are packed as dicts.


def pack(state: Any, place: str = "") -> Any:
    """Pack a nested state: copy its containers, and convert NumPy arrays to tensors of their bytes.

    Accepts dicts, lists, tuples, text, bytes, numbers, None, NumPy arrays and scalars of any dtype except
    object, and dense tensors of any dtype on any device. Arrays and tensors share memory with the state where
    possible. Raises TypeError, with the place in the state, for anything else. place: that of `state` itself.
    """
    if type(state) in PLAIN:
        return state
    what = f"a {type(state).__module__}.{type(state).__qualname__}"
    if isinstance(state, Tensor):
        if state.layout is torch.strided and not state.is_quantized and not state.is_meta:
            tensor = state.detach().cpu()
            # torch.save would write the whole storage behind a view.
            return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
        what = "a tensor that is not dense"
    elif isinstance(state, np.ndarray | np.generic):  # checked before float, because np.float64 is a float
        array = np.asarray(state)
        if not _is_opaque(array.dtype):
            flat = np.ascontiguousarray(array).reshape(-1)
            if not flat.flags.writeable:
                flat = flat.copy()  # torch warns about read-only memory
            return OrderedDict(
                array=torch.from_numpy(flat.view(np.uint8)),  # as bytes: torch lacks some dtypes of NumPy
                dtype=array.dtype.descr if array.dtype.names else array.dtype.str,
                shape=array.shape,
                scalar=isinstance(state, np.generic),
            )
        what = f"an array of {array.dtype}"
    elif isinstance(state, dict | Mapping):  # a dict needs no call of the abstract class
        # The hash of such a key differs from that of the loaded plain value.
        if not any(issubclass(kind, np.generic | Tensor) for kind in set(map(type, state))):
            packed = {}
            for key, item in state.items():
                key = key if type(key) in PLAIN else pack(key, place)
                packed[key] = item if type(item) in PLAIN else pack(item, f"{place}/{key}")
            return packed
        what = "a mapping with keys other than text, numbers, None and tuples"
    elif isinstance(state, list | tuple):
        items = [pack(item, f"{place}/{index}") for index, item in enumerate(state)]
        return items if isinstance(state, list) else tuple(items)
    elif isinstance(state, bytes):
        return OrderedDict(bytes=state.decode("latin-1"))  # torch.load refuses empty bytes
    else:
        for kind in (bool, int, float, str):
            if isinstance(state, kind):
                return kind(state)  # a subclass would not load with weights_only
    raise TypeError(
        f"state at {place or '/'} is {what}; a checkpoint contains only plain data: dict, list, tuple, str, "
        "bytes, numbers, None, NumPy arrays, tensors"
    )


def unpack(packed: Any) -> Any:
    """Restore the state that was passed to `pack`, with tensors on the CPU.

    Raises ValueError, TypeError or KeyError if another program has written the data.
    """
    if isinstance(packed, OrderedDict):
        if "bytes" in packed:
            return packed["bytes"].encode("latin-1")
        dtype = np.dtype(packed["dtype"])
        if _is_opaque(dtype):
            raise ValueError(f"it contains an array of {dtype}")
        array = unpack(packed["array"]).numpy().view(dtype).reshape(packed["shape"])
        return array[()] if packed["scalar"] else array
    if isinstance(packed, dict):
        return {unpack(key): unpack(value) for key, value in packed.items()}
    if isinstance(packed, list | tuple):
        return type(packed)(map(unpack, packed))
    return packed.clone() if isinstance(packed, Tensor) and packed.nbytes < LARGE else packed


def copied(packed: Any) -> Any:
    """Return a copy of a packed state that shares no memory with it."""
    if isinstance(packed, dict):
        return type(packed)((key, copied(value)) for key, value in packed.items())
    if isinstance(packed, list | tuple):
        return type(packed)(map(copied, packed))
    return packed.clone() if isinstance(packed, Tensor) else packed


def num_bytes(packed: Any) -> int:
    """Return the total size of all tensors in a packed state, in bytes."""
    if isinstance(packed, dict | list | tuple):
        return sum(map(num_bytes, packed.values() if isinstance(packed, dict) else packed))
    return packed.nbytes if isinstance(packed, Tensor) else 0


def _is_opaque(dtype: np.dtype) -> bool:
    return dtype.hasobject or (dtype.kind == "V" and not dtype.names)
