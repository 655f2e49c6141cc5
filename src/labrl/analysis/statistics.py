"""Sessions, trials and groups of trials as numbers: plain dicts, None where a number is not defined.

A *group* is runs that are compared as one, usually those that differ only in the seed; its sessions are its
sample. What is left out of it, and why, is always said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from labrl.analysis import measures
from labrl.analysis.baselines import Baseline, Threshold, human_range, random_baseline, threshold_of
from labrl.analysis.curves import aligned
from labrl.analysis.groups import SEVERAL
from labrl.analysis.intervals import Estimate, aggregates, curve
from labrl.analysis.runs import Run, SessionRun
from labrl.analysis.scores import MEASURES, frames_reached, last_frame, score_rows, session_statistics
from labrl.storage.experiment_folder import CONFIRMING

FORMAT_VERSION = 1
"""Of the dicts and of `statistics.json`."""

FAR_ENOUGH = 0.9
"""A session that got less far than this part of its group's furthest is left out of the group."""

FEW_SEEDS = 5
"""With fewer an interval says little (Agarwal et al., 2021)."""


def trial_statistics(run: Run, threshold: float | None = None) -> dict[str, Any]:
    """One run: what it is, and `group_statistics` of it alone.

    threshold: the return, the time to which is measured; None: what is known for the environment.
    """
    return {
        "format_version": FORMAT_VERSION,
        "kind": "trial",
        "run": run.name,
        "status": run.status,
        "created": run.created,
        "seed": run.seed,
        **group_statistics([run], threshold=threshold),
    }


def group_statistics(
    runs: Sequence[Run], name: str | None = None, threshold: float | None = None
) -> dict[str, Any]:
    """The sessions of `runs`, in one environment, as a sample.

    Returns `name agent env runs`, `sessions` (a dict of measures for each), `counted` (how many of them
    make the sample), `left_out` (the others, with the reason), `baseline`, `threshold`, `scores_of`
    (evaluation or training episodes), `measures` (mean, std and n over the counted), `consistency`,
    `estimates` (iqm, mean and median with their interval), `curve` (on a grid of frames), `warnings`.
    Raises ValueError for runs in different environments.
    """
    envs = {run.env for run in runs}
    if len(envs) != 1:
        raise ValueError(
            f"runs: all must be in the same environment, got {', '.join(sorted(envs)) or 'no run'}"
        )
    env = runs[0].config.get("env", {})
    baseline, human = random_baseline(env), human_range(env)
    wanted = Threshold(threshold, "given") if threshold is not None else threshold_of(env)
    entries = [
        {"run": run.name, **session_statistics(session, baseline, human, wanted)}
        for run in runs
        for session in run.sessions
    ]
    sessions = [session for run in runs for session in run.sessions]
    reasons = list(_reasons_to_leave_out(runs))
    for entry, reason in zip(entries, reasons, strict=True):
        entry["counted"] = reason is None
    counted = [entry for entry in entries if entry["counted"]]
    sample = [session for session, reason in zip(sessions, reasons, strict=True) if reason is None]
    agents = list(dict.fromkeys(run.agent for run in runs))
    return {
        "name": name or ", ".join(agents),
        "agent": agents[0] if len(agents) == 1 else SEVERAL,
        "env": runs[0].env,
        "runs": [run.name for run in runs],
        "sessions": entries,
        "counted": len(counted),
        "left_out": [
            {"run": entry["run"], "session": entry["index"], "reason": reason}
            for entry, reason in zip(entries, reasons, strict=True)
            if reason is not None
        ],
        "baseline": None if baseline is None else vars(baseline),
        "threshold": None if wanted is None else vars(wanted),
        "scores_of": scores_of(runs),
        "measures": {measure: _over_sessions(counted, measure) for measure in MEASURES},
        "consistency": _consistency(sample, baseline),
        "estimates": _estimates(counted, normalized=human is not None),
        "curve": _curve(sample),
        "warnings": list(_warnings(runs, entries, reasons, baseline)),
    }


def scores_of(runs: Sequence[Run]) -> str:
    """Whether scores are of `evaluation` episodes in environments of their own, of `training`, or `both`."""
    rigorous = {bool(run.config.get("meta", {}).get("rigorous_eval")) for run in runs}
    return "both" if len(rigorous) > 1 else "evaluation" if rigorous == {True} else "training"


def _reasons_to_leave_out(runs: Sequence[Run]) -> Iterator[str | None]:
    """For each session of `runs` why it is not part of the sample; None where it is."""
    furthest = max((last_frame(session) for run in runs for session in run.sessions), default=0.0)
    seen: dict[tuple[str, int], str] = {}
    confirmed_in = {run.path.parent for run in runs if run.path.name.startswith(CONFIRMING)}
    for run in runs:
        chosen = run.path.parent in confirmed_in and not run.path.name.startswith(CONFIRMING)
        for session in run.sessions:
            reached = last_frame(session)
            twin = (run.group_key, session.seed) if session.seed is not None else None
            if not len(score_rows(session)):
                yield "no episode has ended"
            elif chosen:
                yield "the search chose it for its return; the fresh seeds of its confirmation count"
            elif reached < FAR_ENOUGH * furthest:
                state, came = "ended at", frames_reached(session)
                if came >= FAR_ENOUGH * furthest:
                    state, came = "has rows up to", reached
                elif session.status == "running":
                    state = "is still at"
                yield f"{state} frame {came:,.0f} of {furthest:,.0f} ({session.status})"
            elif twin is not None and twin in seen:
                yield f"the same seed and configuration as {seen[twin]}"
            else:
                if twin is not None:
                    seen[twin] = f"session {session.index} of {run.name}"
                yield None


def _over_sessions(entries: Sequence[Mapping[str, Any]], measure: str) -> dict[str, float | int | None]:
    """Mean and sample standard deviation over those for which the measure is defined; n: how many."""
    values = [entry[measure] for entry in entries if entry[measure] is not None]
    return {
        "mean": float(np.mean(values)) if values else None,
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "n": len(values),
    }


def _estimates(entries: Sequence[Mapping[str, Any]], normalized: bool) -> dict[str, Any]:
    targets = {"final_return": None, "area_under_curve": None}
    estimates = {}
    for measure, target in {**targets, **({"human_normalized": 1.0} if normalized else {})}.items():
        values = np.array([entry[measure] for entry in entries], dtype=np.float64)
        if len(values):
            found = aggregates(values, target).items()
            estimates[measure] = {name: plain(estimate) for name, estimate in found}
    return estimates


def plain(estimate: Estimate) -> dict[str, float | None]:
    """An estimate as `value`, `low`, `high`."""
    return estimate._asdict()


def _consistency(sessions: Sequence[SessionRun], baseline: Baseline | None) -> float | None:
    """Of the checkpoints at which every session has a return."""
    if baseline is None or not sessions:
        return None
    rows = [score_rows(session) for session in sessions]
    _, returns = aligned([own.frame for own in rows], [own.returns for own in rows])
    everywhere = np.isfinite(returns).all(axis=0)
    return measures.consistency(measures.strength(returns[:, everywhere], baseline.mean))


def _curve(sessions: Sequence[SessionRun]) -> dict[str, list[Any]]:
    """Return over frames, IQM and mean over the sessions with their intervals; lists of equal length."""
    rows = [score_rows(session) for session in sessions]
    grid, returns = aligned([own.frame for own in rows], [own.returns for own in rows])
    bands = {statistic: curve(returns, statistic) for statistic in ("iqm", "mean")}
    columns: dict[str, list[Any]] = {"frame": grid.astype(int).tolist()}
    for statistic, band in bands.items():
        columns[statistic] = _or_none(band.value)
        columns[f"{statistic}_low"], columns[f"{statistic}_high"] = _or_none(band.low), _or_none(band.high)
    columns["count"] = bands["iqm"].count.tolist()
    return columns


def _or_none(values: np.ndarray) -> list[float | None]:
    """As a list for JSON, which has no nan."""
    return [float(value) if np.isfinite(value) else None for value in values]


def _warnings(
    runs: Sequence[Run],
    entries: Sequence[Mapping[str, Any]],
    reasons: Sequence[str | None],
    baseline: Baseline | None,
) -> Iterator[str]:
    several = len(runs) > 1
    for run in runs:
        for warning in run.warnings:
            yield f"{run.name}: {warning}" if several else warning
    for entry, reason in zip(entries, reasons, strict=True):
        if reason is not None:
            where = f"{entry['run']}, session {entry['index']}" if several else f"session {entry['index']}"
            yield f"{where} is left out of the statistics: {reason}"
    counted = reasons.count(None)
    if counted == 1:
        yield "one seed only: there is no interval, and no saying how much of the result is luck"
    elif 1 < counted < FEW_SEEDS:
        yield f"{counted} seeds only: intervals of so few are rough"
    if scores_of(runs) == "both":
        yield "scores of some runs are of evaluation episodes, of others of training episodes"
    if entries and baseline is None:
        yield "no random baseline: strength, efficiencies, stability and consistency are not defined"
