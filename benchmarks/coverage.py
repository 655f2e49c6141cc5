"""Simulate how often 95 % intervals of few seeds contain the true value: `python -m benchmarks.coverage`.

Prints the tables of docs/explanation/statistics.md. Each number is from 1,000 to 4,000 samples of returns, so
that its standard error is about 1 % at most. It takes about two minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.analysis.intervals import STATISTICS, aggregates, probability_of_improvement, statistic_of

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]

SEEDS = (3, 4, 5, 8, 16)
SAMPLES = 4_000
PAIR_SAMPLES = 1_000
RESAMPLES = 1_000
POPULATION = 1_000_000
"""Number of returns from which the true value is computed."""
SHIFT = 0.7
"""Amount by which returns of the better of two groups are higher."""


def two_humped(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw returns of which 70 % are near 1 and 30 %, seeds that did not learn, near 0."""
    return np.where(generator.random(shape) < 0.7, 1.0, 0.0) + 0.1 * generator.normal(size=shape)


RETURNS: dict[str, Draw] = {
    "normal": lambda generator, shape: generator.normal(size=shape),
    "skewed": lambda generator, shape: -generator.exponential(size=shape),
    "two-humped": two_humped,
}
"""Distributions of returns: skewed is exponential, with most seeds near a ceiling and a tail below it."""


def resampled(samples: Array, statistic: str, generator: np.random.Generator) -> Array:
    """Return the percentile bootstrap interval of each sample. samples: [samples, seeds]. [samples, 2]"""
    seeds = samples.shape[1]
    draws = samples[:, generator.integers(seeds, size=(RESAMPLES, seeds))]
    return np.quantile(STATISTICS[statistic]([draws]), [0.025, 0.975], axis=1).T


def chosen(samples: Array, statistic: str) -> Array:
    """Return the interval of each sample that labrl shows. [samples, 2]"""
    return np.array([aggregates(sample)[statistic][1:] for sample in samples], dtype=np.float64)


def coverage(ends: Array, true: float) -> float:
    """Return the fraction of intervals that contain the true value. ends: [samples, 2]"""
    return float(((ends[:, 0] <= true) & (true <= ends[:, 1])).mean())


def intervals_of(
    draw: Draw, seeds: int, generator: np.random.Generator, samples: int = SAMPLES
) -> list[float]:
    """Return the coverage of labrl's interval and of the bootstrap of mean and IQM, and labrl's width divided
    by that of the bootstrap of the same statistic."""
    population = draw(generator, (POPULATION,))
    trues = {"mean": float(population.mean()), "iqm": float(STATISTICS["iqm"]([population]))}
    drawn = draw(generator, (samples, seeds))
    parts = np.array_split(drawn, 40)
    bootstrap = {name: np.concatenate([resampled(part, name, generator) for part in parts]) for name in trues}
    shown = statistic_of(seeds)
    own = chosen(drawn[:PAIR_SAMPLES] if shown == "iqm" else drawn, shown)
    widths = [float(np.median(ends[:, 1] - ends[:, 0])) for ends in (own, bootstrap[shown])]
    covered = [coverage(bootstrap[name], true) for name, true in trues.items()]
    return [coverage(own, trues[shown]), *covered, widths[0] / widths[1]]


def improvements_of(draw: Draw, seeds: int, generator: np.random.Generator) -> list[float]:
    """Return the coverage of labrl's interval of a probability of improvement, and of the bootstrap."""
    true = float((draw(generator, (POPULATION,)) + SHIFT > draw(generator, (POPULATION,))).mean())
    x, y = draw(generator, (PAIR_SAMPLES, seeds)) + SHIFT, draw(generator, (PAIR_SAMPLES, seeds))
    own = [probability_of_improvement(*pair)[1:] for pair in zip(x, y, strict=True)]
    ends = []
    for one, other in zip(x, y, strict=True):
        beats = (one[:, None] > other).astype(np.float64)
        rows, columns = (generator.integers(seeds, size=(RESAMPLES, seeds)) for _ in range(2))
        counts = [np.array([np.bincount(row, minlength=seeds) for row in each]) for each in (rows, columns)]
        chances = np.einsum("ri,ij,rj->r", counts[0], beats, counts[1]) / seeds**2
        ends.append(np.quantile(chances, [0.025, 0.975]))
    return [coverage(np.array(own, dtype=np.float64), true), coverage(np.array(ends), true)]


def table(title: Sequence[str], measure: Callable[..., list[float]]) -> str:
    """Return a table in Markdown with a line for each distribution and number of seeds."""
    head = ["returns", "seeds", *title]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for name, draw in RETURNS.items():
        for seeds in SEEDS:
            *shares, last = measure(draw, seeds, np.random.default_rng(seeds))
            texts: list[Any] = [f"{100 * share:.0f} %" for share in shares]
            texts.append(f"{100 * last:.0f} %" if measure is improvements_of else f"{last:.1f}")
            lines.append([name, str(seeds), *texts])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Print both tables."""
    print(table(["labrl's interval", "bootstrap of the mean", "bootstrap of the IQM", "width"], intervals_of))
    print()
    print(table(["labrl's interval", "bootstrap"], improvements_of))


if __name__ == "__main__":
    main()
