"""What came out, in a few sentences; every number in them stands in a table below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from labrl.analysis.report.formats import duration, interval_by, number
from labrl.analysis.runs import Run
from labrl.analysis.series import STATISTICS, statistic_of

CHANGE = 0.03
"""Share of a curve's whole range by which its last tenth must differ from the tenth before to be news."""


def trial_verdict(run: Run, statistics: Mapping[str, Any]) -> str:
    """What the run reached, against what, and whether it was still learning."""
    return " ".join(_trial(run, statistics))


def _trial(run: Run, statistics: Mapping[str, Any]) -> Iterator[str]:
    failed = sum(session.status == "failed" for session in run.sessions)
    if failed:
        yield f"{failed} of {len(run.sessions)} sessions failed." if len(run.sessions) > 1 else "It failed."
    if run.status == "running":
        yield f"Still going on{_progress(run, statistics)}; so far:"
    elif run.status in ("interrupted", "killed"):
        yield f"It was {run.status}{_progress(run, statistics)} and can be resumed."
    final = final_estimate(statistics)
    if final is None:
        yield "No episode has ended, so there is no return to tell."
        return
    value, low, high, name = final
    seeds = statistics["counted"]
    spread = interval_by(low, high)
    told = f"; {spread}" if spread else ""
    yield f"A final return of {number(value)} ({_sample(seeds, name)}{told})."
    yield from _against(statistics, value)
    yield from _trend(statistics["curve"], run.status)


def final_estimate(statistics: Mapping[str, Any]) -> tuple[float, float | None, float | None, str] | None:
    """The final return of a group: value, ends of its interval, and the name of the statistic."""
    estimates = statistics["estimates"].get("final_return")
    if not estimates:
        return None
    name = statistic_of(statistics["counted"])
    return (*(estimates[name][part] for part in ("value", "low", "high")), STATISTICS[name])


def _sample(seeds: int, statistic: str) -> str:
    return f"{statistic} of {seeds} seeds" if seeds > 1 else "one seed"


def _progress(run: Run, statistics: Mapping[str, Any]) -> str:
    frames = [session["frames"] for session in statistics["sessions"]]
    if not frames or not run.max_frame or not np.isfinite(run.max_frame):
        return ""
    share = min(float(np.mean(frames)) / run.max_frame, 1.0)
    return f" at {100 * share:.0f} % of its {run.max_frame:,.0f} frames"


def _against(statistics: Mapping[str, Any], value: float) -> Iterator[str]:
    baseline, threshold = statistics["baseline"], statistics["threshold"]
    if baseline:
        better = "" if value > baseline["mean"] else ": no better than chance"
        yield f"The random policy's is {number(baseline['mean'])}{better}."
    human = statistics["estimates"].get("human_normalized")
    if human:
        yield f"Human-normalized: {number(human[statistic_of(statistics['counted'])]['value'], 3)}."
    if threshold:
        counted = [session for session in statistics["sessions"] if session["counted"]]
        reached = [s["frames_to_threshold"] for s in counted if s["frames_to_threshold"] is not None]
        what = {"gymnasium": "The return that counts as solved", "human": "A human's return"}
        said = f"{what.get(threshold['source'], 'The threshold')}, {number(threshold['value'])},"
        if not reached:
            yield f"{said} was not reached."
        else:
            share = f"by {len(reached)} of {len(counted)} seeds, " if len(counted) > 1 else ""
            yield f"{said} was reached {share}after {number(float(np.mean(reached)))} frames."


def _trend(curve: Mapping[str, Sequence[Any]], status: str) -> Iterator[str]:
    """Whether the return still rose, or fell, in the last tenth of the frames."""
    frame = np.array(curve["frame"], dtype=np.float64)
    mean = np.array(curve["mean"], dtype=np.float64)
    frame, mean = frame[np.isfinite(mean)], mean[np.isfinite(mean)]
    if len(mean) < 10:
        return
    part = frame / frame[-1]
    last, before = mean[part > 0.9], mean[(part > 0.8) & (part <= 0.9)]
    if not len(before):
        return
    change, whole = last.mean() - before.mean(), mean.max() - mean.min()
    if whole and change > CHANGE * whole and status != "running":
        yield "The return was still rising at the end: more frames may help."
    elif whole and change < -CHANGE * whole:
        yield "The return was falling at the end."


def comparison_verdict(entry: Mapping[str, Any]) -> str:
    """Which group of an environment is best, and how sure that is. entry: one of `compare`'s `envs`."""
    ranked = sorted(
        ((found, group) for group in entry["groups"] if (found := final_estimate(group))),
        key=lambda pair: -pair[0][0],
    )
    if not ranked:
        return f"{entry['env']}: no group has a return yet."
    (value, low, high, name), best = ranked[0]
    spread = interval_by(low, high)
    told = (
        f"On {entry['env']} {best['name']} is best: final return {number(value)} "
        f"({_sample(best['counted'], name)}{f'; {spread}' if spread else ''})"
    )
    if len(ranked) == 1:
        return told.replace(" is best: final return", " has a final return of") + "."
    (second, *_), other = ranked[1]
    told += f", before {other['name']} with {number(second)}."
    pair = improvement(entry, best["name"], other["name"])
    if pair is None:
        return told
    told += f" A seed of {best['name']} beats one of {other['name']} with probability {pair[0]:.2f}"
    told += f" ({interval_by(pair[1], pair[2])})" if pair[1] is not None else ""
    unsure = pair[1] is None or pair[1] <= 0.5
    return told + (": too few seeds to tell them apart." if unsure else ".")


def improvement(entry: Mapping[str, Any], x: str, y: str) -> tuple[float, float | None, float | None] | None:
    """P(a session of x beats one of y) and its interval; None where it was not computed."""
    for pair in entry["improvement"]:
        if (pair["x"], pair["y"]) == (x, y):
            return pair["value"], pair["low"], pair["high"]
        if (pair["x"], pair["y"]) == (y, x):
            low, high = (None if end is None else 1 - end for end in (pair["high"], pair["low"]))
            return 1 - pair["value"], low, high
    return None


def training_time(statistics: Mapping[str, Any]) -> str:
    """Of the longest session."""
    walls = [session["wall"] for session in statistics["sessions"] if session["wall"] is not None]
    return duration(max(walls)) if walls else duration(None)
