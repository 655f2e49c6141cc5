"""How an experiment looks for good hyperparameters: space, objective, pruner, confirmation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from labrl.config.types import NonNegativeInt, PositiveInt, Probability, whole_number

Measure = Literal["final_return", "best_return", "auc", "strength", "wall"]
"""What a session is worth, from its evaluation checkpoints; see docs/search.md."""


def _each_once(measures: list[Measure]) -> list[Measure]:
    if len(set(measures)) < len(measures):
        raise ValueError("must be a list with each measure once")
    return measures


Measures = Annotated[list[Measure], Field(min_length=1), AfterValidator(_each_once)]
"""Several, each once."""

TwoOrMore = Annotated[int, BeforeValidator(whole_number), Field(ge=2)]
"""2, 3, ..."""


@dataclass(kw_only=True)
class NoPruner:
    """Every trial plays its whole budget."""

    kind: Literal["none"]
    """Tells this pruner from the others."""


@dataclass(kw_only=True)
class MedianPruner:
    """Stop a trial whose best value so far is worse than the median of the others at the same frame."""

    kind: Literal["median"]
    """Tells this pruner from the others."""
    startup_trials: NonNegativeInt
    """Trials that are to have played their whole budget before any is stopped, >= 0."""
    warmup: NonNegativeInt
    """Frames before which no trial is stopped, >= 0."""


@dataclass(kw_only=True)
class AshaPruner:
    """Asynchronous successive halving (Li et al., 2020, arXiv:1810.05934).

    A trial that reaches `grace_period * reduction_factor ** k` frames goes on if it is among the best
    1 / reduction_factor of those that have got there so far.
    """

    kind: Literal["asha"]
    """Tells this pruner from the others."""
    grace_period: PositiveInt | None
    """Frames before which no trial is stopped, >= 1; null: a ninth of the budget."""
    reduction_factor: TwoOrMore
    """One trial of so many goes on from a rung, >= 2."""


@dataclass(kw_only=True)
class HyperbandPruner:
    """Several successive halvings that differ in their grace period (Li et al., 2018, arXiv:1603.06560)."""

    kind: Literal["hyperband"]
    """Tells this pruner from the others."""
    grace_period: PositiveInt | None
    """Frames before which the most eager bracket stops no trial, >= 1; null: a ninth of the budget."""
    reduction_factor: TwoOrMore
    """As of asha; the grace period of each further bracket is so many times longer, >= 2."""


Pruner = Annotated[NoPruner | MedianPruner | AshaPruner | HyperbandPruner, Field(discriminator="kind")]


@dataclass(kw_only=True)
class Confirm:
    """The best trials run once more on seeds that the search has not seen."""

    top: PositiveInt
    """How many of the best, >= 1."""
    sessions: PositiveInt
    """Fresh seeds for each of them, >= 1."""
    default: bool
    """Whether the configuration without any searched value runs on these seeds too."""


@dataclass(kw_only=True)
class SearchConfig:
    """Read by `hydra/sweeper=optuna` alone; a single trial takes no notice of it."""

    space: dict[str, str]
    """Hydra's sweep syntax by key, such as `agent.lr: tag(log, interval(1e-5, 1e-2))`."""
    objective: Measure | Measures
    """One measure, or several for a search without pruning. The mean over a trial's sessions counts."""
    pruner: Pruner
    """Who stops hopeless trials at their evaluation checkpoints."""
    confirm: Confirm | None
    """null: the best trial is taken at its word."""
    max_failure_rate: Probability
    """Share of the search's trials that may fail before it gives up, in [0, 1]."""
    retries: NonNegativeInt
    """How often a trial whose process died goes on from its checkpoint, >= 0."""
