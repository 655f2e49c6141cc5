"""Statistics of sessions, groups and comparisons, as plain dicts. Undefined values are None.

A *group* is a set of runs that are compared as one, usually runs that differ only in the seed. Its sessions
are its sample. Sessions that are left out are listed with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl

from labrl.analysis import measures
from labrl.analysis.baselines import Baseline, Threshold, human_range, random_baseline, threshold_of
from labrl.analysis.formats import join_names
from labrl.analysis.groups import SEVERAL, Group, by_env, differing_keys, group_by_key, unrequested_keys
from labrl.analysis.intervals import (
    RUNS_FOR_INTERVAL,
    Estimate,
    aggregates,
    align_curves,
    curve,
    is_better,
    performance_profile,
    probability_of_improvement,
    statistic_of,
)
from labrl.analysis.returns import GroupReturn
from labrl.run import tables
from labrl.run.experiment import CONFIRMING
from labrl.run.run import Run
from labrl.run.session import RunSession, sessions_text
from labrl.types import INFO

FORMAT_VERSION = 2
"""Version of the format of the dicts and of `statistics.json`."""

FAR_ENOUGH = 0.9
"""A session that played less than this fraction of its frame budget, or of the frames of its group's longest
session, is left out."""

FEW_SEEDS = 5
"""Number of seeds below which an interval is unreliable (Agarwal et al., 2021)."""

PROFILE_POINTS = 101
"""Number of thresholds in a performance profile."""

ALL_PAIRS = 10
"""Maximum number of groups for which all pairs are compared. With more groups, only the best group is
compared with each of the others."""

MEASURES = {
    "final_return": "final return",
    "best_return": "best return",
    "area_under_curve": "average return (area under the curve)",
    "slm_final": f"SLM Lab's score (mean of the last {measures.SLM_WINDOW} rows)",
    "strength": "strength",
    "max_strength": "highest strength",
    "final_strength": "final strength",
    "sample_efficiency": "sample efficiency (per frame)",
    "training_efficiency": "training efficiency (per update)",
    "stability": "stability",
    "frames_to_threshold": "frames to the threshold",
    "seconds_to_threshold": "seconds to the threshold",
    "human_normalized": "human-normalized score",
    "fps": "frames/s",
}
"""Entries of `session_statistics` for which a mean over sessions is meaningful, with their names."""


def session_statistics(
    session: RunSession,
    baseline: Baseline | None,
    human: tuple[float, float] | None,
    threshold: Threshold | None,
) -> dict[str, Any]:
    """Return the statistics of a single session, as plain data. Undefined values are None.

    baseline: the random policy's return; human: published returns of the random policy and of a human. The
    numbers of `env.info_keys` that a checkpoint has are under the names of their columns, `info/<name>`.
    """
    frame, returns, seconds, updates = (
        session.scores[n] for n in ("frame", "return_mean", "wall", "opt_step")
    )
    frames, wall = session.furthest("frame"), session.furthest("wall") or None
    emulated, episodes, learned, played = map(session.last, ("env_frames", "episode", "opt_step", "frame"))
    if emulated is not None and played:
        emulated *= frames / played  # each frame has the same number of emulator frames
    final, info = tables.final_values(session.scores).values()
    found = {
        "index": session.index,
        "seed": session.seed,
        "status": session.status,
        "stop": (session.result.get("stop") or {}).get("why"),
        "frames": int(frames),
        "env_frames": None if emulated is None else round(emulated),
        "episodes": None if episodes is None else int(episodes),
        "opt_steps": None if learned is None else int(learned),
        "wall": wall,
        "fps": frames / wall if wall else None,
        "rows": len(frame),
        "final_return": final,
        "best_return": float(returns.max()) if len(frame) else None,
        "best_frame": int(frame[returns.argmax()]) if len(frame) else None,
        "area_under_curve": measures.area_under_curve(frame, returns),
        "slm_final": measures.slm_final(tables.known(session.train, "return_mean")),
        **dict.fromkeys(("strength", "max_strength", "final_strength")),
        **dict.fromkeys(("sample_efficiency", "training_efficiency", "stability")),
        **dict.fromkeys(("frames_to_threshold", "seconds_to_threshold", "human_normalized")),
        **{f"{INFO}{name}": value for name, value in info.items()},
    }
    if baseline is not None and len(frame):
        s = measures.strength(returns, baseline.mean)
        found |= {
            "strength": float(s.mean()),
            "max_strength": float(s.max()),
            "final_strength": float(s[-1]),
            "sample_efficiency": measures.efficiency(s, frame),
            # Without this column in the file, no update is known.
            "training_efficiency": measures.efficiency(s, np.nan_to_num(updates)),
            "stability": measures.stability(s),
        }
    if threshold is not None:
        after = measures.time_to(seconds, returns, threshold.value)
        found["frames_to_threshold"] = measures.time_to(frame, returns, threshold.value)
        found["seconds_to_threshold"] = None if after is None or np.isnan(after) else after
    if human is not None and final is not None:
        found["human_normalized"] = measures.human_normalized(final, *human)
    return found


def trial_statistics(run: Run, group: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the metadata and statistics of one run. group: its `group_statistics`, if they are known."""
    about = {"status": run.status, "created": run.created, "seed": run.seed}
    head = {"format_version": FORMAT_VERSION, "kind": "trial", "run": run.name, **about}
    return {**head, **(group or group_statistics([run]))}


def group_statistics(runs: Sequence[Run], name: str | None = None) -> dict[str, Any]:
    """Return the statistics of the sessions of `runs`, all in one environment, as one sample.

    Returns `name`, `agent`, `env`, `runs`, `sessions` (a dict of measures for each session),
    `counted` (the size of the sample), `left_out` (the other sessions, with the reason), `baseline`,
    `threshold`, `scores_of` (evaluation or training episodes), `measures` (mean, std and n over the sample),
    `consistency`, `estimates` (iqm, mean and median with their intervals), `curve` (on a grid of frames) and
    `warnings`. Raises ValueError for runs in different environments.
    """
    envs = {run.env for run in runs}
    if len(envs) != 1:
        raise ValueError(
            f"runs: all must be in the same environment, got {', '.join(sorted(envs)) or 'no run'}"
        )
    env = runs[0].config.get("env", {})
    baseline, human = random_baseline(env, [run.info for run in runs]), human_range(env)
    wanted = threshold_of(env)
    sessions = [(run, session) for run in runs for session in run.sessions]
    reasons = list(reasons_to_leave_out(sessions))
    entries = [
        {"run": run.name, **session_statistics(session, baseline, human, wanted), "counted": reason is None}
        for (run, session), reason in zip(sessions, reasons, strict=True)
    ]
    scores = [one.scores for (_, one), reason in zip(sessions, reasons, strict=True) if reason is None]
    grid, returns = align_curves([one["frame"] for one in scores], [one["return_mean"] for one in scores])
    agents = list(dict.fromkeys(run.agent for run in runs))
    left_out = [
        {"run": entry["run"], "session": entry["index"], "reason": reason}
        for entry, reason in zip(entries, reasons, strict=True)
        if reason is not None
    ]
    infos = list(dict.fromkeys(name for one in entries for name in one if name.startswith(INFO)))
    samples = {measure: values_of({"sessions": entries}, measure) for measure in [*MEASURES, *infos]}
    estimated = ["final_return", "area_under_curve", *(["human_normalized"] if human is not None else [])]
    everywhere = np.isfinite(returns).all(axis=0)  # the points at which every session has a return
    strengths = measures.strength(returns[:, everywhere], baseline.mean) if baseline else None
    return {
        "name": name or ", ".join(agents),
        "agent": agents[0] if len(agents) == 1 else SEVERAL,
        "env": runs[0].env,
        "runs": [run.name for run in runs],
        "sessions": entries,
        "counted": len(scores),
        "left_out": left_out,
        "baseline": None if baseline is None else vars(baseline),
        "threshold": None if wanted is None else vars(wanted),
        "scores_of": scores_of(runs),
        "measures": {
            measure: {"mean": values.mean(), "std": values.std(), "n": len(values)}
            for measure, sample in samples.items()
            for values in [pl.Series(sample)]
        },
        "consistency": None if strengths is None else measures.consistency(strengths),
        "estimates": {
            measure: _plain(aggregates(samples[measure], 1.0 if measure == "human_normalized" else None))
            for measure in [*estimated, *infos]
            if len(samples[measure])
        },
        "curve": _curve(grid, returns),
        "warnings": list(_warnings(runs, entries, reasons, baseline)),
    }


def scores_of(runs: Sequence[Run]) -> str:
    """Return the kind of episodes from which scores are computed: `evaluation` (in separate environments),
    `training` or `both`."""
    rigorous = {run.evaluates for run in runs}
    return "both" if len(rigorous) > 1 else "evaluation" if rigorous == {True} else "training"


def reasons_to_leave_out(
    sessions: Sequence[tuple[Run, RunSession]], of_tables: bool = True
) -> Iterator[str | None]:
    """Yield, for each session of a group, the reason to leave it out of the sample; None for no reason.

    A session that played its complete budget, or that its evaluations ended early, is part of the sample even
    if other sessions came further. of_tables: whether to examine the rows of tables, which is slow, or only
    the outcomes of sessions.
    """
    if of_tables:
        ends = [one.last("frame") or 0.0 for _, one in sessions]
    else:
        ends = [float(one.outcome.get("frame") or 0) for _, one in sessions]
    furthest = max(ends, default=0.0)
    seen: dict[tuple[str, int], str] = {}
    confirmed_in = {run.path.parent for run, _ in sessions if run.path.name.startswith(CONFIRMING)}
    for (run, one), end in zip(sessions, ends, strict=True):
        goal = min(furthest, run.max_frame or furthest)
        twin = None if one.seed is None else (run.group_key, one.seed)
        if not (len(one.scores["frame"]) if of_tables else one.outcome["final_return"] is not None):
            yield "no episode has finished"
        elif run.path.parent in confirmed_in and not run.path.name.startswith(CONFIRMING):
            yield "selected by its return (selection bias), so only the fresh seeds of its confirmation count"
        elif one.status == "failed":
            yield "failed"
        elif end < FAR_ENOUGH * goal and not one.result.get("stop"):
            yield f"fewer than {FAR_ENOUGH:.0%} of {goal:,.0f} frames ({one.status})"
        elif twin is not None and twin in seen:
            yield f"the same seed and configuration as {seen[twin]}"
        else:
            if twin is not None:
                seen[twin] = f"session {one.index} of {run.name}"
            yield None


def _plain(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, float | None]]:
    return {name: one._asdict() for name, one in estimates.items()}


def _curve(grid: np.ndarray, returns: np.ndarray) -> dict[str, list[Any]]:
    """Return the IQM and the mean over sessions at each frame, with intervals, as lists of equal length."""
    columns: dict[str, list[Any]] = {"frame": grid.astype(int).tolist()}
    for statistic in ("iqm", "mean"):
        band = curve(returns, statistic)
        for end, values in (("", band.value), ("_low", band.low), ("_high", band.high)):
            columns[statistic + end] = [value if np.isfinite(value) else None for value in values.tolist()]
    return columns | {"count": np.isfinite(returns).sum(axis=0).tolist()}


def _warnings(
    runs: Sequence[Run],
    entries: Sequence[Mapping[str, Any]],
    reasons: Sequence[str | None],
    baseline: Baseline | None,
) -> Iterator[str]:
    """Yield the warnings of a sample, each only once for all runs or sessions that it concerns.

    reasons: the reason why each of `entries` is left out, or None.
    """
    several = len(runs) > 1
    said = [(warning, run.name) for run in runs for warning in run.warnings]
    for warning, pairs in group_by_key(said, lambda pair: pair[0]).items():
        yield f"{join_names([name for _, name in pairs])}: {warning}" if several else warning
    left_out = [(one, why) for one, why in zip(entries, reasons, strict=True) if why is not None]
    for reason, those in group_by_key(left_out, lambda pair: pair[1]).items():
        who, are = _named([one for one, _ in those], several), "is" if len(those) == 1 else "are"
        yield f"{who} {are} left out of the statistics: {reason}"
    unfinished = [
        one
        for one, why in zip(entries, reasons, strict=True)
        if why is None and one["status"] in ("interrupted", "killed")
    ]
    for status, ended in group_by_key(unfinished, lambda one: str(one["status"])).items():
        yield f"{_named(ended, several)} {'was' if len(ended) == 1 else 'were'} {status} before the end"
    counted = len(entries) - len(left_out)
    early = [entry["frames"] for entry in entries if entry["stop"] and entry["counted"]]
    if early and counted > 1:
        yield (
            f"{len(early)} of {counted} sessions ended early, the first at frame {min(early):,}: beyond it, "
            "the curves contain fewer sessions (`count` in statistics.json)"
        )
    if counted == 1:
        yield (
            "only one seed: there is no confidence interval, so it is unknown how much of the result is due "
            "to chance"
        )
    elif 1 < counted < RUNS_FOR_INTERVAL:
        yield f"only {counted} seeds: there is no interval"
    elif 1 < counted < FEW_SEEDS:
        yield f"only {counted} seeds: the intervals are rough"
    if counted and all(entry["rows"] == 1 for entry in entries if entry["counted"]):
        yield (
            "each session has a single evaluation checkpoint, so its final, best and average returns are the "
            "same number; for 20 checkpoints, set meta.eval_frequency=1/20"
        )
    if scores_of(runs) == "both":
        yield "some runs are scored by evaluation episodes, others by training episodes"
    if entries and baseline is None:
        yield "no random baseline: strength, efficiencies, stability and consistency are not defined"


def _named(entries: Sequence[Mapping[str, Any]], several: bool) -> str:
    """Return the names of sessions as text. several: whether they may belong to different runs."""
    if not several:
        return sessions_text([entry["index"] for entry in entries])
    return join_names([f"{entry['run']} (session {entry['index']})" for entry in entries])


def compare(groups: Sequence[Group]) -> dict[str, Any]:
    """Compare `groups` within each environment, because returns of different environments have no common
    scale.

    Returns `envs` (for each environment: `env`, `groups` (see `group_statistics`), `improvement`, `best`,
    `profile`, `branches`, `differing`, `not_compared`, `warnings`, and `stages`, the result of
    `compare_entries` for an experiment in stages), `across` (all Atari games together, by human-normalized
    score; None for fewer than two) and `warnings`. `differing` has every key in which the groups differ, with
    a value for each group; `not_compared` has the keys in `differing` that nobody asked to compare. Groups
    with an empty sample are in no pair and no profile.
    """
    envs: list[dict[str, Any]] = []
    for env, own in by_env(groups).items():
        found = [group_statistics(group.runs, group.name) for group in own]
        scores = {entry["name"]: [values_of(entry, "final_return")] for entry in found if entry["counted"]}
        pairs = list(_improvements(scores))
        envs.append(
            {
                "env": env,
                "groups": found,
                "improvement": pairs,
                "best": _best(found, pairs),
                "stages": None,
                "profile": _profile(scores),
                "branches": _branches(own, found),
                "differing": differing_keys([group.runs[0] for group in own]),
                "not_compared": unrequested_keys([group.runs[0] for group in own]),
                "warnings": list(_unlike(found)),
            }
        )
    names = ", ".join(entry["env"] for entry in envs)
    several = f"{len(envs)} environments ({names}): groups are compared only within each of them"
    return {
        "format_version": FORMAT_VERSION,
        "kind": "comparison",
        "envs": envs,
        "across": _across(envs),
        "warnings": [several] if len(envs) > 1 else [],
    }


def final_return(entry: Mapping[str, Any], measure: str = "final_return") -> GroupReturn | None:
    """Return the final return, or another measure with an estimate, from a group's statistics, in the form
    that is shown everywhere; None if its sample is empty."""
    found, count = entry["estimates"].get(measure), entry["measures"].get(measure, {}).get("n", 0)
    return GroupReturn(**found[statistic_of(count)], seeds=count) if found else None


def info_columns(entry: Mapping[str, Any]) -> list[str]:
    """Return the columns of the numbers of `env.info_keys` that a group's statistics have: `info/<name>`."""
    return [name for name in entry["estimates"] if name.startswith(INFO)]


def improvement(entry: Mapping[str, Any], x: str, y: str) -> Estimate | None:
    """Return P(a session of x beats one of y) from an entry of `envs`; None if it was not computed."""
    for pair in entry["improvement"]:
        value, low, high = pair["value"], pair["low"], pair["high"]
        if (pair["x"], pair["y"]) == (x, y):
            return Estimate(value, low, high)
        if (pair["x"], pair["y"]) == (y, x):
            low, high = (None if end is None else 1 - end for end in (high, low))
            return Estimate(1 - value, low, high)
    return None


def rank_groups(entries: Sequence[Mapping[str, Any]]) -> list[tuple[GroupReturn, Mapping[str, Any]]]:
    """Return the groups that have a final return, from the highest to the lowest return."""
    found = [(estimate, entry) for entry in entries if (estimate := final_return(entry)) is not None]
    return sorted(found, key=lambda pair: -pair[0].value)


def _best(statistics: Sequence[Mapping[str, Any]], pairs: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the group that is likely better than every other group; None if the seeds do not decide."""
    ranked = [entry for _, entry in rank_groups(statistics)]
    if len(ranked) < 2:
        return None
    first, *others = ranked
    sure = all(
        is_better(
            improvement({"improvement": pairs}, first["name"], one["name"]), first["counted"], one["counted"]
        )
        for one in others
    )
    return first["name"] if sure else None


def values_of(entry: Mapping[str, Any], measure: str) -> np.ndarray:
    """Return the known values of a measure for the sample in a group's statistics. [sessions with a value]"""
    found = (one.get(measure) for one in entry["sessions"] if one["counted"])
    return np.array([value for value in found if value is not None], dtype=np.float64)


def _improvements(scores: Mapping[str, Sequence[np.ndarray]]) -> Iterator[dict[str, Any]]:
    """Yield `x`, `y`, and the probability that a session of x beats one of y, with its interval."""
    pairs = combinations(scores, 2)
    if len(scores) > ALL_PAIRS:
        best = max(
            scores, key=lambda name: aggregates(scores[name])[statistic_of(sum(map(len, scores[name])))].value
        )
        pairs = ((best, other) for other in scores if other != best)  # type: ignore[assignment]
    for x, y in pairs:
        yield {"x": x, "y": y, **probability_of_improvement(scores[x], scores[y])._asdict()}


def _profile(scores: Mapping[str, Sequence[np.ndarray]]) -> dict[str, Any] | None:
    """Return, for each group, the fraction of sessions above each threshold. Thresholds go from the lowest to
    the highest score."""
    if not scores:
        return None
    every = np.concatenate([runs for tasks in scores.values() for runs in tasks])
    thresholds = np.linspace(every.min(), every.max(), PROFILE_POINTS)
    found = {}
    for name, tasks in scores.items():
        arrays = zip(("value", "low", "high"), performance_profile(tasks, thresholds), strict=True)
        found[name] = {key: None if array is None else array.tolist() for key, array in arrays}
    return {"thresholds": thresholds.tolist(), "groups": found}


def _unlike(statistics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    counted = [entry for entry in statistics if entry["counted"]]
    if len({entry["scores_of"] for entry in counted}) > 1:
        facts = ", ".join(f"{entry['name']}: {entry['scores_of']} episodes" for entry in counted)
        yield f"the groups are scored by different kinds of episodes ({facts})"
    ends = {entry["name"]: max(session["frames"] for session in entry["sessions"]) for entry in counted}
    if ends and min(ends.values()) < 0.9 * max(ends.values()):
        facts = f"from {min(ends.values()):,} to {max(ends.values()):,}"
        yield f"the final returns are at different frames ({facts}): compare the curves instead"
    for entry in statistics:
        if not entry["counted"]:
            yield f"{entry['name']}: no session that can be compared"


def _branches(groups: Sequence[Group], statistics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the groups that are branches of one run, and the differences between them.

    statistics: the statistics of each group. Returns `folder` and `frame` of the fork; `groups`, the names of
    the branches, including the original run if it is present; and `pairs`: for every two branches `x` and
    `y`, `value`, the mean over the sessions of the difference `x` - `y` in final return, its 95 % interval
    `low` to `high`, and the number `n` of sessions. Sessions with the same index have the same past, whose
    luck cancels in the difference. None if no two groups are branches of one run.
    """
    forks = {
        str(run.path): (str(fork.get("folder")), int(fork.get("frame", 0)))
        for group in groups
        for run in group.runs
        if isinstance(fork := run.info.get("fork"), dict)
    }
    if not forks:
        return None
    (folder, frame), _ = Counter(forks.values()).most_common(1)[0]
    found = {
        entry["name"]: {one["index"]: one["final_return"] for one in entry["sessions"] if one["counted"]}
        for group, entry in zip(groups, statistics, strict=True)
        if all(str(run.path) == folder or forks.get(str(run.path)) == (folder, frame) for run in group.runs)
    }
    if len(found) < 2:
        return None
    pairs = []
    for x, y in combinations(found, 2):
        shared = sorted(found[x].keys() & found[y].keys())
        gaps = np.array([found[x][index] - found[y][index] for index in shared])
        if shared:
            pairs.append({"x": x, "y": y, **aggregates(gaps)["mean"]._asdict(), "n": len(gaps)})
    return {"folder": folder, "frame": frame, "groups": list(found), "pairs": pairs}


def _across(envs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Compare groups by human-normalized score over the games that every group has played; None if fewer than
    two."""
    games = {
        entry["env"]: {
            group["name"]: values_of(group, "human_normalized")
            for group in entry["groups"]
            if "human_normalized" in group["estimates"]
        }
        for entry in envs
    }
    names = list(dict.fromkeys(name for own in games.values() for name in own))
    shared = [game for game, own in games.items() if own and set(own) == set(names)]
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
                "human_normalized": _plain(aggregates(tasks, target=1.0)),
            }
            for name, tasks in scores.items()
        ],
        "improvement": list(_improvements(scores)),
        "profile": _profile(scores),
    }
