"""Filters of runs: by status, agent, environment, name, or a key of the configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from labrl.analysis.groups import told, value_at
from labrl.analysis.runs import Run
from labrl.errors import InputError
from labrl.mistakes.spelling import did_you_mean

KEYS = ("status", "agent", "env", "name")
"""Names that a filter may use besides the keys of the configuration."""


def agreeing(runs: Sequence[Run], filters: Sequence[str], root: Path) -> list[Run]:
    """Return those of `runs` that agree with all `filters`.

    filters: `<key>=<value>`, where the key is `status`, `agent`, `env`, `name` or one of the configuration
    and the value may have * and ? in it; or a part of the folder's name below `root`. Raises InputError for
    a filter that can agree with none.
    """
    _check_filters(filters, runs, root)
    return [run for run in runs if all(_agrees(run, word, root) for word in filters)]


def _check_filters(filters: Sequence[str], runs: Sequence[Run], root: Path) -> None:
    """Raise InputError for a filter that can agree with none of `runs`."""
    for word in filters:
        key, equals, _ = word.partition("=")
        if not equals:
            folders = [_folder(run, root) for run in runs]
            if any(word in folder for folder in folders):
                continue
            values = (f"{key}={value}" for run in runs for key, value in _named(run).items())
            meant = next((value for value in values if value.endswith(f"={word}")), None)
            hint = f" Did you mean {meant}?" if meant else did_you_mean(word, folders)
            raise InputError(
                f"{word}: no run in {root} has this in the name of its folder. A filter is a part of that "
                f"name, or a pair such as status=finished.{hint}",
                code="not-found",
                key=word,
            )
        if key not in KEYS and all(value_at(run, key) is None for run in runs):
            hint = did_you_mean(key, [*KEYS, "seed", *_top_keys(runs)])
            raise InputError(
                f"{word}: no run has the key {key}. The key of a filter is status, agent, env, name or a "
                f"key of the configuration, such as agent.lr.{hint}",
                code="unknown-key",
                key=key,
            )


def _folder(run: Run, root: Path) -> str:
    return os.path.relpath(run.path, root.expanduser())


def _named(run: Run) -> dict[str, str]:
    """Names that a filter may use besides the keys of the configuration."""
    return {"status": run.status, "agent": run.agent, "env": run.env, "name": run.name}


def _agrees(run: Run, word: str, root: Path) -> bool:
    key, equals, value = word.partition("=")
    if not equals:
        return word in _folder(run, root)
    if key in KEYS:
        return fnmatch(_named(run)[key], value)
    own = value_at(run, key)
    if isinstance(own, int | float) and not isinstance(own, bool):
        return own == _number(value)  # 1e-4 is 0.0001
    return fnmatch(told(own), value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _top_keys(runs: Sequence[Run]) -> set[str]:
    """Keys one level deep, `agent.lr`, to guess what was meant."""
    return {
        f"{group}.{name}"
        for run in runs
        for group, node in run.config.items()
        if isinstance(node, Mapping)
        for name in node
    }
