"""Stacks of frames without their repetitions: a stack of four shares three frames with the one before it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

STACK = 4
"""Frames of a stack that is packed: four bytes of a pixel are compared and shifted as one integer."""


def pack_stacks(rows: NDArray) -> dict[str, NDArray]:
    """Consecutive observations of several environments, frames stored once where they are stacks.

    rows: [steps, num_envs, *obs]. Stacks of four frames of bytes, the newest last and along the last axis,
    shrink to nearly a quarter; what is no stack, or begins a new one, is kept whole. `unpack_stacks` gives
    back the same rows, whatever they held.
    """
    is_stack = rows.dtype == np.uint8 and rows.ndim == 5 and rows.shape[-1] == STACK
    if not is_stack or len(rows) == 0 or sys.byteorder != "little":
        return {"whole": rows.copy()}
    pixels = rows.view(np.uint32)[..., 0]  # [steps, num_envs, height, width]
    follows = np.zeros(rows.shape[:2], np.bool_)
    kept, shifted = np.empty_like(pixels[0]), np.empty_like(pixels[0])
    same = np.empty(kept.shape, np.bool_)
    for t in range(1, len(rows)):
        # The three older frames of this stack against the three newer ones of the stack before.
        np.bitwise_and(pixels[t], 0x00FFFFFF, out=kept)
        np.right_shift(pixels[t - 1], 8, out=shifted)
        np.equal(kept, shifted, out=same)
        follows[t] = same.all(axis=(1, 2))
    return {"newest": rows[follows][..., -1].copy(), "whole": rows[~follows], "follows": follows}


def unpack_stacks(packed: Mapping[str, Any]) -> NDArray:
    """The rows that `pack_stacks` was given, [steps, num_envs, *obs]."""
    whole = np.asarray(packed["whole"])
    if "follows" not in packed:
        return whole
    follows = np.asarray(packed["follows"])
    rows = np.empty((*follows.shape, *whole.shape[1:]), np.uint8)
    rows[~follows] = whole
    rows[follows, ..., -1] = packed["newest"]
    for t in range(1, len(rows)):
        rows[t, follows[t], ..., :-1] = rows[t - 1, follows[t], ..., 1:]
    return rows
