"""Options of a search: `search` and `hydra.sweeper`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from labrl.experiment.search.pruners import Pruner
from labrl.types import INFO, NonNegativeInt, PositiveInt, Probability


def _measure(name: Any) -> Any:
    """Return `name` if it is a measure of a session or an `info` column. Raises PydanticCustomError
    otherwise."""
    if not isinstance(name, str):
        raise PydanticCustomError("type", "must be one measure, because a search has one objective")
    measures = ("final_return", "best_return", "auc", "strength", "wall")
    if name not in measures and not (name.startswith(INFO) and name != INFO):
        allowed = f"{', '.join(measures)}, or {INFO}<name> with a name in env.info_keys"
        raise PydanticCustomError("range", f"must be {allowed}")
    return name


Measure = Annotated[str, BeforeValidator(_measure)]
"""`final_return`, `best_return`, `auc`, `strength`, `wall` or `info/<name>`"""
Direction = Literal["minimize", "maximize"]
"""Whether the smallest or the largest value of a measure is the best."""


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
    """Pruner, which stops unpromising trials at their evaluation checkpoints."""
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
