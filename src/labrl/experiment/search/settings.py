"""What is checked in a search before Optuna and torch are loaded: `hydra.sweeper`, and the keys to search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labrl.config.folder import config_folder
from labrl.config.keys import walk
from labrl.config.types import whole_number
from labrl.errors import InputError
from labrl.trial.overrides import split_word


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


def check_ready_keys(plain: Mapping[str, Any], choices: Mapping[str, Any], words: Sequence[str]) -> None:
    """Raise InputError where the agent lacks keys of the ready space, as far as that is sure.

    plain: the configuration without any searched value; choices: the option of each group; words: the
    overrides. Where options are searched too, `check_space` finds out.
    """
    typed = dict(map(split_word, words))
    space = plain["search"]["space"]
    searched = [key for key, value in typed.items() if "." not in key and ("," in value or "(" in value)]
    if searched or any("." not in key for key in space):
        return
    known = dict(walk(plain))
    if lacking := [key for key in space if key not in known and key not in typed]:
        raise not_its(str(choices["search"]), lacking, str(choices["agent"]))


def not_its(ready: str, lacking: Sequence[str], agent: str) -> InputError:
    """Return the error where the ready space `ready` searches keys that the agent does not have."""
    fits = (config_folder() / "search" / f"{agent}.yaml").is_file()
    instead = f"set search={agent}, or " if fits else ""
    return InputError(
        f"search={ready} searches {', '.join(lacking)}, which agent={agent} does not have. To go on, "
        f"{instead}leave out agent={agent}, or give ranges of your own, such as "
        "'agent.lr=tag(log, interval(1e-5, 1e-2))'",
        code="contradiction",
        key="search",
    )
