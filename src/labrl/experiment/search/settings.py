"""Checks of a search before Optuna and torch are loaded: `hydra.sweeper`, and the searched keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labrl.config import config_folder
from labrl.config.keys import split_override, walk
from labrl.errors import InputError
from labrl.types import PositiveInt, Probability


@dataclass(kw_only=True)
class Settings:
    """`hydra.sweeper`, as hydra-optuna-sweeper has it."""

    sampler: dict[str, Any]
    """The `_target_` of a sampler of Optuna, and its settings."""
    direction: Any
    """`minimize` or `maximize`, a list for several objectives; null: the usual one of each measure."""
    storage: str | None
    """The address of the study's storage; null: an SQLite file in the experiment folder."""
    study_name: str | None
    """null: `labrl`; to be given where a storage holds other studies."""
    n_trials: PositiveInt
    """Trials in total, over all machines and resumes, >= 1."""
    n_jobs: PositiveInt | None
    """Trials at once, >= 1; null: as many as there is room for."""
    max_failure_rate: Probability
    """Share of the trials that may fail, in [0, 1]."""
    params: dict[str, Any] | None
    """More of `search.space`, by key."""


def check_ready_keys(plain: Mapping[str, Any], choices: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Raise InputError where the agent lacks keys of the ready space, as far as that is sure.

    plain: the configuration without any searched value; choices: the option of each group; overrides: the
    overrides. Where options are searched too, `check_space` finds out.
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
    """Return the error where the ready space `ready` searches keys that the agent does not have."""
    fits = (config_folder() / "search" / f"{agent}.yaml").is_file()
    instead = f"set search={agent}, or " if fits else ""
    return InputError(
        f"search={ready} searches {', '.join(lacking)}, which agent={agent} does not have. Either "
        f"{instead}leave out agent={agent}, or give ranges of your own, such as "
        "'agent.lr=tag(log, interval(1e-5, 1e-2))'",
        code="contradiction",
        key="search",
    )
