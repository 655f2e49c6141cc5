"""Groups of runs beside each other: environment by environment, and over Atari games together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from labrl.analysis.groups import Group, by_env
from labrl.analysis.intervals import aggregates, performance_profile, probability_of_improvement
from labrl.analysis.statistics import FORMAT_VERSION, group_statistics, plain

PROFILE_POINTS = 101
"""Thresholds of a performance profile."""

FEW_GROUPS = 4
"""A warning tells so many one by one."""

ALL_PAIRS = 10
"""Of more groups than this only the one with the highest IQM is compared with each other one."""


def compare(groups: Sequence[Group], threshold: float | None = None) -> dict[str, Any]:
    """All `groups`, split by environment, because returns of different ones have no common scale.

    Returns `envs` (for each: `env`, `groups` as of `group_statistics`, `improvement`, `profile`,
    `warnings`), `across` (Atari games together by human-normalized score, None where there are not two) and
    `warnings`. Groups without a counted session are in no pair and no profile.
    """
    envs = [_one_env(env, own, threshold) for env, own in by_env(groups).items()]
    warnings = []
    if len(envs) > 1:
        names = ", ".join(entry["env"] for entry in envs)
        warnings.append(f"{len(envs)} environments ({names}): compared one by one, each on its own scale")
    return {
        "format_version": FORMAT_VERSION,
        "kind": "comparison",
        "envs": envs,
        "across": _across(envs),
        "warnings": warnings,
    }


def _one_env(env: str, groups: Sequence[Group], threshold: float | None) -> dict[str, Any]:
    statistics = [group_statistics(group.runs, group.name, threshold) for group in groups]
    scores = {entry["name"]: [values_of(entry, "final_return")] for entry in statistics if entry["counted"]}
    return {
        "env": env,
        "groups": statistics,
        "improvement": list(_improvements(scores)),
        "profile": _profile(scores),
        "warnings": list(_warnings(statistics)),
    }


def values_of(entry: Mapping[str, Any], measure: str) -> np.ndarray:
    """A measure of the counted sessions of a group's statistics, [sessions]."""
    return np.array(
        [session[measure] for session in entry["sessions"] if session["counted"]], dtype=np.float64
    )


def _improvements(scores: Mapping[str, Sequence[np.ndarray]]) -> Iterator[dict[str, Any]]:
    """`x`, `y`, and how likely a session of x beats one of y, with its interval."""
    pairs = combinations(scores, 2)
    if len(scores) > ALL_PAIRS:
        best = max(scores, key=lambda name: aggregates(scores[name])["iqm"].value)
        pairs = ((best, other) for other in scores if other != best)  # type: ignore[assignment]
    for x, y in pairs:
        yield {"x": x, "y": y, **plain(probability_of_improvement(scores[x], scores[y]))}


def _profile(scores: Mapping[str, Sequence[np.ndarray]]) -> dict[str, Any] | None:
    """Share of sessions above each threshold, by group; thresholds from the lowest score to the highest."""
    if not scores:
        return None
    every = np.concatenate([runs for tasks in scores.values() for runs in tasks])
    thresholds = np.linspace(every.min(), every.max(), PROFILE_POINTS)
    found = {}
    for name, tasks in scores.items():
        arrays = zip(("value", "low", "high"), performance_profile(tasks, thresholds), strict=True)
        found[name] = {key: None if array is None else array.tolist() for key, array in arrays}
    return {"thresholds": thresholds.tolist(), "groups": found}


def _warnings(statistics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    counted = [entry for entry in statistics if entry["counted"]]
    if len({entry["scores_of"] for entry in counted}) > 1:
        told = ", ".join(f"{entry['name']}: {entry['scores_of']} episodes" for entry in counted)
        yield f"the scores are not of one kind ({told})"
    ends = {entry["name"]: max(session["frames"] for session in entry["sessions"]) for entry in counted}
    if ends and min(ends.values()) < 0.9 * max(ends.values()):
        told = ", ".join(f"{name}: {frames:,}" for name, frames in ends.items())
        if len(ends) > FEW_GROUPS:
            told = f"from {min(ends.values()):,} to {max(ends.values()):,}"
        yield f"the final returns are at different frames ({told}): compare the curves instead"
    for entry in statistics:
        if not entry["counted"]:
            yield f"{entry['name']}: no session to compare"


def _across(envs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Groups of one name over all games that every one of them has played, by human-normalized score."""
    games: dict[str, dict[str, np.ndarray]] = {}
    for entry in envs:
        own = {
            group["name"]: values_of(group, "human_normalized")
            for group in entry["groups"]
            if group["counted"] and "human_normalized" in group["estimates"]
        }
        if own:
            games[entry["env"]] = own
    names = list(dict.fromkeys(name for own in games.values() for name in own))
    shared = [game for game, own in games.items() if set(own) == set(names)]
    if len(shared) < 2:
        return None
    scores = {name: [games[game][name] for game in shared] for name in names}
    return {
        "envs": shared,
        "left_out": [entry["env"] for entry in envs if entry["env"] not in shared],
        "groups": [
            {
                "name": name,
                "sessions": sum(map(len, tasks)),
                "human_normalized": {key: plain(e) for key, e in aggregates(tasks, target=1.0).items()},
            }
            for name, tasks in scores.items()
        ],
        "improvement": list(_improvements(scores)),
        "profile": _profile(scores),
    }
