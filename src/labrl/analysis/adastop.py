"""Compare groups in stages of seeds until every pair is decided, by AdaStop (arXiv:2306.10882).

A group-sequential permutation test. After each stage, the sum of the differences between two groups over all
stages so far is compared with the sums that result if the returns of each stage are exchanged at random
between the groups. The probability that any pair without a difference is called different is at most `alpha`,
over all pairs and all stages together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

ALPHA = 0.05
"""Maximum probability of at least one false decision, over all pairs and all stages."""
DRAWS = 10_080
"""Number of random exchanges: 40 times the 252 possible exchanges of a stage of five seeds."""
_SEED = 20_230_619


@dataclass(frozen=True)
class Stages:
    """Plan of a comparison in stages of seeds. It must be fixed before the first seed is run."""

    size: int = 5
    """Number of seeds that each stage adds to each group. With four seeds, the smallest possible p value for
    two groups is 0.029."""
    most: int = 30
    """Largest number of seeds of a group, a multiple of `size`."""

    @property
    def count(self) -> int:
        """Largest number of stages."""
        return self.most // self.size

    @property
    def can_decide(self) -> bool:
        """Whether there are enough possible exchanges to decide a pair whose returns differ as much as
        possible. Two of the exchanges yield this largest difference."""
        return comb(2 * self.size, self.size) ** self.count * ALPHA >= 2


class Pair(NamedTuple):
    """State of the comparison of two groups."""

    x: str
    y: str
    better: str | None
    """The group with higher returns; None if the pair is undecided."""
    seeds: int
    """Number of seeds in each of the two groups when the pair was decided; for an undecided pair, the number
    available so far."""


@dataclass(frozen=True)
class Comparison:
    """State of the comparisons of all pairs of groups."""

    pairs: list[Pair]
    stages: Stages

    @property
    def undecided(self) -> list[Pair]:
        """Undecided pairs whose groups have fewer than the maximum number of seeds."""
        return [pair for pair in self.pairs if pair.better is None and pair.seeds < self.stages.most]

    def next_stage(self) -> dict[str, int]:
        """Return, for each group of an undecided pair by its name, the total number of seeds that the next
        stage needs."""
        return {name: pair.seeds + self.stages.size for pair in self.undecided for name in (pair.x, pair.y)}


def compare(
    returns: Mapping[str, ArrayLike],
    stages: Stages = Stages(),
    alpha: float = ALPHA,
    draws: int = DRAWS,
) -> Comparison:
    """Decide the pairs of groups stage by stage, for as many stages as there are returns.

    returns: returns of each group by its name, one for each seed, in the order in which the seeds were run;
    returns beyond the last complete stage are not used. A stage is examined once every undecided pair has all
    returns of that stage. Raises ValueError for fewer than two groups.
    """
    if len(returns) < 2:
        raise ValueError("returns: at least two groups are needed")
    planned = stages.count
    blocks = {name: _in_stages(values, stages) for name, values in returns.items()}
    undecided = list(combinations(blocks, 2))
    exchanges = _exchanges(draws, planned, stages.size)
    sums = {(x, y): _sums(blocks[x], blocks[y], exchanges) for x, y in undecided}
    better: dict[tuple[str, str], Pair] = {}
    done = 0  # number of examined stages
    while undecided and done < min(sums[pair].shape[1] for pair in undecided):
        done += 1
        # The pair with the largest difference is decided first, and then leaves the family of compared pairs.
        while undecided:
            together = np.max([np.abs(sums[pair][:, :done]) for pair in undecided], axis=0)
            x, y = max(undecided, key=lambda pair: abs(sums[pair][0, done - 1]))
            if together[0, -1] <= _bound(together, alpha, planned):
                break
            better[x, y] = Pair(x, y, x if sums[x, y][0, done - 1] > 0 else y, done * stages.size)
            undecided.remove((x, y))
    pairs = [better.get((x, y), Pair(x, y, None, done * stages.size)) for x, y in combinations(blocks, 2)]
    return Comparison(pairs, stages)


def _in_stages(returns: ArrayLike, stages: Stages) -> Array:
    """Return the returns of the complete stages. [complete stages, stages.size]"""
    values = np.asarray(returns, dtype=np.float64)
    complete = min(len(values) // stages.size, stages.count)
    return values[: complete * stages.size].reshape(complete, stages.size)


def _exchanges(draws: int, planned: int, stage: int) -> NDArray[np.int8]:
    """Draw random exchanges of the returns of two groups in each stage: 1 for a return that counts for the
    first group, -1 for one that counts for the second. The first draw exchanges nothing.
    [draws, planned, 2 * stage]"""
    generator = np.random.default_rng(_SEED)
    nothing = np.repeat(np.array([1, -1], dtype=np.int8), stage)
    if comb(2 * stage, stage) > draws:
        signs = np.tile(nothing, (draws, planned, 1))
        signs[1:] = generator.permuted(signs[1:], axis=2)
        return signs
    # Use all exchanges of a stage equally often, so that the smallest p value is exact.
    every = np.full((comb(2 * stage, stage), 2 * stage), -1, dtype=np.int8)
    for row, first in zip(every, combinations(range(2 * stage), stage), strict=True):
        row[list(first)] = 1
    places = generator.permuted(np.tile(np.arange(draws) % len(every), (planned, 1)), axis=1)
    for place in places:
        identity = int(np.argmin(place))  # the first of `every` exchanges nothing
        place[0], place[identity] = place[identity], place[0]
    return every[places.T]


def _sums(x: Array, y: Array, exchanges: NDArray[np.int8]) -> Array:
    """Return, for each draw, the sum of the differences up to each stage that both groups have completed.
    [draws, stages]"""
    stages = min(len(x), len(y))
    values = np.concatenate([x[:stages], y[:stages]], axis=1)
    return np.cumsum(np.einsum("dsi,si->ds", exchanges[:, :stages], values), axis=1)


def _bound(sums: Array, alpha: float, planned: int) -> float:
    """Return the bound of the last stage. The bounds of all planned stages are such that at most a fraction
    `alpha` of all draws crosses any of them, and each stage uses an equal part of `alpha`. sums:
    [draws, stages]"""
    within = np.ones(len(sums), dtype=bool)
    bound = 0.0
    for stage, values in enumerate(sums.T, start=1):
        crossed = len(sums) - int(within.sum())
        allowed = int(len(sums) * alpha * stage / planned + 1e-9) - crossed
        bound = float(np.partition(values[within], -allowed - 1)[-allowed - 1])
        within &= values <= bound
    return bound
