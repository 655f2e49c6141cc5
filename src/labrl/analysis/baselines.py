"""Reference returns: those of the random policy and of a human, and the return at which an environment counts
as solved.

The return of the random policy comes from a table for known environments. For others, the command that
trained has played the random policy (`labrl.trial.reporting`), and recorded the result in the run and in a
cache. This module neither plays episodes nor writes files.
"""

from __future__ import annotations

import csv
import functools
import glob
import hashlib
import importlib.resources
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labrl.processes.secrets import redact
from labrl.run.folder import read_json
from labrl.run.signature import cache_folder

UNDECIDING = ("check", "num_envs", "max_frame", "name", "vectorization", "info_keys", "restarts")
"""Keys of `env` that do not affect the return of a random policy."""

ALTERING = ("make", "max_episode_steps", "wrappers", "reset_options")
"""Keys of `env` for which the table of known environments does not hold unless they are empty."""


@dataclass(frozen=True)
class Baseline:
    """Return of complete episodes with uniformly random actions."""

    mean: float
    std: float | None
    """Sample standard deviation over episodes; None if none was published."""
    episodes: int | None
    source: str
    """`measured` (by the command that trained), `table` (known environments) or `published`."""


@dataclass(frozen=True)
class Threshold:
    """Target return. The time until a session first reaches it is measured."""

    value: float
    source: str
    """`gymnasium` (the threshold that the id is registered with) or `human` (Wang et
    al., 2016)."""


def baseline_path(env: Mapping[str, Any]) -> Path:
    """Return the cache file of an environment. env: the `env` node of the configuration, as plain data."""
    deciding = json.dumps(deciding_keys(env), sort_keys=True, default=str)
    digest = hashlib.sha256(deciding.encode()).hexdigest()[:16]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", str(env.get("name") or "env"))
    return cache_folder() / "random" / f"{name}_{digest}.json"


def deciding_keys(env: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an environment's configuration that affects the return of a random policy, without
    secrets."""
    return redact({key: value for key, value in env.items() if key not in UNDECIDING})


def random_baseline(env: Mapping[str, Any], recorded: Sequence[Mapping[str, Any]] = ()) -> Baseline | None:
    """Return the return of the random policy in an environment: as published for an Atari game, from the
    table of known environments, as recorded in a run, or from the cache. Returns None if it is unknown.

    recorded: contents of the `run.json` of runs in the environment.
    """
    if (published := human_range(env)) is not None:
        return Baseline(published[0], None, None, "published")
    name = [str(env.get("id")), *(f"{key}={value}" for key, value in (env.get("kwargs") or {}).items())]
    known = _table("random.csv").get(" ".join(name))
    if known is not None and not any(env.get(key) for key in ALTERING):
        return Baseline(float(known["mean"]), float(known["std"]), int(known["episodes"]), "table")
    found = (_as_baseline(info.get("random_return")) for info in recorded)
    return next(filter(None, found), None) or read_cached(env)


def read_cached(env: Mapping[str, Any]) -> Baseline | None:
    """Return the measured return of the random policy from the cache; None if there is none."""
    path = baseline_path(env)
    # The environment may have had another name when it was measured. Unlike pathlib, glob ignores a folder
    # that is not readable.
    same = sorted(glob.glob(f"*_{path.stem.rsplit('_', 1)[1]}.json", root_dir=path.parent))
    return next(filter(None, (_as_baseline(read_json(path.parent / name)) for name in same)), None)


def _as_baseline(facts: Any) -> Baseline | None:
    """Return a recorded baseline; None if it is missing or damaged."""
    try:
        return Baseline(float(facts["mean"]), facts["std"], int(facts["episodes"]), "measured")
    except (ValueError, KeyError, TypeError):
        return None


def human_range(env: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the published returns of the random policy and of a human in an Atari game; None for other
    environments.

    From Mnih et al., 2015, doi:10.1038/nature14236, and Wang et al., 2016.
    """
    found = _table("atari57.csv").get(str(env.get("game")))
    return None if found is None else (float(found["random"]), float(found["human"]))


def threshold_of(env: Mapping[str, Any]) -> Threshold | None:
    """Return the return at which an environment counts as solved: Gymnasium's threshold for its id, or a
    human's return in an Atari game; None for other environments."""
    solved = _table("solved.csv").get(str(env.get("id")))
    if solved is not None:
        return Threshold(float(solved["return"]), "gymnasium")
    human = human_range(env)
    return Threshold(human[1], "human") if human else None


@functools.cache
def _table(name: str) -> dict[str, dict[str, str]]:
    """Return the rows of a CSV file in `data/`, by the content of their first cell."""
    text = importlib.resources.files("labrl.analysis").joinpath("data", name).read_text(encoding="utf-8")
    return {next(iter(row.values())): row for row in csv.DictReader(text.splitlines())}
