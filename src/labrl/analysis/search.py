"""What a search found out about its hyperparameters, from `experiment.json`: pure functions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

State = Literal["complete", "pruned", "fail", "running", "waiting"]

FEWEST_FOR_IMPORTANCE = 10
"""Trials with a value, without which nobody can tell."""

MOST_FOR_TOP = 8
"""Trials that count as the best ones where that is more than a tenth of all."""


@dataclass(frozen=True)
class Parameter:
    """One searched key."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[Any, ...] = ()
    """Not empty: the key has no scale, and `low` and `high` mean nothing."""

    @classmethod
    def of(cls, key: str, distribution: Mapping[str, Any]) -> Parameter:
        """From what `experiment.json` has of its distribution."""
        content = distribution["attributes"]
        if "choices" in content:
            return cls(key, choices=tuple(content["choices"]))
        return cls(key, float(content["low"]), float(content["high"]), bool(content.get("log")))

    def place(self, value: Any) -> float:
        """Where `value` lies: the number, its logarithm to base 10 on such a scale, the index of a choice."""
        if self.choices:
            return float(self.choices.index(value)) if value in self.choices else math.nan
        return math.log10(value) if self.log else float(value)

    def share(self, value: Any) -> float:
        """The place as a share of the range, 0 to 1; one half where there is but one value."""
        ends = (
            (0.0, len(self.choices) - 1.0) if self.choices else (self.place(self.low), self.place(self.high))
        )
        return (self.place(value) - ends[0]) / (ends[1] - ends[0]) if ends[0] != ends[1] else 0.5


@dataclass(frozen=True)
class SearchTrial:
    """One trial of a search."""

    number: int
    params: dict[str, Any]
    values: tuple[float, ...] | None
    """By objective; of a pruned one what it had come to; None where it failed or runs."""
    state: State
    intermediate: dict[int, float] = field(default_factory=dict)
    """Value by frame."""
    error: str | None = None


@dataclass(frozen=True)
class SearchResult:
    """A search as it stands."""

    objective: list[str]
    maximize: list[bool]
    parameters: list[Parameter]
    trials: list[SearchTrial]
    facts: dict[str, Any]
    """What else `experiment.json` says under `search`: sampler, pruner, storage, confirm, best."""

    @property
    def ended(self) -> list[SearchTrial]:
        """Trials that played their whole budget."""
        return [trial for trial in self.trials if trial.state == "complete" and trial.values]

    @property
    def valued(self) -> list[SearchTrial]:
        """Those and the pruned ones."""
        return [trial for trial in self.trials if trial.state in ("complete", "pruned") and trial.values]

    def ranked(self) -> list[SearchTrial]:
        """Complete trials, the best first objective first."""
        sign = -1 if self.maximize[0] else 1
        return sorted(self.ended, key=lambda trial: (sign * (trial.values or (0.0,))[0], trial.number))


def read_search(info: Mapping[str, Any]) -> SearchResult | None:
    """The search that `info`, the content of `experiment.json`, tells of; None where it is none."""
    facts = info.get("search")
    if info.get("kind") != "search" or not isinstance(facts, Mapping) or "space" not in facts:
        return None
    trials = [
        SearchTrial(
            number=entry["number"],
            params=dict(entry.get("params") or {}),
            values=tuple(entry["values"]) if entry.get("values") else None,
            state=entry.get("state", "waiting"),
            intermediate={int(frame): float(value) for frame, value in entry.get("intermediate") or ()},
            error=entry.get("error"),
        )
        for entry in info.get("trials", [])
    ]
    return SearchResult(
        objective=list(facts["objective"]),
        maximize=[direction == "maximize" for direction in facts["directions"]],
        parameters=[Parameter.of(key, distribution) for key, distribution in facts["space"].items()],
        trials=trials,
        facts=dict(facts),
    )


def best_so_far(values: Sequence[float], maximize: bool) -> NDArray[np.float64]:
    """For each value the best up to and with it. values: [trials]; nan counts for nothing."""
    array = np.array(values, dtype=np.float64)
    accumulate = np.fmax.accumulate if maximize else np.fmin.accumulate
    return accumulate(array) if array.size else array


def importances(search: SearchResult) -> dict[str, float]:
    """Share of each key in how much the first objective varies (PED-ANOVA, Watanabe et al., 2023).

    A pruned trial counts with the value that it had come to. Sums to 1, the largest first; empty where
    there are too few trials to tell.
    """
    trials = [trial for trial in search.valued if set(trial.params) >= {one.key for one in search.parameters}]
    if len(trials) < FEWEST_FOR_IMPORTANCE or len({trial.values for trial in trials}) < 2:
        return {}
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {
        key: optuna.distributions.json_to_distribution(json.dumps(one))
        for key, one in search.facts["space"].items()
    }
    study = optuna.create_study(direction="maximize" if search.maximize[0] else "minimize")
    study.add_trials(
        optuna.trial.create_trial(
            params={key: trial.params[key] for key in space}, distributions=space, value=trial.values[0]
        )
        for trial in trials
        if trial.values is not None
    )
    try:
        # what sets the best apart, of which there have to be some
        top = min(0.5, max(0.1, MOST_FOR_TOP / len(trials)))
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=top)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    except (RuntimeError, ValueError):
        return {}
    known = {key: float(share) for key, share in found.items() if math.isfinite(share)}
    return known if sum(known.values()) > 0 else {}


def scatter(search: SearchResult, parameter: Parameter, state: State) -> tuple[list[float], list[float]]:
    """Places of `parameter` and values of the first objective, of all trials that ended in `state`."""
    chosen = [
        trial
        for trial in search.valued
        if trial.state == state and parameter.key in trial.params and trial.values
    ]
    return [parameter.place(trial.params[parameter.key]) for trial in chosen], [
        trial.values[0] for trial in chosen if trial.values
    ]
