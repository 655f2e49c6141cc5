"""How sure a comparison of few runs can be (Agarwal et al., 2021, arXiv:2108.13264): pure functions.

`scores` are the runs of each task: an array [runs, tasks], or [runs] of a single task; or a list of one
array of runs for each task, which may differ in length. One environment is one task. An interval is that
of the percentile bootstrap, stratified: runs are drawn anew within each task, tasks are not. The draws have a
seed of their own, so that the same scores always give the same interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Scores = Array | Sequence[ArrayLike]

CONFIDENCE = 0.95
METHOD = "stratified bootstrap"
"""Name of the method behind every interval here, for whoever shows one."""
REPLICATES = 10_000
"""Of the bootstrap of a number: the interval's ends then move by about a hundredth of its width."""
PAIR_REPLICATES = 2_000
"""Of the bootstrap of a probability of improvement."""
CURVE_REPLICATES = 1_000
"""Of the bootstrap of each point of a curve."""
_SEED = 20_210_826


class Estimate(NamedTuple):
    """A number and its 95 % interval."""

    value: float
    low: float | None
    """None where there is no interval: no task has two runs."""
    high: float | None


def mean(scores: Scores) -> float:
    """Mean over tasks of the mean over runs."""
    return float(_mean(_tasks(scores)))


def median(scores: Scores) -> float:
    """Median over tasks of the mean over runs; of a single task, of its runs."""
    return float(_median(_tasks(scores)))


def iqm(scores: Scores) -> float:
    """Interquartile mean: of all runs of all tasks together, without the lowest and highest quarter.

    A quarter is rounded down to whole runs: of fewer than four, none is left out.
    """
    return float(_iqm(_tasks(scores)))


def optimality_gap(scores: Scores, target: float = 1.0) -> float:
    """Mean amount by which scores miss `target`, those above it counted as met; normalized scores only."""
    return float(_gap(target)(_tasks(scores)))


def aggregates(scores: Scores, target: float | None = None) -> dict[str, Estimate]:
    """`iqm`, `mean`, `median` and, with a `target`, `optimality_gap`, with intervals from the same draws."""
    tasks = _tasks(scores)
    functions: dict[str, Statistic] = {"iqm": _iqm, "mean": _mean, "median": _median}
    if target is not None:
        functions["optimality_gap"] = _gap(target)
    draws = _draw(tasks, REPLICATES, np.random.default_rng(_SEED)) if _enough(tasks) else None
    return {
        name: _estimate(float(function(tasks)), None if draws is None else function(draws))
        for name, function in functions.items()
    }


def probability_of_improvement(x: Scores, y: Scores) -> Estimate:
    """P(X > Y), ties counted half, averaged over tasks: how likely a run of x beats one of y (eq. 2).

    The Mann-Whitney U statistic over the number of pairs. Raises ValueError if x and y differ in their number
    of tasks.
    """
    of_x, of_y = _tasks(x), _tasks(y)
    if len(of_x) != len(of_y):
        raise ValueError(f"x has {len(of_x)} tasks, y has {len(of_y)}: both must have the same tasks")
    value = float(_improvement(of_x, of_y))
    if not (_enough(of_x) and _enough(of_y)):
        return Estimate(value, None, None)
    generator = np.random.default_rng(_SEED)
    return _estimate(
        value, _improvement(*(_draw(tasks, PAIR_REPLICATES, generator) for tasks in (of_x, of_y)))
    )


def performance_profile(scores: Scores, thresholds: ArrayLike) -> tuple[Array, Array | None, Array | None]:
    """Share of runs whose score is above each threshold, averaged over tasks, and its interval (eq. 3).

    thresholds: [points]. Returns three arrays [points]; the ends are None where there is no interval.
    """
    tau = np.asarray(thresholds, dtype=np.float64)
    tasks = _tasks(scores)
    # of each run whether it is above: [tasks] of [runs, points]
    above = [(runs[:, None] > tau).astype(np.float64) for runs in tasks]
    value = np.mean([runs.mean(axis=0) for runs in above], axis=0)
    if not _enough(tasks):
        return value, None, None
    generator = np.random.default_rng(_SEED)
    total = np.zeros((CURVE_REPLICATES, len(tau)))
    for runs in above:
        # how often each run was drawn, over all runs, times what it says
        counts = generator.multinomial(len(runs), np.full(len(runs), 1 / len(runs)), size=CURVE_REPLICATES)
        total += counts @ runs / len(runs)
    low, high = _ends(total / len(above))
    return value, low, high


@dataclass(frozen=True)
class Band:
    """A curve over several runs. All are [points]; nan where no run, or no interval, is."""

    value: Array
    low: Array
    high: Array
    count: NDArray[np.int64]
    """Runs that have a value at the point."""


def curve(values: ArrayLike, statistic: str = "iqm") -> Band:
    """Point by point the statistic over runs, with the interval of a bootstrap of whole runs.

    values: [runs, points]; nan where a run has no value: before its first row and after its last.
    statistic: `iqm`, `mean` or `median`.
    """
    matrix = np.asarray(values, dtype=np.float64)
    function = {"iqm": _iqm, "mean": _mean, "median": _median}[statistic]
    there = np.isfinite(matrix)
    value, low, high = (np.full(matrix.shape[1], np.nan) for _ in range(3))
    band = Band(value, low, high, count=there.sum(axis=0))
    for runs in np.unique(there, axis=1).T:  # points where the same runs are there
        points = (there == runs[:, None]).all(axis=0)
        n = int(runs.sum())
        if n == 0:
            continue
        part = matrix[np.ix_(runs, points)].T  # [points, runs]
        band.value[points] = function([part])
        if n > 1:
            draws = np.random.default_rng(_SEED).integers(n, size=(CURVE_REPLICATES, n))
            # a point at a time: all at once would take a gigabyte for fifty runs
            ends = [_ends(function([runs_at[draws]])) for runs_at in part]
            band.low[points], band.high[points] = np.array(ends).T
    return band


Statistic = Callable[[Sequence[Array]], Array]
"""From the runs of each task, the last axis of an array [..., runs], to one number for each `...`."""


def _mean(tasks: Sequence[Array]) -> Array:
    return np.mean([runs.mean(axis=-1) for runs in tasks], axis=0)


def _median(tasks: Sequence[Array]) -> Array:
    if len(tasks) == 1:
        return np.median(tasks[0], axis=-1)
    return np.median([runs.mean(axis=-1) for runs in tasks], axis=0)


def _iqm(tasks: Sequence[Array]) -> Array:
    together = np.concatenate(tasks, axis=-1)
    n = together.shape[-1]
    cut = n // 4
    if cut:
        together = np.partition(together, (cut, n - cut - 1), axis=-1)[..., cut : n - cut]
    return together.mean(axis=-1)


def _gap(target: float) -> Statistic:
    return lambda tasks: target - _mean([np.minimum(runs, target) for runs in tasks])


def _improvement(x: Sequence[Array], y: Sequence[Array]) -> Array:
    shares = [
        (np.sign(of_x[..., :, None] - of_y[..., None, :]).mean(axis=(-2, -1)) + 1) / 2
        for of_x, of_y in zip(x, y, strict=True)
    ]
    return np.mean(shares, axis=0)


def _tasks(scores: Scores) -> list[Array]:
    """The runs of each task. Raises ValueError for a task without runs and for scores that are not finite."""
    if isinstance(scores, np.ndarray):
        tasks = list(np.atleast_2d(scores.astype(np.float64).T))
    else:
        tasks = [np.asarray(runs, dtype=np.float64).ravel() for runs in scores]
    if not tasks or not all(runs.size and np.isfinite(runs).all() for runs in tasks):
        raise ValueError("scores: every task needs at least one run, and every score must be finite")
    return tasks


def _enough(tasks: Sequence[Array]) -> bool:
    """Whether drawing runs anew tells anything."""
    return max(len(runs) for runs in tasks) > 1


def _draw(tasks: Sequence[Array], replicates: int, generator: np.random.Generator) -> list[Array]:
    """Runs of each task drawn anew with replacement, [tasks] of [replicates, runs]."""
    return [runs[generator.integers(len(runs), size=(replicates, len(runs)))] for runs in tasks]


def _ends(replicates: Array) -> tuple[Array, Array]:
    low, high = np.quantile(replicates, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return low, high


def _estimate(value: float, replicates: Array | None) -> Estimate:
    if replicates is None:
        return Estimate(value, None, None)
    low, high = _ends(replicates)
    return Estimate(value, float(low), float(high))
