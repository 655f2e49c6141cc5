"""Checks of a search without Optuna and PyTorch, so that a wrong command line is refused at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labrl.config import config_folder
from labrl.config.keys import split_override, walk
from labrl.errors import InputError


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
