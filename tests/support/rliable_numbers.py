"""Write rliable's estimates for a few arrays as reference values: `python tests/support/rliable_numbers.py`.

The values are recorded in a JSON file because rliable depends on pandas, SciPy, statsmodels and seaborn (310
MB and seven seconds of imports), and its release does not work with pandas 3 and arch 8. To record them
again, `pip install rliable==1.2.0 "arch<8" "pandas<3"` in an environment of its own; it takes a few minutes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

NUMBERS = Path(__file__).with_suffix(".json")
TAU = np.linspace(-1, 2, 13)


def arrays() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the scores [runs, tasks] of two algorithms on the same tasks, by name of the case."""
    shapes = {"one task": ((4, 1), (7, 1)), "many tasks": ((5, 8), (10, 8)), "three runs": ((3, 2), (3, 2))}
    found = {}
    for number, (name, (x, y)) in enumerate(shapes.items()):
        generator = np.random.default_rng(number)
        offset = generator.normal(size=x[1])
        found[name] = (offset + generator.normal(size=x), offset + 0.7 + 0.5 * generator.normal(size=y))
    found["ties"] = (np.round(found["many tasks"][0]), np.round(found["many tasks"][1]))
    return found


def ask(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Return rliable's estimates and intervals, computed with its defaults."""
    from rliable import library, metrics

    def aggregate(scores: np.ndarray) -> np.ndarray:
        functions = (
            metrics.aggregate_iqm,
            metrics.aggregate_mean,
            metrics.aggregate_median,
            metrics.aggregate_optimality_gap,
        )
        return np.array([function(scores) for function in functions])

    def improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.array([metrics.probability_of_improvement(x, y)])

    state = np.random.RandomState(0)
    points, ends = library.get_interval_estimates({"x": x}, aggregate, reps=50_000, random_state=state)
    names = ("iqm", "mean", "median", "optimality_gap")
    answers = {name: [points["x"][i], *ends["x"][:, i]] for i, name in enumerate(names)}
    points, ends = library.get_interval_estimates({"x": (x, y)}, improvement, reps=2_000, random_state=state)
    answers["probability_of_improvement"] = [points["x"][0], *ends["x"][:, 0]]
    profile, ends = library.create_performance_profile({"x": x}, TAU, reps=2_000)
    answers["performance_profile"] = [profile["x"], *ends["x"]]
    return {name: np.asarray(answer).tolist() for name, answer in answers.items()}


if __name__ == "__main__":
    numbers = {name: ask(x, y) for name, (x, y) in arrays().items()}
    NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n")
