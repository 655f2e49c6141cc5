"""The report of one trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from labrl.analysis.report.configuration import configuration_section
from labrl.analysis.report.curves import curves_section
from labrl.analysis.report.episodes import video_section
from labrl.analysis.report.formats import INTERVAL, UNKNOWN, duration, interval, interval_by, moment, number
from labrl.analysis.report.origin import origin_section
from labrl.analysis.report.sections import Cell, KeyFigure, Note, Report, Section, Table
from labrl.analysis.report.verdict import final_estimate, training_time, trial_verdict
from labrl.analysis.runs import Run

NAMES = {
    "final_return": "final return",
    "best_return": "best return",
    "area_under_curve": "average return (area under the curve)",
    "slm_final": "mean of the last 100 rows",
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
"""Measures with their names in a report."""


def trial_report(run: Run, statistics: Mapping[str, Any]) -> Report:
    """What one run came to. statistics: those of `trial_statistics`."""
    sections = [
        curves_section(run),
        video_section(run),
        _seeds_section(run, statistics),
        _statistics_section(statistics),
        configuration_section(run),
        origin_section(run),
    ]
    seeds = len(run.sessions)
    return Report(
        title=f"{run.agent} on {run.env}",
        subtitle=f"{moment(run.created)} · {seeds} session{'' if seeds == 1 else 's'} · {run.name}",
        status=run.status,
        verdict=trial_verdict(run, statistics),
        figures=list(_figures(statistics)),
        warnings=list(statistics["warnings"]),
        sections=[section for section in sections if section is not None],
        facts={"labrl": run.provenance.get("packages", {}).get("labrl", ""), "": str(run.path)},
    )


def _figures(statistics: Mapping[str, Any]) -> Iterator[KeyFigure]:
    final = final_estimate(statistics)
    if final is not None:
        value, low, high, name = final
        detail = interval_by(low, high) or "one seed: no interval"
        yield KeyFigure(
            f"Final return ({'IQM' if name.startswith('inter') else name})", number(value), detail
        )
    measures = statistics["measures"]

    def mean(measure: str) -> float | None:
        return measures[measure]["mean"]

    best = [s["best_return"] for s in statistics["sessions"] if s["best_return"] is not None]
    if best:
        kind = statistics["scores_of"]
        yield KeyFigure("Best return", number(max(best)), f"best checkpoint of all, {kind} episodes")
    human = mean("human_normalized")
    if human is not None:
        yield KeyFigure("Human-normalized", number(human, 3), "0 random, 1 human")
    for measure, label, detail in (
        ("area_under_curve", "Average return", "over all frames"),
        ("strength", "Strength", "return above random"),
        ("stability", "Stability", "1: it never fell"),
    ):
        if mean(measure) is not None:
            yield KeyFigure(label, number(mean(measure)), detail)
    if statistics["consistency"] is not None:
        yield KeyFigure("Consistency", number(statistics["consistency"]), "1: all seeds equal")
    frames = max((s["frames"] for s in statistics["sessions"]), default=0)
    emulated = max((s["env_frames"] or 0 for s in statistics["sessions"]), default=0)
    detail = f"{number(emulated)} emulator frames" if emulated > frames else "of a session"
    yield KeyFigure("Frames", number(frames), detail)
    speed = f"{number(mean('fps'), 3)} frames/s" if mean("fps") is not None else ""
    yield KeyFigure("Training time", training_time(statistics), speed)


def _seeds_section(run: Run, statistics: Mapping[str, Any]) -> Section:
    reasons = {entry["session"]: entry["reason"] for entry in statistics["left_out"]}
    errors = {session.index: session.result.get("error") for session in run.sessions}
    columns = ["session", "seed", "status", "frames", "episodes", "final return", "best return"]
    columns += ["average return", "stability", "frames/s", "time"]
    noted = any(reasons.values()) or any(errors.values())
    rows = [
        [
            Cell(entry["index"], str(entry["index"])),
            Cell(entry["seed"], UNKNOWN if entry["seed"] is None else str(entry["seed"])),
            entry["status"],
            Cell(entry["frames"], f"{entry['frames']:,}"),
            Cell(entry["episodes"], UNKNOWN if entry["episodes"] is None else f"{entry['episodes']:,}"),
            entry["final_return"],
            Cell(entry["best_return"], detail=_at(entry["best_frame"])),
            entry["area_under_curve"],
            entry["stability"],
            Cell(entry["fps"], number(entry["fps"], 3)),
            Cell(entry["wall"], duration(entry["wall"])),
            *([str(errors[entry["index"]] or reasons.get(entry["index"]) or "")] if noted else []),
        ]
        for entry in statistics["sessions"]
    ]
    marked = frozenset(i for i, entry in enumerate(statistics["sessions"]) if entry["status"] == "failed")
    dim = frozenset(i for i, entry in enumerate(statistics["sessions"]) if not entry["counted"])
    table = Table([*columns, "note"] if noted else columns, rows, marked=marked, dim=dim)
    return Section("seeds", "Seeds", [table])


def _at(frame: int | None) -> str:
    return "" if frame is None else f"at {number(frame)}"


def _statistics_section(statistics: Mapping[str, Any]) -> Section:
    """Every measure that is defined, over the seeds; and the estimates with intervals."""
    estimates = [
        [f"{NAMES.get(measure, measure)}, {label}", e["value"], interval(e["low"], e["high"]) or UNKNOWN]
        for measure, found in statistics["estimates"].items()
        for name, label in (("iqm", "interquartile mean"), ("mean", "mean"), ("median", "median"))
        for e in [found[name]]
    ]
    rows = [
        [NAMES[measure], values["mean"], values["std"], Cell(values["n"], str(values["n"]))]
        for measure, values in statistics["measures"].items()
        if values["n"]
    ]
    if statistics["consistency"] is not None:
        rows.append(["consistency", statistics["consistency"], None, Cell(statistics["counted"])])
    blocks: list[Any] = []
    if estimates:
        blocks.append(Table(["estimate", "value", INTERVAL], estimates))
    if rows:
        blocks.append(Table(["measure", "mean of seeds", "deviation", "seeds"], rows))
    baseline = statistics["baseline"]
    if baseline:
        of = f", {baseline['episodes']} episodes" if baseline["episodes"] else ""
        blocks.append(
            Note(
                f"Strength is the return above the random policy's {number(baseline['mean'])} "
                f"({baseline['source']}{of}). A measure that is not defined is left out."
            )
        )
    kind = statistics["scores_of"]
    blocks.append(Note(f"All scores are of {kind} episodes, whole games with their raw rewards."))
    return Section("statistics", "Statistics", blocks)
