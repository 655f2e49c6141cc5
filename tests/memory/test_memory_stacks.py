"""Tests of packing observations: it loses nothing, and stores each image of stacked observations once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labrl.memory.rollout import pack_stacks, unpack_stacks


def stacks(steps: int, envs: int, begins: np.ndarray, seed: int) -> np.ndarray:
    """Return stacks of 4 images as an environment gives them, [steps, envs, 5, 6, 4].

    begins: steps that begin an episode, [steps, envs].
    """
    rng = np.random.default_rng(seed)
    rows = np.zeros((steps, envs, 5, 6, 4), np.uint8)
    for t in range(steps):
        if t:
            rows[t, ..., :-1] = rows[t - 1, ..., 1:]
        rows[t, begins[t]] = 0
        rows[t, ..., -1] = rng.integers(0, 256, (envs, 5, 6))
    return rows


@settings(max_examples=50, deadline=None)
@given(steps=st.integers(0, 12), envs=st.integers(1, 3), seed=st.integers(0, 1000))
def test_stacks_are_unpacked_unchanged(steps: int, envs: int, seed: int) -> None:
    begins = np.random.default_rng(seed).random((steps, envs)) < 0.3
    rows = stacks(steps, envs, begins, seed)
    assert np.array_equal(unpack_stacks(pack_stacks(rows)), rows)


@pytest.mark.parametrize(
    "shape", [(7, 2, 5, 6, 4), (7, 2, 5, 6, 3), (7, 2, 3), (1, 1, 5, 6, 4), (0, 2, 5, 6, 4)]
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_arrays_that_are_not_stacks_are_unpacked_unchanged(shape: tuple[int, ...], dtype: type) -> None:
    rows = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    back = unpack_stacks(pack_stacks(rows))
    assert np.array_equal(back, rows)
    assert back.dtype == rows.dtype


def test_images_of_stacks_are_copied_once() -> None:
    rows = stacks(100, 2, np.zeros((100, 2), bool), 0)
    packed, before = pack_stacks(rows), rows.copy()
    assert sum(array.nbytes for array in packed.values()) < 0.3 * rows.nbytes
    rows[:] = 0
    assert np.array_equal(unpack_stacks(packed), before)
