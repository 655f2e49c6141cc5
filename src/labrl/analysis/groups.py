"""Filters for runs, and groups of runs that differ only in the seed, with the names of the groups."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from labrl.config.keys import key_of, written
from labrl.errors import InputError
from labrl.mistakes.spelling import did_you_mean
from labrl.run.run import Run, group_config
from labrl.run.session import RunSession

FILTERS: dict[str, Callable[[Run], str]] = {
    "status": lambda run: run.status,
    "agent": lambda run: run.agent,
    "env": lambda run: run.env,
    "name": lambda run: run.name,
}
"""Attributes of a run that a filter can use, in addition to the keys of its configuration."""

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

SEVERAL = "several"
"""Name used instead of the agent for groups whose runs have different agents."""


class Group(NamedTuple):
    """A group in a comparison. The sessions of all its runs are its seeds."""

    name: str
    agent: str
    env: str
    runs: list[Run]

    @property
    def sessions(self) -> list[RunSession]:
        """Sessions of all runs, in order."""
        return [session for run in self.runs for session in run.sessions]


def group_runs(runs: Sequence[Run], by: str | None = None) -> list[Group]:
    """Return `runs` as groups, in the order of their first runs.

    by: `agent`, `env` or a key of the configuration, for groups of runs with the same value and environment;
    None for groups of runs that differ only in the seed. Raises InputError if no run has the key `by`.
    """
    if by is None:
        collected = list(group_by_key(runs, lambda run: run.group_key).values())
        names = _names([group[0] for group in collected])
    else:
        if by not in ("agent", "env") and all(value_at(run, by) is None for run in runs):
            fix = "Use agent, env, or a key of the configuration such as agent.lr"
            raise InputError.about(f"--by {by}", "no run has this key", fix, code="unknown-key", key="--by")
        collected = list(group_by_key(runs, lambda run: (_value(run, by), run.env)).values())
        values = [_value(group[0], by) for group in collected]
        names = values if by in ("agent", "env") else [f"{_short(by)}={value}" for value in values]
    return [
        Group(
            name, group[0].agent if len({run.agent for run in group}) == 1 else SEVERAL, group[0].env, group
        )
        for name, group in zip(names, collected, strict=True)
    ]


def by_env(groups: Iterable[Group]) -> dict[str, list[Group]]:
    """Return the groups of each environment, because returns in different environments have no common
    scale."""
    return group_by_key(groups, lambda group: group.env)


def value_at(run: Run, key: str) -> Any:
    """Return the value of a key such as `agent.lr`, or the chosen option of a config group such as
    `agent/network`; None if the run has no such key or group."""
    choices = run.provenance.get("choices", {})
    if key in choices or "/" in key:
        return choices.get(key)
    node: Any = run.config
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def differing_keys(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return every key in which runs differ, with a value for each run. Keys that were set on the command
    line come first.

    The seed and keys that do not affect rows are left out. The value is None for a run without the key.
    """
    configs = _configs(runs)
    keys = dict.fromkeys(key for config in configs for key in config)
    return {**_typed(runs), **_differing({key: [config.get(key) for config in configs] for key in keys})}


def distinguishing_keys(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the `differing_keys` that were set on the command line if these keys distinguish all groups;
    otherwise return all of them."""
    typed = _typed(runs)
    pairs = {(repr(values), run.group_key) for *values, run in zip(*typed.values(), runs, strict=True)}
    separated = len({values for values, _ in pairs}) == len({run.group_key for run in runs})
    return typed if typed and separated else differing_keys(runs)


def unrequested_keys(runs: Sequence[Run]) -> list[str]:
    """Return the keys that all runs have and in which they differ although no command line set them.

    Such differences come from presets and from the configuration files of different agents. The result is
    empty for runs of a single agent, and for runs of different recipes or presets, because these are compared
    with all their differences.
    """
    typed, configs = _typed(runs), _configs(runs)
    if len({run.agent for run in runs}) == 1 or {"experiment", "preset"} & typed.keys():
        return []
    asked = ("agent._target_", *(key.replace("/", ".") for key in typed if key != "agent"))
    shared = (key for key in differing_keys(runs) if all(key in config for config in configs))
    return [key for key in shared if not any(f"{key}.".startswith(f"{one}.") for one in asked)]


def _typed(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the keys that were set on the command line and in which runs differ, with a value for each run.
    The seed and the keys of Hydra, `meta` and `wandb` are left out."""
    overrides = [str(one) for run in runs for one in run.provenance.get("overrides") or []]
    keys = dict.fromkeys(key_of(one) for one in overrides if "=" in one)
    left_out = ("seed", "hydra", "meta", "wandb")
    typed = [key for key in keys if key.split(".")[0] not in left_out]
    return _differing({key: [value_at(run, key) for run in runs] for key in typed})


def _differing(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    return {key: values for key, values in columns.items() if any(value != values[0] for value in values)}


def _configs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the keys of each run that affect rows, and the versions of own modules that have several."""
    versions = Counter(module for module, _ in {pair for run in runs for pair in run.own_code.items()})
    return [
        {
            **dict(_leaves(group_config(run.config))),
            **{f"code of {name}": own for name, own in run.own_code.items() if versions[name] > 1},
        }
        for run in runs
    ]


def value_text(value: Any) -> str:
    """Return a value of the configuration as it is written on a command line. A string stays unchanged."""
    return value if isinstance(value, str) else written(value)


def _leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys and values below `node` that are compared as a whole: plain values, lists and
    schedules."""
    is_schedule = isinstance(node, Mapping) and "kind" in node and "_target_" not in node
    if isinstance(node, Mapping) and (node or not key) and not is_schedule:
        for name, inner in node.items():
            yield from _leaves(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, node


def _rounded(value: Any) -> Any:
    """Return a value, or the values of a mapping, with floats rounded to four digits."""
    if isinstance(value, Mapping):
        return {name: _rounded(inner) for name, inner in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def group_by_key(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items of each key, in their original order."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _value(run: Run, by: str) -> str:
    return {"agent": run.agent, "env": run.env}.get(by) or value_text(value_at(run, by))


def _names(firsts: Sequence[Run]) -> list[str]:
    """Name runs after their agents, and add the settings in which they differ if several runs in an
    environment have the same agent."""
    named = {}
    for rivals in group_by_key(firsts, lambda run: (run.agent, run.env)).values():
        different = distinguishing_keys(rivals) if len(rivals) > 1 else {}
        columns = [
            (_short(key), [value_text(_rounded(value)) for value in values])
            for key, values in [*different.items()][:3]
        ]
        for place, run in enumerate(rivals):
            parts = [run.agent, *(f"{key}={values[place]}" for key, values in columns)]
            if len(different) > 3:
                parts.append("…")
            if len(rivals) > 1 and not different:
                parts.append(run.name)
            named[run.path] = " ".join(parts)
    taken = Counter((run.env, named[run.path]) for run in firsts)
    return [
        named[run.path] if taken[run.env, named[run.path]] == 1 else f"{named[run.path]} ({run.name})"
        for run in firsts
    ]


def _short(key: str) -> str:
    return re.sub(r"^(agent|env|transforms)[./]|(?<=^code) of .*", "", key)


def filter_runs(runs: Sequence[Run], filters: Sequence[str], root: Path) -> list[Run]:
    """Return the runs that match all `filters`.

    filters: conditions, each of them `<key>=<value>` or a part of the run folder's path below `root`. A key
    is `status`, `agent`, `env`, `name` or a key of the configuration; a value may contain * and ?. Raises
    InputError for a filter that no run can match.
    """
    kept = list(runs)
    for condition in filters:
        key, equals, text = condition.partition("=")
        if not equals:
            folders = {run.path: os.path.relpath(run.path, root.expanduser()) for run in runs}
            if not any(condition in folder for folder in folders.values()):
                fix = "A filter is a part of a folder's name, or a condition such as status=finished."
                fix += did_you_mean(condition, [*folders.values()])
                raise InputError.not_found(condition, f"no run folder in {root} has this in its name", fix)
            kept = [run for run in kept if condition in folders[run.path]]
        elif key in FILTERS:
            kept = [run for run in kept if _matches(FILTERS[key](run), text)]
        elif any(value_at(run, key) is not None for run in runs):
            kept = [run for run in kept if _matches(value_at(run, key), text)]
        else:
            known = [*FILTERS, *dict.fromkeys(name for run in runs for name, _ in _leaves(run.config))]
            fix = "The key of a filter is status, agent, env, name or a key of the configuration, such as "
            fix += f"agent.lr.{did_you_mean(key, known)}"
            raise InputError.about(condition, f"no run has the key {key}", fix, code="unknown-key")
    return kept


def _matches(value: Any, text: str) -> bool:
    """Return whether `text`, which may contain * and ?, matches the value. Numbers are compared by value."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return fnmatch(value_text(value), text)
    try:
        return value == float(text)
    except ValueError:
        return False
