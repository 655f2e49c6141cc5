"""The keys of `hydra.sweeper` in a search, checked before Optuna and torch are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labrl.config.types import whole_number
from labrl.errors import InputError


@dataclass
class Settings:
    """`hydra.sweeper`, as hydra-optuna-sweeper has it. Raises InputError for a number that is wrong."""

    sampler: dict[str, Any]
    direction: Any
    storage: str | None
    study_name: str | None
    n_trials: int
    n_jobs: int | None
    max_failure_rate: float
    params: Mapping[str, Any]

    def __post_init__(self) -> None:
        rate = self.max_failure_rate
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
            key = "hydra.sweeper.max_failure_rate"
            raise InputError(f"{key} must be a number between 0 and 1, got {rate}", code="range", key=key)
        self.n_trials = _count("n_trials", self.n_trials)
        if self.n_jobs is not None:
            self.n_jobs = _count("n_jobs", self.n_jobs)


def _count(name: str, given: Any) -> int:
    key = f"hydra.sweeper.{name}"
    try:
        number = whole_number(given)
    except ValueError as error:
        raise InputError(f"{key} {error}, got {given}", code="type", key=key) from None
    if number < 1:
        raise InputError(f"{key} must be at least 1, got {given}", code="range", key=key)
    return number
