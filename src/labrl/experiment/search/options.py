"""Options of a search: space, objective, pruner, confirmation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from labrl.types import NonNegativeInt, PositiveInt, Probability, whole_number

Measure = Literal["final_return", "best_return", "auc", "strength", "wall"]
"""Measure of a session's evaluation checkpoints; see docs/how-to/search.md."""


def _each_once(measures: list[Measure]) -> list[Measure]:
    if len(set(measures)) < len(measures):
        raise ValueError("must be a list with each measure once")
    return measures


Measures = Annotated[list[Measure], Field(min_length=1), AfterValidator(_each_once)]
"""A list of several measures, each once."""

TwoOrMore = Annotated[int, BeforeValidator(whole_number), Field(ge=2)]
"""An integer of at least 2."""


@dataclass(kw_only=True)
class NoPruner:
    """Every trial plays its whole budget."""

    kind: Literal["none"]
    """Name of the pruner."""


@dataclass(kw_only=True)
class MedianPruner:
    """Stop a trial whose best value so far is worse than the median of the others at the same frame."""

    kind: Literal["median"]
    """Name of the pruner."""
    startup_trials: NonNegativeInt
    """Trials that must have played their whole budget before any is stopped, >= 0."""
    warmup: NonNegativeInt
    """Frames before which no trial is stopped, >= 0."""


@dataclass(kw_only=True)
class AshaPruner:
    """Asynchronous successive halving (Li et al., 2020, arXiv:1810.05934).

    A trial that reaches `grace_period * reduction_factor ** k` frames continues if it is among the best
    1 / reduction_factor of those that have got there so far.
    """

    kind: Literal["asha"]
    """Name of the pruner."""
    grace_period: PositiveInt | None
    """Frames before which no trial is stopped, >= 1; null: a ninth of the budget."""
    reduction_factor: TwoOrMore
    """One in this many trials continues after each rung, >= 2."""


@dataclass(kw_only=True)
class HyperbandPruner:
    """Several successive halvings that differ in their grace period (Li et al., 2018, arXiv:1603.06560)."""

    kind: Literal["hyperband"]
    """Name of the pruner."""
    grace_period: PositiveInt | None
    """Frames before which the bracket with the shortest grace period stops no trial, >= 1; null: a ninth of
    the budget."""
    reduction_factor: TwoOrMore
    """One in this many trials continues after each rung; also the ratio of the brackets' grace periods, >=
    2."""


Pruner = Annotated[NoPruner | MedianPruner | AshaPruner | HyperbandPruner, Field(discriminator="kind")]


@dataclass(kw_only=True)
class Confirm:
    """The best trials run once more on seeds that the search has not seen."""

    top: PositiveInt
    """Number of best trials to confirm, >= 1."""
    sessions: PositiveInt
    """Fresh seeds for each confirmed configuration, >= 1."""
    default: bool
    """Whether the configuration without any searched value runs on the fresh seeds, too."""


@dataclass(kw_only=True)
class SearchConfig:
    """Options of `hydra/sweeper=optuna`; a single trial ignores them."""

    space: dict[str, str]
    """Hydra's sweep syntax by key, such as `agent.lr: tag(log, interval(1e-5, 1e-2))`."""
    objective: Measure | Measures
    """One measure, or several for a search without pruning. The mean over a trial's sessions counts."""
    pruner: Pruner
    """Stops unpromising trials at their evaluation checkpoints."""
    confirm: Confirm | None
    """Confirmation of the best trials on fresh seeds; null: none."""
    max_failure_rate: Probability
    """Fraction of trials that may fail before the search ends, in [0, 1]."""
    retries: NonNegativeInt
    """Number of times that a trial whose process died continues from its checkpoint, >= 0."""
