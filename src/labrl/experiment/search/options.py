"""Options of a search: `search`, `search.pruner` and `hydra.sweeper`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from labrl.types import INFO, NonNegativeInt, PositiveInt, Probability, whole_number


def _measure(name: Any) -> Any:
    """Return `name` if it is a measure of a session or an `info` column. Raises PydanticCustomError
    otherwise."""
    if not isinstance(name, str):
        raise PydanticCustomError("type", "must be one measure, because a search has one objective")
    measures = ("final_return", "best_return", "auc", "wall")
    if name not in measures and not (name.startswith(INFO) and name != INFO):
        allowed = f"{', '.join(measures)}, or {INFO}<name> with a name in env.info_keys"
        raise PydanticCustomError("range", f"must be {allowed}")
    return name


Measure = Annotated[str, BeforeValidator(_measure)]
"""`final_return`, `best_return`, `auc`, `wall` or `info/<name>`"""
Direction = Literal["minimize", "maximize"]
"""Whether the smallest or the largest value of a measure is the best."""

TwoOrMore = Annotated[int, BeforeValidator(whole_number), Field(ge=2)]
"""An integer of at least 2."""

STARTUP = ((12, 5, 3), (50, 3, 2), (math.inf, 0, 1))
"""Triples of a number of trials, and the trials and evaluations that come before any pruning in a search of
fewer trials than this number.

In a small search, every trial matters, and the first trials have few others to be compared with. In a large
search, many trials run at the same time, and all of them would run to the end if pruning had to wait for the
first to finish."""


@dataclass(kw_only=True)
class NoPruner:
    """No pruning: every trial uses its complete budget."""

    kind: Literal["none"]
    """Name of the pruner."""


@dataclass(kw_only=True)
class MedianPruner:
    """Optuna's `MedianPruner`: stop a trial whose best value so far is worse than the median of the finished
    trials at the same frame."""

    kind: Literal["median"]
    """Name of the pruner."""
    n_startup_trials: NonNegativeInt | None
    """Number of trials that must have finished before any trial is stopped, >= 0; null: 5 in a search of
    fewer than 12 trials, 3 in a search of fewer than 50 trials, otherwise 0."""
    n_warmup_steps: NonNegativeInt | None
    """Number of frames before which no trial is stopped, >= 0; null: three evaluations in a search of fewer
    than 12 trials, two in a search of fewer than 50 trials, otherwise one."""


@dataclass(kw_only=True)
class HalvingPruner:
    """Optuna's `SuccessiveHalvingPruner` (`asha`), asynchronous successive halving (Li et al., 2020,
    arXiv:1810.05934), or its `HyperbandPruner`, several successive halvings that differ in their minimum
    resource (Li et al., 2018, arXiv:1603.06560).

    A trial that reaches `min_resource * reduction_factor ** k` frames continues if it is among the best
    fraction 1 / reduction_factor of the trials that have reached that frame so far.
    """

    kind: Literal["asha", "hyperband"]
    """Name of the pruner."""
    n_startup_trials: NonNegativeInt | None
    """Number of trials that must have finished before any trial is stopped, >= 0; null: 5 in a search of
    fewer than 12 trials, 3 in a search of fewer than 50 trials, otherwise 0."""
    min_resource: PositiveInt | None
    """Number of frames before which no trial is stopped, >= 1; for hyperband, in the bracket that stops
    trials earliest. null: a ninth of the budget, but at least three evaluations in a search of fewer than 12
    trials, and two in a search of fewer than 50."""
    reduction_factor: TwoOrMore
    """Factor by which each rung reduces the number of trials, >= 2; for hyperband also the ratio of the
    brackets' minimum resources."""


Pruner = Annotated[NoPruner | MedianPruner | HalvingPruner, Field(discriminator="kind")]


def start_of(pruner: Pruner, total: int, budget: int, every: int) -> tuple[int, int]:
    """Return the number of finished trials and the frame of a trial before which no trial is stopped.

    total: number of trials of the search; budget: budget of a session in frames; every: frames between
    evaluations.
    """
    if isinstance(pruner, NoPruner):
        return total, budget
    _, trials, rows = next(line for line in STARTUP if total < line[0])
    fitted, own = min(rows * every, (budget - 1) // every * every), pruner.n_startup_trials
    if isinstance(pruner, MedianPruner):
        first = fitted if pruner.n_warmup_steps is None else pruner.n_warmup_steps
    else:
        first = pruner.min_resource or max(1, budget // 9, fitted)
    return trials if own is None else own, first


@dataclass(kw_only=True)
class Confirm:
    """Options of the confirmation, which runs the best trials again on fresh seeds."""

    top: PositiveInt
    """Number of best trials to confirm, >= 1."""
    sessions: PositiveInt
    """Number of fresh seeds for each confirmed configuration, >= 1."""
    default: bool
    """Whether the configuration without any searched value also runs on the fresh seeds. If a group is
    searched, it has the first option."""


@dataclass(kw_only=True)
class SearchConfig:
    """Options of `hydra/sweeper=optuna`; a single trial ignores them."""

    space: dict[str, str]
    """Ranges in Hydra's sweep syntax, by key, such as `agent.lr: tag(log, interval(1e-5, 1e-2))`."""
    objective: Measure
    """Measure that the search optimizes: its mean over a trial's sessions."""
    pruner: Pruner
    """Optuna's pruner, which stops unpromising trials at their evaluation checkpoints."""
    confirm: Confirm | None
    """Confirmation of the best trials on fresh seeds; null: no confirmation."""
    max_failure_rate: Probability
    """Fraction of trials that may fail before the search ends, in [0, 1]."""
    retries: NonNegativeInt
    """Maximum number of times that a trial continues from its checkpoint after its process has died, >= 0."""


@dataclass(kw_only=True)
class Settings:
    """Settings of `hydra.sweeper`, with the names of hydra-optuna-sweeper."""

    sampler: dict[str, Any]
    """The `_target_` of an Optuna sampler, with its settings."""
    direction: Direction | None
    """Whether the objective is minimized or maximized; null: the usual direction of the measure."""
    storage: str | None
    """URL of the study's storage; null: an SQLite file in the experiment folder."""
    study_name: str | None
    """Name of the study, required with `storage`; null: `labrl`."""
    n_trials: PositiveInt
    """Total number of trials, over all machines and resumes, >= 1."""
    n_jobs: PositiveInt | None
    """Number of trials that run at the same time, >= 1; null: as many as there is room for."""
    max_failure_rate: Probability
    """Fraction of the trials that may fail, in [0, 1]."""
    params: dict[str, Any] | None
    """Further entries of `search.space`, by key."""
