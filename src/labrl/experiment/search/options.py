"""Options of a search (`search` and `hydra.sweeper`), and the checks that need neither Optuna nor PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from labrl.config import config_folder
from labrl.config.keys import split_override, walk
from labrl.errors import InputError
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


@dataclass(kw_only=True)
class Settings:
    """Settings of `hydra.sweeper`, the same as in hydra-optuna-sweeper."""

    sampler: dict[str, Any]
    """The `_target_` of an Optuna sampler, with its settings."""
    direction: Any
    """`minimize` or `maximize`, a list for several objectives; null: the usual direction of each measure."""
    storage: str | None
    """URL of the study's storage; null: an SQLite file in the experiment folder."""
    study_name: str | None
    """Name of the study, required with `storage`; null: `labrl`."""
    n_trials: PositiveInt
    """Total number of trials, over all machines and resumes, >= 1."""
    n_jobs: PositiveInt | None
    """Number of trials at the same time, >= 1; null: as many as there is room for."""
    max_failure_rate: Probability
    """Fraction of the trials that may fail, in [0, 1]."""
    params: dict[str, Any] | None
    """Further entries of `search.space`, by key."""


def check_ready_keys(plain: Mapping[str, Any], choices: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Raise InputError if the agent lacks keys of the ready-made space.

    plain: the configuration without searched values; choices: the option of each group; overrides: the
    overrides of the command line. If options are searched too, `check_space` finds out later.
    """
    typed = dict(map(split_override, overrides))
    space = plain["search"]["space"]
    searched = [key for key, value in typed.items() if "." not in key and ("," in value or "(" in value)]
    if searched or any("." not in key for key in space):
        return
    known = dict(walk(plain))
    if lacking := [key for key in space if key not in known and key not in typed]:
        raise not_its(str(choices["search"]), lacking, str(choices["agent"]))


def not_its(ready: str, lacking: Sequence[str], agent: str) -> InputError:
    """Return the error for a ready-made space that searches keys which the agent does not have."""
    fits = (config_folder() / "search" / f"{agent}.yaml").is_file()
    instead = f"set search={agent}, or " if fits else ""
    return InputError(
        f"search={ready} searches {', '.join(lacking)}, which agent={agent} does not have. Either "
        f"{instead}leave out agent={agent}, or type your own ranges, such as "
        "'agent.lr=tag(log, interval(1e-5, 1e-2))'",
        code="contradiction",
        key="search",
    )
