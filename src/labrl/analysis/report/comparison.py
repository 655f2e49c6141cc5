"""The report of several groups of runs: an experiment, a search, or any runs beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from labrl.analysis.groups import Group, by_env
from labrl.analysis.intervals import Estimate
from labrl.analysis.plots.colours import GREY, Style, group_styles
from labrl.analysis.plots.comparison import Compared, named
from labrl.analysis.report.curves import Axes
from labrl.analysis.report.formats import INTERVAL, UNKNOWN, interval, interval_by, number
from labrl.analysis.report.search import search_figures
from labrl.analysis.report.sections import (
    Axis,
    Block,
    Cell,
    Chart,
    Charts,
    Controls,
    KeyFigure,
    Line,
    Note,
    Report,
    Section,
    Table,
    Toggle,
    View,
)
from labrl.analysis.report.trials import groups_section, trials_section
from labrl.analysis.report.verdict import comparison_verdict, final_estimate, improvement
from labrl.analysis.search import SearchResult, verdict
from labrl.analysis.series import STATISTICS, evaluates, return_curve, statistic_of
from labrl.analysis.settings import Setting, settings

MOST_IN_MATRIX = 10
"""Groups up to which every one is set against every other."""


@dataclass(frozen=True)
class Comparison:
    """What a report of several groups is made of."""

    title: str
    groups: Sequence[Group]
    statistics: Mapping[str, Any]
    """Of `compare`."""
    folder: Path
    """Where the report will lie."""
    status: str = "finished"
    subtitle: str = ""
    command: str = ""
    """What was typed, where it is one experiment."""
    resumes: Sequence[Mapping[str, Any]] = ()
    """When it went on, and by which command: those of `experiment.json`."""
    warnings: Sequence[str] = ()
    trials: Sequence[Mapping[str, Any]] = ()
    """Those of `experiment.json`, if there is one."""
    search: SearchResult | None = None
    """Where it is one: what it confirmed on fresh seeds is the verdict of the report."""
    extra: Sequence[Section] = ()
    """Sections that come first: those of a search."""

    def compared(self, env: str) -> list[Compared]:
        """The groups of an environment, with their scores, and with the styles of those that are named."""
        groups = by_env(self.groups)[env]
        entries = next(entry for entry in self.statistics["envs"] if entry["env"] == env)["groups"]
        found = [
            Compared(group, Style(GREY), _scores(entry), _estimate(entry))
            for group, entry in zip(groups, entries, strict=True)
        ]
        shown = {id(one) for one in named(found)}
        styles = iter(group_styles([one.group.agent for one in found if id(one) in shown]))
        return [replace(one, style=next(styles)) if id(one) in shown else one for one in found]


def _scores(entry: Mapping[str, Any]) -> np.ndarray:
    counted = [session["final_return"] for session in entry["sessions"] if session["counted"]]
    return np.array(counted, dtype=np.float64)


def _estimate(entry: Mapping[str, Any]) -> Estimate | None:
    found = final_estimate(entry)
    return None if found is None else Estimate(*found[:3])


def comparison_report(comparison: Comparison) -> Report:
    """Curves, scores, pairs and profiles by environment, then the trials and what differs between them."""
    statistics, sections = comparison.statistics, list(comparison.extra)
    groups = comparison.groups
    several = len(statistics["envs"]) > 1
    axes = Axes([run for group in comparison.groups for run in group.runs])
    for number_of_env, entry in enumerate(statistics["envs"]):
        compared = comparison.compared(entry["env"])
        suffix = f"-{number_of_env}" if several else ""
        where = f" on {entry['env']}" if several else ""
        sections.append(_curves_section(compared, axes, suffix, where))
        sections.append(_scores_section(compared, entry, suffix, where))
        by_setting = _settings_section(compared, entry, suffix, where)
        if by_setting is not None:
            sections.append(by_setting)
    if statistics["across"]:
        sections.append(_across_section(statistics["across"]))
    sections += [
        trials_section(groups, comparison.trials, statistics, comparison.folder),
        groups_section(groups, comparison.command, comparison.resumes),
    ]
    if comparison.search is None:
        sentences = [comparison_verdict(entry) for entry in statistics["envs"]][:4]
        figures = list(_figures(comparison))
    else:
        sentences = list(verdict(comparison.search))
        figures = list(search_figures(comparison.search, statistics["search"]))
    return Report(
        title=comparison.title,
        subtitle=comparison.subtitle,
        status=comparison.status,
        verdict=" ".join(sentences),
        figures=figures,
        warnings=list(_warnings(comparison)),
        sections=sections,
        facts={"": str(comparison.folder)},
    )


def _figures(comparison: Comparison) -> Iterator[KeyFigure]:
    entries = comparison.statistics["envs"]
    for entry in entries[:4]:
        ranked = [(found[0], found, group) for group in entry["groups"] if (found := final_estimate(group))]
        if ranked:
            _, (value, low, high, _), best = max(ranked, key=lambda one: one[0])
            where = f" on {entry['env']}" if len(entries) > 1 else ""
            yield KeyFigure(f"Best{where}: {best['name']}", number(value), interval_by(low, high))
    runs = [run for group in comparison.groups for run in group.runs]
    sessions = [session for entry in entries for group in entry["groups"] for session in group["sessions"]]
    yield KeyFigure("Groups", str(len(comparison.groups)), "that differ in more than the seed")
    yield KeyFigure("Trials", str(len(comparison.trials) or len(runs)), f"{len(sessions)} sessions")
    frames = sum(session["frames"] for session in sessions)
    yield KeyFigure("Frames", number(float(frames)), "of all sessions")


def _warnings(comparison: Comparison) -> Iterator[str]:
    yield from comparison.warnings
    yield from comparison.statistics["warnings"]
    several = len(comparison.groups) > 1
    for entry in comparison.statistics["envs"]:
        yield from entry["warnings"]
        said: dict[str, list[str]] = {}
        for group in entry["groups"]:
            for warning in group["warnings"]:
                said.setdefault(warning, []).append(group["name"])
        for warning, names in said.items():
            if not several:
                yield warning
            elif len(names) == len(entry["groups"]):
                yield f"every group: {warning}"
            else:
                yield f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''}: {warning}"


def _key(group: Group, suffix: str) -> str:
    return f"{group.name}{suffix}"


def _curves_section(compared: Sequence[Compared], axes: Axes, suffix: str, where: str) -> Section:
    chosen = named(compared)
    toggles = [
        Toggle(_key(one.group, suffix), one.group.name, one.style.colour, one.style.dash) for one in chosen
    ]
    if len(chosen) < len(compared):
        toggles.append(Toggle(f"others{suffix}", f"{len(compared) - len(chosen)} others", GREY))
    lines: list[Line] = []
    for one in compared:
        lines += _group_lines(one, axes, suffix, thick=one in chosen)
    kind = "evaluation" if all(evaluates(run) for one in compared for run in one.group.runs) else "training"
    chart = Chart("Return", axes.labels, lines, f"of {kind} episodes", tall=True)
    name = STATISTICS[statistic_of(max(len(one.group.sessions) for one in compared))]
    note = f"{name.capitalize()} over the seeds of a group, with its {INTERVAL}. Drag to zoom, "
    note += "double-click to see all; a click on a name hides it."
    if len(chosen) < len(compared):
        note += f" Of {len(compared)} groups the {len(chosen)} best have a colour."
    return Section(
        f"curves{suffix}", f"Curves{where}", [Controls(axes.buttons, toggles, seeds=False), chart, Note(note)]
    )


def _group_lines(one: Compared, axes: Axes, suffix: str, thick: bool) -> Iterator[Line]:
    group = one.group
    key = _key(group, suffix) if thick else f"others{suffix}"
    style = one.style if thick else Style(GREY)
    by_axis = {
        axis: [return_curve(session, axis, evaluates(run)) for run in group.runs for session in run.sessions]
        for axis in axes.labels
    }
    views = {axis: view for axis in axes.labels if (view := axes.middle(axis, by_axis[axis]))}
    if not views:
        return
    if thick:
        for place, session in enumerate(session for run in group.runs for session in run.sessions):
            own = {axis: axes.view(axis, curves[place]) for axis, curves in by_axis.items()}
            name = f"{group.name}, seed {session.seed if session.seed is not None else session.index}"
            yield Line(f"{key} {place}", name, style.colour, own, "seed", style.dash, group=key)
        yield Line(key, group.name, style.colour, views, "center", style.dash)
    else:
        bare = {axis: View(view.x, view.y) for axis, view in views.items()}
        yield Line(key, group.name, style.colour, bare, "reference")


def _scores_section(
    compared: Sequence[Compared], entry: Mapping[str, Any], suffix: str, where: str
) -> Section:
    blocks: list[Block] = [_scores_table(compared, entry)]
    pairs = _pairs_table(entry)
    if pairs is not None:
        blocks.append(pairs)
    if entry["profile"]:
        blocks.append(_profile_chart(compared, entry["profile"], suffix))
    return Section(f"scores{suffix}", f"Scores{where}", blocks)


def _scores_table(compared: Sequence[Compared], entry: Mapping[str, Any]) -> Table:
    columns = ["group", "seeds", "final return", INTERVAL, "mean", "best", "average return"]
    columns += ["strength", "sample efficiency", "stability", "consistency", "frames/s"]
    humans = any("human_normalized" in group["estimates"] for group in entry["groups"])
    rows = []
    order = sorted(
        zip(compared, entry["groups"], strict=True),
        key=lambda pair: -pair[0].middle.value if pair[0].middle else np.inf,
    )
    for one, group in order:
        measures, middle = group["measures"], one.middle
        rows.append(
            [
                Cell(one.group.name, colour=one.style.colour),
                Cell(group["counted"], str(group["counted"])),
                middle.value if middle else None,
                (interval(middle.low, middle.high) if middle else "") or UNKNOWN,
                *(
                    measures[name]["mean"]
                    for name in ("final_return", "best_return", "area_under_curve", "strength")
                ),
                *(measures[name]["mean"] for name in ("sample_efficiency", "stability")),
                group["consistency"],
                Cell(measures["fps"]["mean"], number(measures["fps"]["mean"], 3)),
                *([measures["human_normalized"]["mean"]] if humans else []),
            ]
        )
    most = max((group["counted"] for group in entry["groups"]), default=0)
    columns[2] = f"final return ({'IQM' if statistic_of(most) == 'iqm' else 'mean'})"
    return Table([*columns, "human-normalized"] if humans else columns, rows)


def _pairs_table(entry: Mapping[str, Any]) -> Table | None:
    """How likely a seed of the row's group beats one of the column's."""
    names = list(dict.fromkeys(pair[side] for pair in entry["improvement"] for side in ("x", "y")))
    if len(names) < 2:
        return None
    caption = "Probability of improvement"
    if len(names) > MOST_IN_MATRIX:
        rows = [
            [pair["x"], pair["y"], pair["value"], interval(pair["low"], pair["high"]) or UNKNOWN]
            for pair in entry["improvement"]
        ]
        return Table(["a seed of", "beats one of", "probability", INTERVAL], rows, caption=caption)
    matrix: list[list[Cell | str]] = []
    for x in names:
        row: list[Cell | str] = [x]
        for y in names:
            pair = improvement(entry, x, y)
            if pair is None:
                row.append(Cell(None, ""))
            else:
                row.append(Cell(pair[0], f"{pair[0]:.2f}", detail=interval_by(pair[1], pair[2])))
        matrix.append(row)
    return Table(["a seed of … beats one of", *names], matrix, caption=caption)


def _profile_chart(compared: Sequence[Compared], profile: Mapping[str, Any], suffix: str) -> Chart:
    chosen = {one.group.name: one for one in named(compared)}
    lines = [
        Line(
            _key(chosen[name].group, suffix),
            name,
            chosen[name].style.colour,
            {"score": View(profile["thresholds"], curve["value"], curve["low"], curve["high"])},
            dash=chosen[name].style.dash,
        )
        for name, curve in profile["groups"].items()
        if name in chosen
    ]
    axes = {"score": Axis("final return")}
    return Chart("Performance profile", axes, lines, "share of seeds above a return", fixed_y=(0.0, 1.0))


def _settings_section(
    compared: Sequence[Compared], entry: Mapping[str, Any], suffix: str, where: str
) -> Section | None:
    """Each measure against each hyperparameter that differs."""
    groups = [one.group for one in compared]
    blocks: list[Block] = []
    for setting in settings(groups, entry["groups"]):
        charts = [
            Chart(name, {"value": _setting_axis(setting)}, list(_setting_lines(setting, groups, estimates)))
            for name, estimates in setting.measures.items()
        ]
        blocks += [Note(f"Against {setting.key}:"), Charts(charts, small=True)]
    return Section(f"settings{suffix}", f"By setting{where}", blocks) if blocks else None


def _setting_axis(setting: Setting) -> Axis:
    if setting.names:
        return Axis(setting.key, setting.names, (-0.5, len(setting.names) - 0.5))
    places = np.log10(setting.places) if setting.logarithmic else setting.places
    margin = 0.08 * (places.max() - places.min())
    fixed = (float(places.min() - margin), float(places.max() + margin))
    return Axis(setting.key, fixed=fixed, log=setting.logarithmic)


def _setting_lines(
    setting: Setting, groups: Sequence[Group], estimates: Sequence[Estimate | None]
) -> Iterator[Line]:
    places = np.log10(setting.places) if setting.logarithmic else setting.places
    agents = list(dict.fromkeys(group.agent for group in groups))
    for agent, style in zip(agents, group_styles(agents), strict=True):
        own = [i for i, group in enumerate(groups) if group.agent == agent and estimates[i] is not None]
        found = [one for i in own if (one := estimates[i]) is not None]
        ends = [[np.nan if end is None else end for end in (one.low, one.high)] for one in found]
        view = View(
            places[own], [one.value for one in found], [low for low, _ in ends], [high for _, high in ends]
        )
        labels = [groups[i].name for i in own]
        yield Line(f"by {agent}", agent, style.colour, {"value": view}, "points", labels=labels)


def _across_section(across: Mapping[str, Any]) -> Section:
    rows = [
        [
            group["name"],
            Cell(group["sessions"], str(group["sessions"])),
            name,
            e["value"],
            interval(e["low"], e["high"]) or UNKNOWN,
        ]
        for group in across["groups"]
        for name, e in group["human_normalized"].items()
    ]
    note = f"Over {len(across['envs'])} games that every group has played: {', '.join(across['envs'])}."
    columns = ["group", "sessions", "human-normalized", "value", INTERVAL]
    return Section("across", "Over games", [Note(note), Table(columns, rows)])
