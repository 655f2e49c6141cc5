"""Tests of the sum tree of prioritized replay against cumulative sums."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from labrl.memory.prioritized import WIDTH, SumTree

SIZES = st.one_of(st.integers(1, 40), st.integers(WIDTH**2 - 2, WIDTH**2 + 2), st.integers(1, 5000))


def numbers(size: int, seed: int, zeros: float = 0.3) -> np.ndarray:
    """Return numbers of very different magnitudes, many of them 0. [size]"""
    rng = np.random.default_rng(seed)
    values = rng.random(size) ** 8 * 10.0 ** rng.integers(-6, 4, size)
    values[rng.random(size) < zeros] = 0
    return values


@settings(max_examples=60, deadline=None)
@given(size=SIZES, seed=st.integers(0, 10_000))
def test_prefix_is_found_where_the_cumulative_sum_exceeds_it(size: int, seed: int) -> None:
    # Sums of quarters are exact in any order, so that each prefix has exactly one right place.
    values = np.random.default_rng(seed).integers(0, 5, size) / 4
    values[seed % size] = 1
    tree = SumTree(size)
    tree.set(np.arange(size), values)
    sums = values.cumsum()
    assert tree.total == sums[-1]
    prefix = np.arange(0, sums[-1], 0.25)
    np.testing.assert_array_equal(tree.find(prefix), np.searchsorted(sums, prefix, side="right"))


@settings(max_examples=60, deadline=None)
@given(size=SIZES, seed=st.integers(0, 10_000))
def test_tree_depends_only_on_its_numbers_and_not_on_their_history(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, changed, loaded = numbers(size, seed), SumTree(size), SumTree(size)
    for _ in range(5):
        place = rng.integers(0, size, 20)
        changed.set(place, rng.random(20))
    for part in np.array_split(rng.permutation(size), 3):
        changed.set(part, values[part])
    loaded.fill(values)
    np.testing.assert_array_equal(changed.values, values)
    assert changed.total == loaded.total
    prefix = rng.random(50) * loaded.total
    np.testing.assert_array_equal(changed.find(prefix), loaded.find(prefix))


@settings(max_examples=60, deadline=None)
@given(size=SIZES, seed=st.integers(0, 10_000))
def test_zero_is_never_found(size: int, seed: int) -> None:
    values = numbers(size, seed, zeros=0.9)
    values[seed % size] = 1e-300
    tree = SumTree(size)
    tree.fill(values)
    edges = np.append(values.cumsum(), [0.0, tree.total, tree.total * 2])
    assert (values[tree.find(np.append(edges, np.nextafter(edges, 0)))] > 0).all()
