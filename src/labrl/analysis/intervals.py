"""Intervals and comparisons for small numbers of runs (Agarwal et al., 2021, arXiv:2108.13264), as pure
functions.

`scores` are the scores of the runs in each task: an array [runs, tasks], or [runs] for a single task; or a
list with one array [runs] for each task, with any number of runs. One environment is one task.

With RUNS_FOR_IQM runs or more, intervals come from the stratified percentile bootstrap: runs are resampled
within each task, but tasks are not. The seed of the resampling is fixed, so equal scores always give equal
intervals. With fewer runs, the bootstrap gives intervals that are far too narrow
(docs/explanation/statistics.md has a simulation), so the mean gets a Student's t interval and a probability
of improvement gets a score interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labrl.analysis.formats import BOOTSTRAP, RUNS_FOR_IQM

Array = NDArray[np.float64]
Scores = Array | Sequence[ArrayLike]

CONFIDENCE = 0.95
RUNS_FOR_INTERVAL = 3
"""Minimum number of runs of a task for an interval. The interval of two runs would be 25 standard errors
wide."""
FEWEST_FOR_BEST = 4
"""Minimum number of runs of both sides for calling one of them better.

For two groups of three runs, chance alone ranks all runs of a given group first in 5 % of all cases."""
SCORE_METHOD = "Newcombe's score interval"
PAIR_METHODS = f"{SCORE_METHOD} for fewer than 10 seeds and for probabilities of 0 and 1, else {BOOTSTRAP}"
"""Text on the methods of the intervals of probabilities of improvement."""
PAIR_MEANING = (
    "the probability that a seed of one group has a higher final return than a seed of the other, above 0.5 "
    f"if it is better; sure only if the whole interval is, with at least {FEWEST_FOR_BEST} seeds of both "
    "(docs/explanation/statistics.md#comparisons)"
)
"""Text on probabilities of improvement, for tables."""
MAX_POINTS = 200
"""Maximum number of points of a common grid, which is more than a figure can show."""
REPLICATES = 10_000
"""Number of bootstrap replicates for a single number. With so many, the ends of its interval vary by about 1
% of the interval's width."""
PAIR_REPLICATES = 2_000
"""Number of bootstrap replicates for a probability of improvement."""
CURVE_REPLICATES = 1_000
"""Number of bootstrap replicates for each point of a curve."""
MOST_DRAWN = 500
"""Maximum number of values of a curve whose replicates are in memory at the same time (4 MB)."""
_SEED = 20_210_826
_T = (0.0, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)
"""The 97.5 % quantiles of Student's t distribution, by the degrees of freedom, up to those of nine runs."""


class Estimate(NamedTuple):
    """A number and its 95 % interval."""

    value: float
    low: float | None
    """Lower end of the interval; None if there are too few runs for an interval."""
    high: float | None


def aggregates(scores: Scores, target: float | None = None) -> dict[str, Estimate]:
    """Return `iqm`, `mean`, `median` and, if there is a `target`, `optimality_gap`, each with its interval.

    With RUNS_FOR_IQM runs or more in all tasks together, all intervals come from the same resamples. With
    fewer runs, only the means, `mean` and `optimality_gap`, have intervals.

    `mean` and `median` are those of the tasks' means over runs, or of the runs if there is a single task.
    `iqm` is the mean of the runs of all tasks without the lowest and the highest quarter, each rounded down
    to a whole number of runs. `optimality_gap` is the mean amount by which scores are below `target`; scores
    above `target` count as equal to it.
    """
    tasks, functions = _tasks(scores), dict(STATISTICS)
    of_means = {"mean": tasks}
    if target is not None:
        functions["optimality_gap"] = lambda tasks: target - _mean([np.minimum(one, target) for one in tasks])
        of_means["optimality_gap"] = [np.minimum(one, target) for one in tasks]
    found = {name: Estimate(float(function(tasks)), None, None) for name, function in functions.items()}
    if _few(tasks):
        for name, values in of_means.items():
            if (half := _student(values)) is not None:
                value = found[name].value
                found[name] = Estimate(value, value - half, value + half)
    elif _enough(tasks):
        draws = _draw(tasks, REPLICATES, np.random.default_rng(_SEED))
        for name, function in functions.items():
            found[name] = _estimate(found[name].value, function(draws))
    return found


def probability_of_improvement(x: Scores, y: Scores) -> Estimate:
    """Return P(X > Y), the probability that a run of x beats a run of y, averaged over tasks, with ties
    counted half (eq. 2).

    This is the Mann-Whitney U statistic divided by the number of pairs. The interval is a score interval if
    there are fewer than RUNS_FOR_IQM runs, or if all pairs agree, because resampling would then change
    nothing. Raises ValueError if x and y have different numbers of tasks.
    """
    of_x, of_y = _tasks(x), _tasks(y)
    if len(of_x) != len(of_y):
        raise ValueError(f"x has {len(of_x)} tasks, y has {len(of_y)}: both must have the same tasks")
    value = float(_improvement(of_x, of_y))
    if not (_enough(of_x) and _enough(of_y)):
        return Estimate(value, None, None)
    if value in (0.0, 1.0) or _few(of_x) or _few(of_y):
        return Estimate(value, *_score_interval(value, *(min(map(len, tasks)) for tasks in (of_x, of_y))))
    generator = np.random.default_rng(_SEED)
    return _estimate(
        value, _improvement(*(_draw(tasks, PAIR_REPLICATES, generator) for tasks in (of_x, of_y)))
    )


def is_better(improvement: Estimate | None, *numbers_of_runs: int) -> bool:
    """Return whether the runs decide that x is better than y, that is, whether the interval of P(X > Y) is
    above one half and both have at least FEWEST_FOR_BEST runs.

    improvement: result of `probability_of_improvement`; None: unknown. numbers_of_runs: number of runs of x
    and of y.
    """
    sure = improvement is not None and improvement.low is not None and improvement.low > 0.5
    return sure and min(numbers_of_runs) >= FEWEST_FOR_BEST


def _score_interval(value: float, m: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a P(X > Y) whose estimate from all pairs of m and n runs is `value`.

    This is the score interval of R. G. Newcombe, Statistics in Medicine 25 (2006), method 5.
    """
    p = np.linspace(0, 1, 10_001)
    variance = p * (1 - p) * (1 + ((m + n) / 2 - 1) * ((1 - p) / (2 - p) + p / (1 + p))) / (m * n)
    inside = p[np.abs(value - p) <= 1.959964 * np.sqrt(variance) + 1e-12]
    return float(inside.min()), float(inside.max())


def statistic_of(number_of_runs: int) -> str:
    """Return the name of the statistic that is used for `number_of_runs` runs: `iqm` for RUNS_FOR_IQM or
    more, otherwise `mean`."""
    return "iqm" if number_of_runs >= RUNS_FOR_IQM else "mean"


def score_method(value: float, *numbers_of_runs: int) -> str:
    """Return the name of the interval method for a probability of improvement of `value`."""
    return SCORE_METHOD if value in (0.0, 1.0) or min(numbers_of_runs) < RUNS_FOR_IQM else BOOTSTRAP


def performance_profile(scores: Scores, thresholds: ArrayLike) -> tuple[Array, Array | None, Array | None]:
    """Return the fraction of runs whose score is above each threshold, averaged over tasks, and its interval
    (eq. 3).

    thresholds: [points]. Returns the fraction and the lower and upper ends of its interval, each [points];
    the ends are None for fewer than RUNS_FOR_IQM runs.
    """
    tau = np.asarray(thresholds, dtype=np.float64)
    tasks = _tasks(scores)
    # Whether each run is above each threshold: [tasks] of [runs, points].
    above = [(runs[:, None] > tau).astype(np.float64) for runs in tasks]
    value = np.mean([runs.mean(axis=0) for runs in above], axis=0)
    if _few(tasks) or not _enough(tasks):
        return value, None, None
    generator = np.random.default_rng(_SEED)
    total = np.zeros((CURVE_REPLICATES, len(tau)))
    for runs in above:
        # The number of times that each run was drawn, relative to the number of runs.
        counts = generator.multinomial(len(runs), np.full(len(runs), 1 / len(runs)), size=CURVE_REPLICATES)
        total += counts @ runs / len(runs)
    low, high = _ends(total / len(above))
    return value, low, high


@dataclass(frozen=True)
class Band:
    """A curve over several runs. All arrays are [points], with nan where there is no run or no interval."""

    value: Array
    low: Array
    high: Array
    count: NDArray[np.int64]
    """Number of runs that have a value at each point."""


def curve(values: ArrayLike, statistic: str = "iqm", intervals: bool = True) -> Band:
    """Return the statistic over runs at each point, with its interval. The bootstrap resamples complete runs.

    Points with fewer than RUNS_FOR_IQM runs have a Student's t interval if the statistic is the mean, and
    otherwise no interval. values: [runs, points], with nan where a run has no value, before its first row and
    after its last; statistic: `iqm`, `mean` or `median`; intervals: whether to compute intervals; a call
    without them takes a hundredth of the time.
    """
    matrix = np.asarray(values, dtype=np.float64)
    function = STATISTICS[statistic]
    there = np.isfinite(matrix)
    value, low, high = (np.full(matrix.shape[1], np.nan) for _ in range(3))
    band = Band(value, low, high, count=there.sum(axis=0))
    for runs in np.unique(there, axis=1).T:  # points at which the same runs have values
        points = (there == runs[:, None]).all(axis=0)
        n = int(runs.sum())
        if n == 0:
            continue
        part = matrix[np.ix_(runs, points)].T  # [points, runs]
        band.value[points] = function([part])
        if not intervals:
            continue
        if RUNS_FOR_INTERVAL <= n < RUNS_FOR_IQM and statistic == "mean":
            half = _T[n - 1] * part.std(axis=1, ddof=1) / np.sqrt(n)
            band.low[points], band.high[points] = band.value[points] - half, band.value[points] + half
        elif n >= max(RUNS_FOR_IQM, 2):
            draws = np.random.default_rng(_SEED).integers(n, size=(CURVE_REPLICATES, n))
            # Some points at a time: all at once would take a gigabyte for fifty runs.
            parts = np.array_split(part, max(1, part.size // MOST_DRAWN))
            ends = [_ends(function([np.take(runs_at, draws, axis=1)]).T) for runs_at in parts]
            band.low[points], band.high[points] = np.concatenate(ends, axis=1)
    return band


Statistic = Callable[[Sequence[Array]], Array]
"""Function from one array [..., runs] for each task to the statistic over all runs, [...]."""


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


STATISTICS: dict[str, Statistic] = {"iqm": _iqm, "mean": _mean, "median": _median}


def _improvement(x: Sequence[Array], y: Sequence[Array]) -> Array:
    shares = [
        (np.sign(of_x[..., :, None] - of_y[..., None, :]).mean(axis=(-2, -1)) + 1) / 2
        for of_x, of_y in zip(x, y, strict=True)
    ]
    return np.mean(shares, axis=0)


def _tasks(scores: Scores) -> list[Array]:
    """Return the runs of each task. Raises ValueError for a task without runs and for scores that are not
    finite."""
    if isinstance(scores, np.ndarray):
        tasks = list(np.atleast_2d(scores.astype(np.float64).T))
    else:
        tasks = [np.asarray(runs, dtype=np.float64).ravel() for runs in scores]
    if not tasks or not all(runs.size and np.isfinite(runs).all() for runs in tasks):
        raise ValueError("scores: every task needs at least one run, and every score must be finite")
    return tasks


def _few(tasks: Sequence[Array]) -> bool:
    """Return whether all tasks together have too few runs for a bootstrap."""
    return sum(map(len, tasks)) < RUNS_FOR_IQM


def _student(tasks: Sequence[Array]) -> float | None:
    """Return half the width of the t interval of the mean over tasks, with Welch's degrees of freedom.

    None if a task has a single run, or there are fewer than two degrees of freedom.
    """
    if min(map(len, tasks)) < 2:
        return None
    parts = np.array([runs.var(ddof=1) / len(runs) for runs in tasks])
    if not parts.any():
        return 0.0 if max(map(len, tasks)) >= RUNS_FOR_INTERVAL else None
    freedom = int(parts.sum() ** 2 / sum(parts**2 / [len(runs) - 1 for runs in tasks]) + 1e-9)
    return None if freedom < 2 else float(_T[freedom] * np.sqrt(parts.sum()) / len(tasks))


def _enough(tasks: Sequence[Array]) -> bool:
    """Return whether any task has several runs, so that resampling can change the statistic."""
    return max(len(runs) for runs in tasks) > 1


def _draw(tasks: Sequence[Array], replicates: int, generator: np.random.Generator) -> list[Array]:
    """Resample the runs of each task with replacement. [tasks] of [replicates, runs]"""
    return [runs[generator.integers(len(runs), size=(replicates, len(runs)))] for runs in tasks]


def _ends(replicates: Array) -> tuple[Array, Array]:
    low, high = np.quantile(replicates, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return low, high


def _estimate(value: float, replicates: Array) -> Estimate:
    low, high = _ends(replicates)
    return Estimate(value, float(low), float(high))


def common_grid(ticks: Sequence[Array], max_points: int = MAX_POINTS) -> Array:
    """Return the ticks at which curves of several sessions are compared, in increasing order. [points]

    ticks: frames or seconds of each session's rows, increasing. The grid contains each tick at which a
    session has a row, without duplicates. If there are more than `max_points` ticks, only evenly spaced ones
    are kept, including the first and the last.
    """
    places = np.unique(np.concatenate([np.empty(0), *ticks]))
    if len(places) <= max_points:
        return places
    return places[np.linspace(0, len(places) - 1, max_points).round().astype(int)]


def interpolate_on(grid: Array, ticks: Array, values: Array) -> Array:
    """Interpolate one session's values linearly on the grid, with nan before its first row and after its
    last.

    ticks, values: [rows]; rows whose value is not finite are ignored. Returns [points].
    """
    there = np.isfinite(values)
    if not there.any():
        return np.full(len(grid), np.nan)
    return np.interp(grid, ticks[there], values[there], left=np.nan, right=np.nan)


def align_curves(ticks: Sequence[Array], values: Sequence[Array]) -> tuple[Array, Array]:
    """Return the common grid of all sessions, [points], and their values on it, [sessions, points]."""
    grid = common_grid(ticks)
    rows = [interpolate_on(grid, own, value) for own, value in zip(ticks, values, strict=True)]
    return grid, np.array(rows).reshape(len(rows), len(grid))
